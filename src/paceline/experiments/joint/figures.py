"""The tables of docs/joint.md, from a finished run:

python -m paceline.experiments.joint.figures out/joint docs/joint.md

rewrites what is between the page's two markers.
"""

import csv
import json
import sys
from pathlib import Path

from paceline.experiments.sweep.harness import put_tables

BEGIN = "<!-- figures: joint -->"
_LABELS = {
    "ff": "first-fit",
    "sjf-bco": "SJF-BCO",
    "bco-plus": "bco-plus",
    "ring": "ring",
    "atp": "ATP",
    "esa": "ESA",
}


def summary_table(folder: Path) -> str:
    """The figures that scripts read."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    lines = ["| figure | ours | where |", "|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| `{key}` | {entry['ours']} | {entry['setting']} |" for key, entry in summary.items())]
    )


def cells_tables(folder: Path) -> str:
    """Every combination, a table for each topology; "times" are against first-fit with ATP."""
    rows = _read(folder / "combinations.csv")
    tables = []
    for topology in dict.fromkeys(row["topology"] for row in rows):
        lines = [
            f"| {topology} | avg JCT, ms | times | worst workload | makespan, ms | times |",
            "|---|---|---|---|---|---|",
        ]
        for row in rows:
            if row["topology"] == topology:
                name = ", ".join([_LABELS[row["planner"]], _LABELS[row["exchange"]]])
                name += "" if row["straggler"] == "off" else f", {row['straggler']}"
                cells = [
                    _number(row["avg_jct_ms"], 1),
                    _number(row["avg_jct_gain"], 2),
                    _number(row["avg_jct_gain_min"], 2),
                    _number(row["makespan_ms"], 1),
                    _number(row["makespan_gain"], 2),
                ]
                lines.append(f"| {name} | {' | '.join(cells)} |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def ideas_table(folder: Path) -> str:
    """What one idea gives, alone and on top of the others."""
    lines = [
        "| what one idea gives | avg JCT, alone | last | makespan, alone | last |",
        "|---|---|---|---|---|",
    ]
    for row in _read(folder / "ideas.csv"):
        idea, *figures = row.values()
        lines.append(f"| {idea} | {' | '.join(_number(figure, 2) for figure in figures)} |")
    return "\n".join(lines)


def _read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def _number(text: str, digits: int) -> str:
    return f"{float(text):.{digits}f}" if text else "-"


def write(folder: Path, page: Path) -> None:
    """Put the tables into the page."""
    put_tables(page, BEGIN, summary_table(folder), cells_tables(folder), ideas_table(folder))


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
