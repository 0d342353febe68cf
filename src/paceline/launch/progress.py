"""Progress of a job, as it tells it: one JSON object with any of `iteration`, `rate`, `path`, and more if it likes.

A job may print a line `PACELINE_STATUS {"iteration": 12, "rate": 3.4, "path": "switch"}`, or write the object
to the file that the variable PACELINE_STATUS names (the last whole line counts). Rank 0 speaks for the job. What
does not parse is not progress, and no error.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFIX = "PACELINE_STATUS "
PATHS = ("switch", "custodian", "ring")
"""What a path is called; `gloo` is the ring. Others (`host`: within one machine) are kept as they are told."""
PATH_LENGTH_MAX = 24
CHUNK_BYTES = 1 << 20
LINE_BYTES_MAX = 1 << 16


@dataclass(frozen=True)
class Progress:
    """The last that a job told."""

    iteration: float | None
    rate: float | None
    path: str | None
    all: dict[str, Any]

    @property
    def rest(self) -> dict[str, Any]:
        return {key: value for key, value in self.all.items() if key not in ("iteration", "rate", "path")}


def parse(text: str) -> Progress | None:
    """The progress of one line without its prefix; None if it is none."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    return Progress(_number(data.get("iteration")), _number(data.get("rate")), _path(data.get("path")), data)


def _path(value: object) -> str | None:
    if not isinstance(value, str) or not 0 < len(value) <= PATH_LENGTH_MAX or not value.isprintable():
        return None
    return "ring" if value == "gloo" else value


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


class Tail:
    """Follows rank 0's log and status file of one attempt."""

    def __init__(self, folder: Path) -> None:
        self.log, self.status = folder / "rank-0.log", folder / "status-0"
        self._offset = 0
        self._rest = b""
        self._status_seen = b""

    def read(self) -> Progress | None:
        """The newest progress since the last call, if there is any; a long log is read in pieces."""
        newest = None
        while lines := self._log_lines():
            for line in lines:
                if line.startswith(PREFIX):
                    newest = parse(line[len(PREFIX) :]) or newest
        return self._from_status() or newest

    def _log_lines(self) -> list[str]:
        try:
            with self.log.open("rb") as file:
                file.seek(self._offset)
                data = file.read(CHUNK_BYTES)
        except OSError:
            return []
        self._offset += len(data)
        *whole, rest = (self._rest + data).split(b"\n")
        # A line without an end must not grow in memory for ever; it is no progress line of ours.
        self._rest = rest if len(rest) <= LINE_BYTES_MAX else b""
        return [line.decode(errors="replace") for line in whole]

    def _from_status(self) -> Progress | None:
        try:
            data = self.status.read_bytes()[-LINE_BYTES_MAX:]
        except OSError:
            return None
        if data == self._status_seen:
            return None
        self._status_seen = data
        for line in reversed(data.decode(errors="replace").splitlines()):
            found = parse(line.removeprefix(PREFIX))
            if found is not None:
                return found
        return None
