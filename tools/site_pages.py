"""Hooks of the site (`mkdocs.yml`): the front page is the README, and links into the repository lead to copies of its files.

Pages that nobody put into the navigation are put there, so that none is left out: decisions under theirs, others at the end.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
PLACE = "repository"


def on_config(config: Any) -> Any:
    """The navigation, with what it does not name."""
    named: set[str] = set()

    def walk(entry: Any) -> Any:
        if isinstance(entry, dict):
            return {title: walk(part) for title, part in entry.items()}
        if isinstance(entry, list):
            return [walk(part) for part in entry]
        if entry == "adr/":
            return ["adr/index.md", *(f"adr/{path.name}" for path in _decisions())]
        named.add(entry)
        return entry

    config.nav = [walk(entry) for entry in config.nav if not _missing(entry)]
    others = [path.name for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in named]
    if others:
        config.nav.append({"More": others})
    return config


def _decisions() -> list[Path]:
    return sorted((ROOT / "docs" / "adr").glob("*.md"))


def _missing(entry: Any) -> bool:
    return (
        isinstance(entry, str)
        and entry.endswith(".md")
        and entry != "index.md"
        and not (ROOT / "docs" / entry).exists()
    )


def on_files(files: Any, config: Any) -> Any:
    """The front page from the README, and the files of the repository that pages link to."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=_from_docs(readme)))
    titles = [path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for path in _decisions()]
    lines = [f"- [{title}]({path.name})" for title, path in zip(titles, _decisions(), strict=True)]
    files.append(File.generated(config, "adr/index.md", content="# Decisions\n\n" + "\n".join(lines) + "\n"))
    wanted = set(re.findall(rf"{PLACE}/([^)#\s]+)", _from_docs(readme)))
    for path in (ROOT / "docs").rglob("*.md"):
        wanted |= set(
            re.findall(rf"{PLACE}/([^)#\s]+)", _outside(path.read_text(encoding="utf-8"), path.parent))
        )
    for name in sorted(wanted):
        if (ROOT / name).is_file():
            files.append(File.generated(config, f"{PLACE}/{name}", abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links out of the docs go to the copies; a search finds decisions after the pages that say how things are."""
    if page.file.src_uri.startswith("adr/"):
        page.meta["search"] = {"boost": 0.2}
    source = ROOT / "docs" / page.file.src_uri
    moved = markdown if page.file.src_uri == "index.md" else _outside(markdown, source.parent)
    return moved.replace("](adr/)", "](adr/index.md)")


def _from_docs(readme: str) -> str:
    """The README as a page of the docs."""

    def moved(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        if "://" in target:
            return found[0]
        if target.startswith("docs/"):
            return f"]({target.removeprefix('docs/')}{anchor})"
        return f"]({PLACE}/{target})" if (ROOT / target).is_file() else f"]({target}{anchor})"

    return LINK.sub(moved, readme)


def _outside(markdown: str, folder: Path) -> str:
    """A page of the docs whose links to files elsewhere in the repository lead to the copies."""
    up = "../" * len(folder.relative_to(ROOT / "docs").parts)

    def moved(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        if "://" in target:
            return found[0]
        there = (folder / target).resolve()
        if there == ROOT / "README.md":
            return f"]({up}index.md{anchor})"
        if there.is_file() and ROOT / "docs" not in there.parents and ROOT in there.parents:
            return f"]({up}{PLACE}/{there.relative_to(ROOT)})"
        return found[0]

    return LINK.sub(moved, markdown)
