"""Pages with generated parts: what stands between two markers comes from the code, the rest from people.

    <!-- generated: NAME -->
    <!-- end of generated -->

A module named `describe` makes the parts of its pages; run as a command it renews them, and a test compares.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_MARKED = re.compile(r"(<!-- generated: ([^\n]*?) -->\n).*?(<!-- end of generated -->)", re.DOTALL)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [list(head), ["---"] * len(head), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def field_texts(kind: type) -> dict[str, str]:
    """The texts below a class's fields, by field."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, below in zip(body.body, [*body.body[1:], None], strict=True):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            found[field.target.id] = " ".join(str(below.value.value).split())
    return found


def rewritten(page: str, parts: Mapping[str, str]) -> str:
    """The page with every generated part renewed; a marker without a part is a `KeyError`."""
    return _MARKED.sub(lambda match: f"{match[1]}\n{parts[match[2]]}\n\n{match[3]}", page)


def renew(pages: Sequence[str], parts: Mapping[str, str]) -> None:
    """Rewrite each page, or print all parts if there is none."""
    for name in pages:
        path = Path(name)
        path.write_text(rewritten(path.read_text(encoding="utf-8"), parts), encoding="utf-8")
    if not pages:
        for name, text in parts.items():
            print(f"## {name}\n\n{text}\n")
