"""One planner a run: the folder's lock, which the kernel gives back when its holder dies, however it dies."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from paceline.errors import UserError


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the run's lock, or tell who does."""
    path = folder / "lock"
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            who = file.read().strip()
            raise UserError(
                f"in use by a planner that is alive{f' (process {who})' if who else ''}", place=str(folder)
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
