"""What commands print and write: tables on a terminal, documents as JSON."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

JsonFile = Annotated[
    str,
    typer.Option("--json", metavar="[FILE|-]", help="Write JSON to a file; - or nothing: to stdout, alone."),
]
"""`--json` of every command: with a file both, the file and the text for people; else nothing but JSON."""

_GAP = 2
"""Between two columns."""
Legend = Annotated[bool, typer.Option("--legend", help="Explain the columns of the tables below them.")]
"""`--legend` of every command that prints a table."""


def with_json_target(arguments: Sequence[str]) -> list[str]:
    """`--json` without a value means standard output; arguments after `--` are the user's own."""
    found: list[str] = []
    for i, argument in enumerate(arguments):
        if argument == "--":
            return [*found, *arguments[i:]]
        found.append(argument)
        following = arguments[i + 1] if i + 1 < len(arguments) else "--"
        if argument == "--json" and following.startswith("-") and following != "-":
            found.append("-")
    return found


def page_console(columns: int) -> "Console":
    """Standard output: as wide as its terminal, and `columns` wide where it is none."""
    from rich.console import Console

    return Console(width=None if Console().is_terminal else columns, highlight=False)


def print_table(
    console: "Console", columns: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1
) -> None:
    """A table without lines; the first `texts` columns are words, the others numbers.

    On a narrow terminal it comes in parts, one below the other, so that no number is broken.
    """
    from rich.markup import escape
    from rich.table import Table

    all_rows = list(rows)
    need = [
        max(len(column), *(len(row[i]) for row in all_rows), 0) if all_rows else len(column)
        for i, column in enumerate(columns)
    ]
    for k, part in enumerate(parts_that_fit(need, console.width, texts)):
        table = Table(box=None, pad_edge=False)
        for i in part:
            table.add_column(escape(columns[i]), justify="left" if i < texts else "right", overflow="fold")
        for row in all_rows:
            table.add_row(*(escape(row[i]) for i in part))
        if k:
            console.print()
        console.print(table)


def parts_that_fit(need: Sequence[int], width: int, texts: int) -> list[list[int]]:
    """Columns by part: the words again in each, and as many numbers as there is room for."""
    words = list(range(texts))
    taken = sum(need[:texts]) + _GAP * texts
    if 2 * taken > width:
        return [list(range(len(need)))]  # words fold
    parts, room = [list(words)], width - taken
    for i in range(texts, len(need)):
        if need[i] > room and len(parts[-1]) > texts:
            parts.append(list(words))
            room = width - taken
        parts[-1].append(i)
        room -= need[i] + _GAP
    return parts


def print_legend(console: "Console", columns: Sequence[str]) -> None:
    """What the columns of a table mean, below it."""
    from paceline.report.columns import legend

    console.print()
    for column, meaning in legend(columns):
        console.print(f"{column}: {meaning}", style="dim", markup=False)


def finite(param: typer.CallbackParam, value: float | None) -> float | None:
    """Of an option that takes a number: NaN is within any bounds, and infinity within one."""
    if value is not None and not math.isfinite(value):
        from paceline.errors import UserError

        raise UserError(f"{value} is not a finite number", place=param.opts[0])
    return value


def write_json(where: str, document: object) -> None:
    """Write a document to a file, whose folder is made, or to standard output for `-`."""
    import json

    from paceline.errors import UserError

    text = json.dumps(document, indent=1)
    if where == "-":
        typer.echo(text)
        return
    path = Path(where)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror or error}", place=where) from None
