"""How long this job is expected to take from now on, by the planner's latest word.

`paceline run` writes the expected remaining seconds into a file at every plan (PACELINE_REMAINING_FILE), so that a
job's priority in the switch follows the schedule while it runs. The file's own time says when the word was given: all
ranks that read it expect the same end. Without a file, PACELINE_REMAINING_S counts from when the group was made.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

from paceline.torch.settings import Settings

LOOK_S = 1.0
"""At most so often is the file looked at."""
LEAST_S = 1.0
"""A job that is late is not infinitely urgent."""


class Expected:
    """The end that is expected for this job; `remaining_s` is None where nobody has told."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self._file, self._clock = settings.remaining_file, clock
        self._ends = None if settings.remaining_s is None else clock() + settings.remaining_s
        self._looked, self._written_ns = float("-inf"), -1

    def remaining_s(self) -> float | None:
        """Seconds that are left."""
        now = self._clock()
        if self._file and now - self._looked >= LOOK_S:
            self._looked = now
            self._read()
        return None if self._ends is None else max(LEAST_S, self._ends - now)

    def _read(self) -> None:
        try:
            with Path(self._file).open(encoding="ascii") as file:
                written_ns = os.fstat(file.fileno()).st_mtime_ns
                if written_ns != self._written_ns:
                    self._ends = written_ns / 1e9 + float(file.read())
                    self._written_ns = written_ns
        except (OSError, ValueError):
            pass  # what was known stays: a planner may be gone for good
