"""What an attempt said: its logs by rank, and the last line of the rank that ended it, which mostly says why."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.whole_files import last_bytes

TAIL_BYTES = 1 << 16
END_BYTES = 1 << 15
LINE_LENGTH_MAX = 240
_OURS = ("PACELINE_STATUS ", "PACELINE_BACKEND ")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
_RANK = re.compile(r"rank-(\d+)\.log")


@dataclass(frozen=True)
class LastLine:
    """The last that a rank wrote, and where."""

    rank: int
    text: str
    path: Path

    def __str__(self) -> str:
        return f'rank {self.rank} wrote last: "{self.text}" ({self.path})'


def attempt_folder(run: Path, job: str, attempt: int) -> Path:
    """Where the files of an attempt are."""
    return run / "attempts" / f"{job}.{attempt}"


def logs_of(folder: Path) -> dict[int, Path]:
    """The logs of an attempt, by rank."""
    found = {
        int(match.group(1)): path
        for path in folder.glob("rank-*.log")
        if (match := _RANK.fullmatch(path.name)) is not None
    }
    return dict(sorted(found.items()))


def last_line(folder: Path) -> LastLine | None:
    """Of the rank that ended first and badly; where that was not written down, of the rank that fell silent first."""
    logs = logs_of(folder)
    silent = sorted(logs, key=lambda rank: _changed(logs[rank]))
    for rank in dict.fromkeys([*_failed_ranks(folder), *silent]):
        if rank in logs and (texts := tail(logs[rank], 1)):
            return LastLine(rank, texts[0].strip(), logs[rank])
    return None


def why_it_failed(run: Path, job: dict[str, Any]) -> LastLine | None:
    """The last line of a job's last attempt, if the job failed and has one."""
    if job["state"] != "failed" or not job["attempt"]:
        return None
    return last_line(attempt_folder(run, job["name"], job["attempt"]))


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _failed_ranks(folder: Path) -> list[int]:
    """In the order in which they ended, by the supervisor's verdict; ranks that it had to end come after."""
    try:
        ranks = json.loads((folder / "exit.json").read_text(encoding="utf-8"))["ranks"]
        return [int(rank) for rank, code in ranks.items() if code]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def end_of(path: Path, most_bytes: int = END_BYTES) -> str:
    """The end of a log as it was written, from the start of a line."""
    data, is_whole = last_bytes(path, most_bytes)
    return (data if is_whole else data.partition(b"\n")[2]).decode(errors="replace")


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a log that say something, without what steers terminals."""
    data, _ = last_bytes(path, TAIL_BYTES)
    texts = [_CONTROL.sub("", line).rstrip() for line in data.decode(errors="replace").splitlines()]
    said = [text for text in texts if text and not text.startswith(_OURS)]
    return [
        text if len(text) <= LINE_LENGTH_MAX else text[:LINE_LENGTH_MAX] + "..." for text in said[-lines:]
    ]
