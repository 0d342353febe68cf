"""Processors of an emulated server: control groups with a quota of processor time, where the kernel lets us make them.

A group is made inside the one that we are in: `cpu.max` of version 2, or `cpu.cfs_quota_us` of version 1. Its name
carries the keeper of the enclosure (`enclosure.py`), by process id and start time, since a group outlives its
processes: the keeper removes its groups when the run ends, and the next keeper those of keepers that were killed.
"""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from paceline.emulation.namespaces import is_ours, maker_lives, own_name

KEEPER = "PACELINE_KEEPER"
"""In the environment of whatever is enclosed: the beginning of its groups' names."""
GROUP = "PACELINE_CPU_GROUP"
"""In the environment of a rank: the file by which it joins its server's group."""
PERIOD_US = 10_000
_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class ProcessorGroup:
    """A group that exists."""

    path: Path

    @property
    def door(self) -> Path:
        """A process that writes 0 here is in."""
        return self.path / "cgroup.procs"

    def command(self) -> list[str]:
        """What goes before a command to run it in the group; it keeps its process id."""
        return ["/bin/sh", "-c", 'echo 0 > "$0" && exec "$@"', str(self.door)]


def limit(server: str, cpus: float) -> ProcessorGroup:
    """A group for a server that gets so many processors; OSError with its reason where that cannot be had."""
    group = ProcessorGroup(parent() / f"{os.environ.get(KEEPER) or own_name('')}{server}")
    group.path.mkdir(exist_ok=True)
    quota = max(1000, round(cpus * PERIOD_US))
    try:
        if (group.path / "cpu.max").exists():
            (group.path / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (group.path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group.path / "cpu.cfs_quota_us").write_text(str(quota))
    except OSError:
        group.path.rmdir()
        raise
    return group


def remove_leftovers() -> list[str]:
    """Remove the groups of keepers that are gone; their names."""
    try:
        return _remove([path for path in _groups(parent()) if not maker_lives(path.name)])
    except OSError:
        return []


def remove_own(keeper: str, folder: Path) -> None:
    """Remove the groups of a keeper; `folder` is its `parent`, asked for before /proc was that of the enclosure."""
    _remove([path for path in _groups(folder) if path.name.startswith(keeper)])


def _remove(todo: list[Path], limit_s: float = 2.0) -> list[str]:
    """Processes that were killed may be in a group for a moment longer. One that stays is for the next keeper."""
    removed: list[str] = []
    until = time.monotonic() + limit_s
    while todo:
        for path in list(todo):
            with contextlib.suppress(OSError):
                path.rmdir()
                todo.remove(path)
                removed.append(path.name)
        if time.monotonic() > until:
            break
        if todo:
            time.sleep(0.02)
    return removed


def _groups(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir() and is_ours(path.name)]
    except OSError:
        return []


def parent() -> Path:
    """The group that we are in, of the version that limits processors here."""
    lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return _V1 / path.lstrip("/")
    unified = next((line.split(":", 2)[2] for line in lines if line.startswith("0::")), "/")
    return _V2 / unified.lstrip("/")
