"""Manual pages from the help texts: `python -m paceline.manual FOLDER`.

It writes `paceline.1`, `paceline-run.1`, and so on. They say what `--help` says, for `man`. Nothing is written twice: a
page is made of a command's docstring and options.
"""

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import typer.main

from paceline import __version__
from paceline.cli import app

SECTION = "1"


def pages() -> dict[str, str]:
    """The text of each page by its file's name."""
    root = typer.main.get_command(app)
    found = {f"paceline.{SECTION}": _page("paceline", root, list(_commands(root)))}
    for name, command in _commands(root).items():
        below = _commands(command)
        found[f"paceline-{name}.{SECTION}"] = _page(
            f"paceline {name}", command, [f"{name} {each}" for each in below]
        )
        for inner, each in below.items():
            found[f"paceline-{name}-{inner}.{SECTION}"] = _page(f"paceline {name} {inner}", each, [])
    return found


def write(folder: Path) -> list[Path]:
    """Write all pages; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
        written.append(folder / name)
    return written


def _commands(command: Any) -> dict[str, Any]:
    found: dict[str, Any] = getattr(command, "commands", {})
    return found


def _page(name: str, command: Any, below: list[str]) -> str:
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(command.help or ""))
    short = blocks[0].replace("\n", " ").rstrip(".")
    title = name.replace(" ", "-")
    lines = [
        f'.TH "{title.upper()}" "{SECTION}" "" "paceline {__version__}" "Paceline"',
        ".SH NAME", f"{_plain(title)} \\- {_plain(short)}",
        ".SH SYNOPSIS", f".B {_plain(name)}", _plain(_usage(command)),
        ".SH DESCRIPTION", _plain(blocks[0]),
    ]  # fmt: skip
    for block in blocks[1:]:
        if block.strip() == "Examples:":
            lines.append(".SH EXAMPLES")
        elif block.startswith("  "):
            lines += [".PP", ".nf", *(_plain(line) for line in block.splitlines()), ".fi"]
        else:
            lines += [".PP", _plain(block)]
    lines.append(".SH OPTIONS")
    for parameter in command.params:
        lines += [".TP", _name_of(parameter), _plain(_help_of(parameter))]
    if below:
        lines.append(".SH COMMANDS")
        for each in below:
            lines += [".TP", f".B {_plain(each)}", f"See paceline\\-{each.replace(' ', '-')}({SECTION})."]
    return "\n".join([*lines, ""])


def _argument(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _usage(command: Any) -> str:
    arguments = [_argument(p) for p in command.params if p.param_type_name == "argument"]
    return " ".join(["[OPTIONS]", *arguments, *(["COMMAND"] if _commands(command) else [])])


def _name_of(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f".I {_plain(_argument(parameter))}"
    names = ", ".join(parameter.opts + parameter.secondary_opts)
    value = "" if getattr(parameter, "is_flag", False) else f" {parameter.metavar or 'VALUE'}"
    return f".B {_plain(names + value)}"


def _help_of(parameter: Any) -> str:
    text = str(getattr(parameter, "help", "") or "")
    default = parameter.default
    shown = default not in (None, "", False, ()) and not callable(default) and "efault" not in text
    return f"{text} Default: {default}." if shown and parameter.param_type_name == "option" else text or "-"


def _plain(text: str) -> str:
    """Text in which nothing is taken for a request or an escape of troff."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in text.splitlines())


if __name__ == "__main__":
    for path in write(Path(sys.argv[1] if len(sys.argv) > 1 else "dist/man")):
        print(path)
