"""How far a long command is: bars on a terminal; elsewhere (a log, a pipe) a line now and then, with what is left.

    with ProgressDisplay() as progress:
        points = progress.add("points", 96)
        points.move_to(12)

Off a terminal the first line comes once it is clear that there is much to wait for: short commands say nothing.
"""

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    import rich.progress

FIRST_S = 3.0
"""When a first line is written, if more than `EVERY_S` are left then."""
EVERY_S = 10.0


class ProgressPart:
    """One thing that is counted, of several that may go on at once."""

    def __init__(self, label: str, total: float, done: float) -> None:
        self.label, self.total, self.done = label, total, done
        self.begun = done
        """What was done before it was counted here."""
        self.since = time.monotonic()
        self._bar: tuple[Any, Any] | None = None

    def move_to(self, done: float, total: float | None = None) -> None:
        """So much is done; the total may become known on the way."""
        self.done = done
        if total is not None:
            self.total = total
        if self._bar is not None:
            bars, number = self._bar
            bars.update(number, completed=self.done, total=self.total)

    def advance(self) -> None:
        self.move_to(self.done + 1)

    def show_in(self, bars: "rich.progress.Progress") -> None:
        self._bar = bars, bars.add_task(self.label, total=self.total, completed=int(self.done))

    def left_s(self, now: float) -> float | None:
        """Until it is done, if it goes on as before; None where nothing is known."""
        gained = self.done - self.begun
        if gained <= 0:
            return None
        return (now - self.since) * (self.total - self.done) / gained

    def told(self, now: float) -> str:
        share = self.done / self.total if self.total else 0.0
        left_s = self.left_s(now)
        rest = f", about {in_words(left_s)} left" if left_s is not None and self.done < self.total else ""
        return f"{self.label} {100 * share:.0f} %{rest}"


class ProgressDisplay:
    """Shown while it is entered."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._parts: list[ProgressPart] = []
        self._bars: rich.progress.Progress | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, label: str, total: float, done: float = 0) -> ProgressPart:
        part = ProgressPart(label, total, done)
        self._parts.append(part)
        if self._bars is not None:
            part.show_in(self._bars)
        return part

    def __enter__(self) -> "ProgressDisplay":
        if self._stream.isatty():
            self._bars = _bars(self._stream)
            self._bars.start()
        else:
            self._thread = threading.Thread(target=self._write, name="paceline-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._bars is not None:
            self._bars.stop()
        if self._thread is not None:
            self._thread.join()

    def _write(self) -> None:
        if self._over.wait(FIRST_S):
            return
        if not self._is_long() and self._over.wait(EVERY_S - FIRST_S):
            return
        while True:
            now = time.monotonic()
            told = "; ".join(part.told(now) for part in self._parts if 0 < part.done < part.total)
            print(f"paceline: {told or self._begun(now)}", file=self._stream, flush=True)
            if self._over.wait(EVERY_S):
                return

    def _begun(self, now: float) -> str:
        """For as long as no share is known: what is open, and since when."""
        parts = [part for part in self._parts if part.done < part.total or not part.total]
        if not parts:
            return "at work"
        since_s = now - min(part.since for part in parts)
        return f"at work on {', '.join(part.label for part in parts)} for {in_words(since_s)}"

    def _is_long(self) -> bool:
        now = time.monotonic()
        return any((part.left_s(now) or 0.0) > EVERY_S for part in self._parts)


def _bars(stream: TextIO) -> "rich.progress.Progress":
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description:<15}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Bars(*columns, console=Console(file=stream), transient=True)


def in_words(seconds: float) -> str:
    """A time that is an estimate: `40 s`, `3 min`, `2 h`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"
