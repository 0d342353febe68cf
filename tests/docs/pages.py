"""Reading the project's pages: their code blocks, their links, their generated parts.

A block is run by the tests if its language is `sh` or `python`. A comment `<!-- not run: WHY -->` on the line
before a block leaves it out; the reason must be given.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("**/*.md")])

_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<why>.+?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    language: str
    text: str
    skipped: str | None
    """Why it is not run, if it is not."""


def blocks(page: Path, language: str) -> list[Block]:
    """The page's blocks in a language, in order."""
    found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(m["language"], m["text"], m["why"]) for m in found if m["language"] == language]


def commands(page: Path) -> list[str]:
    """Each command of the page's `sh` blocks that are to be run; a comment or a blank line is none."""
    lines = [line for block in blocks(page, "sh") if not block.skipped for line in block.text.splitlines()]
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def links(page: Path) -> list[str]:
    """Targets of the page's links and pictures that lie in this repository."""
    prose = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    return [target for target in _LINK.findall(prose) if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """The names that a page's headings can be reached by, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", _BLOCK.sub("", page.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def name_of(page: Path) -> str:
    """How a page is called in a test's name."""
    return str(page.relative_to(ROOT))
