"""Sweeps: points run in parallel, here or on a Ray cluster, and go on where they stopped; their rows as CSV.

A point is a plain, picklable value that carries its own seed, so the result depends neither on the number of
processes nor on their order nor on the machine: local processes, a Ray cluster and a resumed sweep give the
same rows, bit for bit.

Finished points are on disk, one line a point, in a file that is only ever appended to. A line's key is a hash of the
function, of the point with all its settings, and of every source that the function can reach
(`paceline.compile.sources`): a point of other settings or of other code is another point. A line that a kill has
torn is dropped; its point runs again.
"""

import csv
import fcntl
import functools
import hashlib
import json
import multiprocessing
import os
import platform
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from paceline.compile.sources import tree
from paceline.errors import UserError
from paceline.progress import ProgressDisplay

FILE_NAME = "points.jsonl"
_LIBRARIES = ("numpy", "numba", "ortools")

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
    weight: Callable[[P], float] | None = None,
) -> list[R]:
    """`function` of every point, in the points' order; how far it is is shown.

    `function` is at the top level of a module, and its result is made of what JSON knows. `prepare` is called once
    if anything is to be run on this machine, e.g. to compile before processes start. With `weight` the heaviest
    points run first: no process is left alone with a long one at the end.
    """
    results: list[Any] = [None] * len(points)
    with ExitStack() as stack:
        done = stack.enter_context(DoneFile(sweep.folder, sweep.resume)) if sweep.folder else None
        keys = [key_of(function, point) for point in points]
        to_do = [i for i in range(len(points)) if done is None or keys[i] not in done]
        if weight is not None:
            to_do.sort(key=lambda i: weight(points[i]), reverse=True)
        for i in set(range(len(points))).difference(to_do):
            assert done is not None
            results[i] = done[keys[i]]
        progress = stack.enter_context(ProgressDisplay())
        part = progress.add(label, len(points), len(points) - len(to_do))
        for number, result in _run(function, [points[i] for i in to_do], sweep, prepare):
            i = to_do[number]
            results[i] = as_stored(result)
            if done is not None:
                done.add(keys[i], results[i])
            part.advance()
    return results


def _run(
    function: Callable[[P], R], points: Sequence[P], sweep: Sweep, prepare: Callable[[], object] | None
) -> Iterator[tuple[int, R]]:
    """`(number, result)` of every point, as they come."""
    if not points:
        return
    if sweep.ray is not None:
        from paceline.experiments.on_ray import run_on_ray

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


@functools.cache
def sources_hash(function: Callable[..., Any]) -> str:
    """Of the code that the function's results depend on: ours, and the versions of what computes for it."""
    digest = hashlib.sha256(platform.python_version().encode())
    digest.update(tree().key(Path(function.__code__.co_filename).resolve()).encode())
    for name in _LIBRARIES:
        try:
            digest.update(f"{name} {metadata.version(name)}\n".encode())
        except metadata.PackageNotFoundError:
            digest.update(f"{name} is not there\n".encode())
    return digest.hexdigest()


def key_of(function: Callable[..., Any], point: Any) -> str:
    """The name under which a point's result is kept."""
    shown = repr(point)
    if " at 0x" in shown:
        raise TypeError(
            f"a point must show all that it is made of, as a dataclass does; this one shows {shown}"
        )
    text = f"{function.__module__}.{function.__qualname__}\n{shown}\n{sources_hash(function)}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def as_stored(result: Any) -> Any:
    """The result as the file would give it back: a sweep gives the same values, resumed or not."""
    return json.loads(json.dumps(result, default=_plain))


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a point's result is made of plain values, not of {type(value).__name__}")


class DoneFile:
    """The finished points of the folder; one sweep at a time may hold it."""

    def __init__(self, folder: Path, resume: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / FILE_NAME
        self._file = self.path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UserError("another sweep is writing here; give another --out", place=str(folder)) from None
        self._results: dict[str, Any] = {}
        whole = self._read() if resume else 0
        self._file.truncate(whole)

    def _read(self) -> int:
        """Take in every whole line; how many bytes of the file are whole lines."""
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        for line in content[:whole].splitlines():
            try:
                entry = json.loads(line)
                self._results[entry["key"]] = entry["result"]
            except (ValueError, KeyError, TypeError):
                continue
        return whole

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def __getitem__(self, key: str) -> Any:
        return self._results[key]

    def add(self, key: str, result: Any) -> None:
        """One line, in the system's hands before this returns."""
        self._results[key] = result
        self._file.write(json.dumps({"key": key, "result": result}).encode() + b"\n")
        self._file.flush()

    def __enter__(self) -> "DoneFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


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
