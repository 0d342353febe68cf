"""Which process is which: by process id and start time, so that a reused id is never taken for the old process.

Standard library only: the supervisor imports it, and starts once for each job.
"""

import contextlib
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PROC = Path("/proc")


def boot_id() -> str:
    """Differs from one start of the machine to the next; start times count from there."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> tuple[str, int] | None:
    """State letter and start time in clock ticks, or None if there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in brackets may hold anything, brackets included.
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[19])


def identity(pid: int) -> dict[str, Any] | None:
    """What tells this process from every other, here and after a restart; None if it is gone."""
    found = _stat(pid)
    if found is None:
        return None
    return {"pid": pid, "start": found[1], "boot": boot_id(), "host": socket.gethostname()}


def alive(who: Mapping[str, Any]) -> bool:
    """Whether exactly this process still runs; one that has ended and waits for its parent does not."""
    found = _stat(int(who["pid"]))
    return (
        found is not None and found[0] not in "ZX" and found[1] == who["start"] and who["boot"] == boot_id()
    )


def send(who: Mapping[str, Any], number: int) -> bool:
    """Signal exactly this process; False if it is gone."""
    if not alive(who):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(who["pid"]), number)
        return True
    return False


def marked(name: str, value: str) -> list[int]:
    """The processes that have `name=value` in the environment they were started with, but for this one."""
    wanted = f"{name}={value}".encode()
    found = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in variables:
            found.append(int(entry.name))
    return found


def kill_marked(name: str, value: str) -> int:
    """Kill what is left of an attempt whose supervisor died; returns how many processes it was."""
    killed: set[int] = set()
    for _ in range(20):
        # Again until none is new: one of them may just have started another.
        left = set(marked(name, value)) - killed
        if not left:
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= left
    return len(killed)
