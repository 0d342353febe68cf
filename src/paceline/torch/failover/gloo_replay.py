"""Reductions over Gloo, between two generations of agents: from the first that a worker has no result of, in order."""

import threading
import time
from collections.abc import Callable

import numpy as np
from torch.distributed import DistBackendError

from paceline.live.agent.handle import TensorMismatchError
from paceline.torch.failover.gloo_carrier import GlooCarrier
from paceline.torch.failover.heartbeat import DEAD_S
from paceline.torch.failover.pending import Ledger
from paceline.torch.rendezvous import Keys

LOOK_S = 0.25


class Detour:
    """One worker's side; `seq` is the next reduction that goes over Gloo."""

    def __init__(self, carrier: GlooCarrier, ledger: Ledger, lock: threading.RLock) -> None:
        self._carrier, self._ledger, self._lock = carrier, ledger, lock
        self.seq = 0

    def agree(self, keys: Keys, workers: int, watch: Callable[[], None]) -> int:
        """All say where they are (`at/`); all begin where the one is that has the fewest results.

        `watch` is called meanwhile, and raises where waiting is in vain.
        """
        self.seq = min(int(keys.get(f"at/{other}", watch=watch)) for other in range(workers))
        return self.seq

    def step(self, ready: bool, watch: Callable[[], None], ended: Callable[[bool], None]) -> bool:
        """Do the next reduction, if it has been submitted; `ready`: this worker could leave after it.

        `ended(all_ready)` is called under the lock when it has its result. If Gloo fails, `watch` raises why.
        """
        with self._lock:
            entry = self._ledger.get(self.seq)
        if entry is None:
            return False
        source = entry.array if entry.kept is None else entry.kept
        target = np.empty_like(entry.array) if entry.done else entry.array
        try:
            all_ready = self._carrier.reduce(source, entry.kind, entry.op, target, ready, entry.timeout_s)
        except TensorMismatchError as error:
            raise DistBackendError(str(error)) from error
        except RuntimeError as error:
            raise _blame(str(error), watch) from error
        self.seq += 1
        with self._lock:
            done_before, entry.done = entry.done, True
            self._ledger.finish(entry)
            ended(all_ready)
        if not done_before:
            entry.tell(None)
        return True


def _blame(reason: str, watch: Callable[[], None]) -> DistBackendError:
    """Gloo failed too: find out who is gone (that is raised), or end without a name."""
    end = time.monotonic() + DEAD_S + 4.0
    while time.monotonic() < end:
        watch()
        time.sleep(LOOK_S)
    return DistBackendError(f"neither agents nor Gloo can reduce: {reason}")
