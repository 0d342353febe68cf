"""Tables of a docs page that a finished run renews: what stands between the page's two markers."""

from pathlib import Path

END = "<!-- end of figures -->"


def put_tables(page: Path, begin: str, *tables: str) -> None:
    """Replace everything between the marker `begin` and `END` by the tables."""
    before, rest = page.read_text(encoding="utf-8").split(begin)
    after = rest.split(END)[1]
    body = "\n\n".join([begin, *tables, END])
    page.write_text(before + body + after, encoding="utf-8")
