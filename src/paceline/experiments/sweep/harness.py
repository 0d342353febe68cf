"""What every experiment shares: points run in parallel, here or on a cluster, and go on where they stopped; CSV.

A point is a plain, picklable value that carries its own seed, so the result depends neither on the number of
processes nor on their order nor on the machine: local processes, a Ray cluster and a resumed sweep give the
same rows, bit for bit.
"""

import csv
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from paceline.errors import UserError
from paceline.experiments.sweep.done import DoneFile, as_stored, key_of

P = TypeVar("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Sweep:
    """How a sweep's points are run; what they give does not depend on it."""

    processes: int | None = None
    """On this machine; None: one a core."""
    ray: str | None = None
    """The address of a Ray cluster that runs the points instead."""
    folder: Path | None = None
    """Where finished points are written as they come; None: nowhere."""
    resume: bool = False
    """Take finished points from the folder."""


HERE = Sweep()
"""All cores of this machine, nothing written down."""


def run_points(
    function: Callable[[P], R],
    points: Sequence[P],
    label: str,
    sweep: Sweep = HERE,
    prepare: Callable[[], object] | None = None,
) -> list[R]:
    """`function` of every point, in the points' order, with a progress bar.

    `function` is at the top level of a module, and its result is made of what JSON knows. `prepare` is called once
    if anything is to be run on this machine, e.g. to compile before processes start.
    """
    results: list[Any] = [None] * len(points)
    with ExitStack() as stack:
        done = stack.enter_context(DoneFile(sweep.folder, sweep.resume)) if sweep.folder else None
        keys = [key_of(function, point) for point in points]
        to_do = [i for i in range(len(points)) if done is None or keys[i] not in done]
        for i in set(range(len(points))).difference(to_do):
            assert done is not None
            results[i] = done[keys[i]]
        advance = stack.enter_context(_Progress(label, len(points), len(points) - len(to_do)))
        for number, result in _run(function, [points[i] for i in to_do], sweep, prepare):
            i = to_do[number]
            results[i] = as_stored(result)
            if done is not None:
                done.add(keys[i], results[i])
            advance()
    return results


def _run(
    function: Callable[[P], R], points: Sequence[P], sweep: Sweep, prepare: Callable[[], object] | None
) -> Iterator[tuple[int, R]]:
    """`(number, result)` of every point, as they come."""
    if not points:
        return
    if sweep.ray is not None:
        from paceline.experiments.sweep.on_ray import run_on_ray

        yield from run_on_ray(function, points, sweep.ray)
        return
    if prepare is not None:
        prepare()
    count = min(sweep.processes or os.cpu_count() or 1, len(points))
    if count == 1:
        yield from enumerate(map(function, points))
    else:
        yield from _run_in_processes(function, points, count)


def _run_in_processes(function: Callable[[P], R], points: Sequence[P], count: int) -> Iterator[tuple[int, R]]:
    # Spawn: the workers start clean, whatever threads the caller runs.
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=_obey_parent)
    try:
        number_of = {pool.submit(function, point): number for number, point in enumerate(points)}
        for future in as_completed(number_of):
            yield number_of[future], future.result()
    except BrokenProcessPool:
        raise UserError(
            "a process of the sweep was killed (out of memory?); go on with --resume, and fewer --jobs"
        ) from None
    except BaseException:
        # Points may take minutes, and nobody waits for them any more.
        for child in set(multiprocessing.active_children()).difference(before):
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _obey_parent() -> None:
    """Ctrl-C goes to everyone on the terminal, and the parent alone acts on it; when it is gone, so are we."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


class _Progress:
    """A bar on a terminal, nothing elsewhere; entering gives the function that moves it on."""

    def __init__(self, label: str, total: int, done: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task(label, total=total, completed=done)

    def __enter__(self) -> Callable[[], None]:
        self._bar.start()
        return lambda: self._bar.advance(self._task)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


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


END_OF_TABLES = "<!-- end of figures -->"


def put_tables(page: Path, begin: str, *tables: str) -> None:
    """Renew the tables of a docs page: replace what stands between the marker `begin` and `END_OF_TABLES`."""
    before, rest = page.read_text(encoding="utf-8").split(begin)
    after = rest.split(END_OF_TABLES)[1]
    body = "\n\n".join([begin, *tables, END_OF_TABLES])
    page.write_text(before + body + after, encoding="utf-8")
