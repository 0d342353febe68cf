"""What every experiment shares: points run in parallel processes, with progress; CSV; the summary.

A point is a plain, picklable value that carries its own seed, so the result does not depend on the number
of processes or on their order.
"""

import csv
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

P = TypeVar("P")
R = TypeVar("R")


def run_points(
    function: Callable[[P], R], points: Sequence[P], label: str, processes: int | None = None
) -> list[R]:
    """`function` of every point, in the points' order, on all cores (or `processes`), with a progress bar."""
    count = min(processes or os.cpu_count() or 1, max(1, len(points)))
    if count == 1:
        return list(_progress(map(function, points), len(points), label))
    # Spawn: the workers start clean, whatever threads the caller runs.
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        return list(_progress(pool.imap(function, points), len(points), label))


def _progress(results: Iterator[R], total: int, label: str) -> Iterator[R]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(label, total=total)
        for result in results:
            progress.advance(task)
            yield result


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows with the same keys, as a CSV file with a header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def write_summary(directory: Path, summary: Mapping[str, Mapping[str, Any]]) -> None:
    """`summary.json`: an object of `{paper, ours, setting}` objects, for scripts."""
    for key, entry in summary.items():
        assert set(entry) == {"paper", "ours", "setting"}, key
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
