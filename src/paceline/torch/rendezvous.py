"""Who is on which host: ranks meet in the job's Store and see the same picture.

A *worker* is one flow of the network: the ranks of one host that reduce in shared memory, spoken for by the
first of them; or a single rank. Workers are numbered by their first rank."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store


class StorePrefix:
    """A part of the job's Store with a connection of its own: another thread's long wait does not hold it up."""

    def __init__(self, store: Store, prefix: str, timeout_s: float) -> None:
        own: Any = store  # torch's annotations leave `clone` out
        with suppress(RuntimeError, AttributeError):  # a Store without a connection cannot be cloned
            own = own.clone()
        self._store = PrefixStore(prefix, own)
        self._lock = threading.Lock()
        self.timeout_s = timeout_s

    def set(self, key: str, value: str) -> None:
        """Publish a value."""
        with self._lock:
            self._store.set(key, value)

    def ready(self, key: str) -> bool:
        """Has somebody set it?"""
        with self._lock:
            return bool(self._store.check([key]))

    def read(self, key: str) -> str:
        """A value that is known to be there."""
        with self._lock:
            return str(self._store.get(key).decode())

    def add(self, key: str, by: int = 1) -> int:
        """Add to a counter; what it is now."""
        with self._lock:
            return int(self._store.add(key, by))

    def get(self, key: str, timeout_s: float | None = None, watch: Callable[[], None] | None = None) -> str:
        """A value, once there is one; `watch` may raise meanwhile. `TimeoutError` names the key."""
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        end = time.monotonic() + limit_s
        pause_s = 0.001
        while not self.ready(key):
            if watch is not None:
                watch()
            if time.monotonic() > end:
                raise TimeoutError(f"nobody set {key} in the job's store within {limit_s:g} s")
            time.sleep(pause_s)
            pause_s = min(0.05, pause_s * 1.5)
        return self.read(key)

    def part(self, prefix: str) -> "StorePrefix":
        """The keys below a further prefix, on the same connection."""
        below = StorePrefix.__new__(StorePrefix)
        below._store = PrefixStore(prefix, self._store)
        below._lock, below.timeout_s = self._lock, self.timeout_s
        return below


@dataclass(frozen=True)
class RankPlace:
    """A rank's place: its worker, and the ranks that share its host's memory."""

    rank: int
    ranks: int
    worker: int
    first_ranks: tuple[int, ...]
    """Of each worker: the rank that speaks for it."""
    local: tuple[int, ...]
    """The ranks of this worker, in order."""

    @property
    def workers(self) -> int:
        return len(self.first_ranks)

    @property
    def local_rank(self) -> int:
        return self.local.index(self.rank)


def rank_place(rank: int, identities: list[str]) -> RankPlace:
    """Where `rank` is, when rank i is on the host `identities[i]`."""
    hosts: dict[str, list[int]] = {}
    for other, identity in enumerate(identities):
        hosts.setdefault(identity, []).append(other)
    groups = sorted(hosts.values())
    worker = next(i for i, group in enumerate(groups) if rank in group)
    return RankPlace(
        rank, len(identities), worker, tuple(group[0] for group in groups), tuple(groups[worker])
    )


def find_rank_place(keys: StorePrefix, rank: int, ranks: int, identity: str, host_reduce: bool) -> RankPlace:
    """Tell the others where this rank is, and learn where they are; one rank that does not share, and none does."""
    keys.set(f"host/{rank}", ("1" if host_reduce else "0") + identity)
    answers = [keys.get(f"host/{other}") for other in range(ranks)]
    together = all(answer.startswith("1") for answer in answers)
    identities = [answer[1:] if together else f"{other} {answer[1:]}" for other, answer in enumerate(answers)]
    return rank_place(rank, identities)
