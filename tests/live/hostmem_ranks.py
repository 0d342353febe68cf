"""Ranks for the tests of the shared-memory reduction: threads of this process, or processes of their own.

As a script: `hostmem_ranks.py FOLDER RANK RANKS DEEDS` makes one rank that reduces `DEEDS` times and then
waits to be killed."""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from paceline.live.hostmem.group import HostGroup


class Folder:
    """A rendezvous in a folder: one file a key, written whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def set(self, key: str, value: str) -> None:
        path = self.folder / key.replace("/", "-")
        unfinished = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        unfinished.write_text(value)
        unfinished.replace(path)

    def get(self, key: str) -> str:
        path = self.folder / key.replace("/", "-")
        end = time.monotonic() + 60
        while not path.exists():
            if time.monotonic() > end:
                raise TimeoutError(f"nobody set {key}")
            time.sleep(0.005)
        return path.read_text()


def on_ranks(ranks: int, folder: Path, deed: Callable[[HostGroup], Any], piece: int = 64) -> list[Any]:
    """What `deed` gives on each of so many ranks, each a thread; an exception is a result."""
    results: list[Any] = [None] * ranks

    def run(rank: int) -> None:
        group = HostGroup(rank, ranks, Folder(folder), piece=piece)
        try:
            results[rank] = deed(group)
        except Exception as error:
            results[rank] = error
        finally:
            group.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive(), "a rank hangs"
    return results


def main() -> None:
    folder, rank, ranks, deeds = Path(sys.argv[1]), *(int(text) for text in sys.argv[2:5])
    group = HostGroup(rank, ranks, Folder(folder))
    for deed in range(deeds):
        values = np.full(300_000, rank + deed, np.float32)
        group.all_reduce(values, "float32")
        assert (values == sum(range(ranks)) + ranks * deed).all()
    (folder / f"idle-{rank}").touch()
    time.sleep(60)


if __name__ == "__main__":
    main()
