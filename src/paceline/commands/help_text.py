"""Help that fits a terminal: paragraphs flow, and examples are broken where a shell goes on reading."""

import inspect
import re
from typing import Any, TextIO

WIDTH = 76
"""Of an example's line: 80 columns less the margins of the help page."""
INDENT = "  "


def fitted(text: str | None) -> str:
    """A docstring as help: lines of a paragraph are one, an example longer than a line ends in backslashes."""
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(text or ""))
    return "\n\n".join(_example(block) if block.startswith(INDENT) else _flowing(block) for block in blocks)


def examples(text: str | None) -> list[str]:
    """The examples of a docstring, each one line."""
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(text or ""))
    return [" ".join(block.split()) for block in blocks if block.startswith(INDENT)]


def _flowing(block: str) -> str:
    return " ".join(line.strip() for line in block.splitlines())


def _example(block: str) -> str:
    line = INDENT + _flowing(block)
    lines = []
    while len(line) > WIDTH:
        at = _break_before(line)
        if at < 0:
            break
        lines.append(line[:at] + " \\")
        line = 2 * INDENT + line[at + 1 :]
    return "\n".join([*lines, line])


def _break_before(line: str) -> int:
    """The last blank before an option that leaves room for the backslash; else the last blank outside of quotes."""
    blanks = [
        i for i, letter in enumerate(line[: WIDTH - 1]) if letter == " " and line[:i].count('"') % 2 == 0
    ]
    blanks = [i for i in blanks if i > 2 * len(INDENT) and line[:i].strip()]
    options = [i for i in blanks if line[i + 1] == "-" and line[:i].strip() != "paceline"]
    return max(options or blanks, default=-1)


class Trimmed:
    """A stream for help: no blanks before line ends, since a backslash that a blank follows does not continue a line;
    types, ranges and usage as people write them, and no type beside a flag, which takes no value."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        for shown, meant in _TYPES.items():
            text = text.replace(shown, meant.ljust(len(shown)))
        text = _RANGE.sub(lambda found: f"[x>={found[1]}]".ljust(len(found[0])), text)
        return self._stream.write(_PADDING.sub("", _USAGE.sub(_usage, text)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_TYPES = {
    "<bool>": "", "<str>": "TEXT", "<path>": "PATH", "<int>": "N", "<float>": "NUMBER", "<int range>": "N",
    "<float range>": "NUMBER", "<list[Path]>": "PATH ...", "<list[str]>": "TEXT ...",
}  # fmt: skip
"""Python's names of types, as a reader of help knows them."""
_RANGE = re.compile(r"\[([\d.]+)<=x<=100000000\.0\]")
"""A bound that only keeps nonsense out is none that a reader has to know."""
_USAGE = re.compile(r"(?m)^.*Usage: .*$")
_PADDING = re.compile(r" +(?=(?:\x1b\[[0-9;]*m)*\n)")


def _usage(line: re.Match[str]) -> str:
    """`JOB` instead of `{JOB}`, and dots once where they are part of a name."""
    text = re.sub(r"\{([^{}]*)\}(?:\.\.\.)?", r"\1", line[0])
    return re.sub(r"(\.\.\.\])\.\.\.", r"\1", text)
