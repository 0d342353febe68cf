"""Who is alive: connections that break, every worker's heartbeat in the job's Store, and the last word of whoever
found somebody dead.

Both are looked at only when something takes long. A worker whose connection has broken (`lifelines`), or whose
heartbeat has not moved for `DEAD_S` while somebody waits for it, is taken for dead, and everyone is told so, with its
rank. Heartbeats come from a thread of their own; they also say how far each worker is."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from torch.distributed import DistBackendError

from paceline.torch.failover.lifelines import Lifelines
from paceline.torch.rendezvous import Keys

BEAT_S = 1.0
DEAD_S = 20.0
_LAST_WORD = "dead"


class PeerLostError(DistBackendError):
    """A rank of the group is gone; the text names it."""


class Peers:
    """One worker's view of the others."""

    def __init__(
        self,
        keys: Keys,
        worker: int,
        leaders: tuple[int, ...],
        lifelines: Lifelines,
        submitted: Callable[[], int],
        lost: Callable[[PeerLostError], None],
    ) -> None:
        """`submitted()` is how far this worker is; `lost(error)` is called when somebody has found a rank dead."""
        self._keys, self._worker, self.leaders = keys, worker, leaders
        self._lifelines, self._submitted, self._lost = lifelines, submitted, lost
        self._seen: dict[int, tuple[str, float]] = {}
        self.submitted: dict[int, int] = {}
        """How many reductions each worker had submitted at its last heartbeat that was looked at."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-beat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """Say that this worker lives, and how far it is; hear what others found."""
        count = 0
        while True:
            count += 1
            try:
                self._keys.set(f"beat/{self._worker}", json.dumps([count, self._submitted()]))
                if self._keys.ready(_LAST_WORD):
                    self._lost(PeerLostError(self._keys.read(_LAST_WORD)))
                    return
            except RuntimeError:
                pass  # the Store is gone, perhaps with its rank: whoever waits will find out
            if self._stop.wait(BEAT_S):
                return

    def close(self) -> None:
        """Stop the heartbeat."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)
        self._lifelines.close()

    def look(self, now_s: float) -> None:
        """Look at all the others; `PeerLostError` if one is gone, or if somebody said so."""
        ended = self.ended()
        if ended is not None:  # before the Store is asked, which may have been in that process
            self.bury(str(ended))
        if self._keys.ready(_LAST_WORD):
            raise PeerLostError(self._keys.read(_LAST_WORD))
        for worker, rank in enumerate(self.leaders):
            if worker == self._worker:
                continue
            text = self._keys.read(f"beat/{worker}") if self._keys.ready(f"beat/{worker}") else ""
            before, since_s = self._seen.get(worker, ("none", now_s))
            if text != before:
                since_s = now_s
            self._seen[worker] = (text, since_s)
            if text:
                self.submitted[worker] = int(json.loads(text)[1])
            if now_s - since_s > DEAD_S:
                self.bury(f"rank {rank} is gone: no sign of life for {now_s - since_s:.0f} s")

    def ended(self) -> PeerLostError | None:
        """Who is gone by its connection alone, without a question to the Store."""
        ended = self._lifelines.ended()
        if not ended:
            return None
        return PeerLostError(f"rank {self.leaders[min(ended)]} is gone: its process has ended, or its host")

    def forget_looks(self) -> None:
        """Nothing was waited for: heartbeats seen long ago prove nothing."""
        self._seen.clear()

    def all_submitted(self, count: int) -> bool:
        """Whether, as far as was seen, every other worker has submitted so many reductions."""
        others = (w for w in range(len(self.leaders)) if w != self._worker)
        return all(self.submitted.get(worker, 0) >= count for worker in others)

    def bury(self, reason: str) -> None:
        """Tell everyone that a rank is gone, and raise."""
        tell_everyone(self._keys, reason)
        # The Store may live in this process, and end with it: let the others hear first.
        time.sleep(1.5 * BEAT_S)
        raise PeerLostError(reason)


def tell_everyone(keys: Keys, reason: str) -> None:
    """The group cannot go on; the first reason stays."""
    with suppress(RuntimeError):
        if not keys.ready(_LAST_WORD):
            keys.set(_LAST_WORD, reason)


def last_word(keys: Keys, wait_s: float) -> str | None:
    """Why the group cannot go on, if somebody says so within `wait_s`."""
    end = time.monotonic() + wait_s
    while True:
        with suppress(RuntimeError):
            if keys.ready(_LAST_WORD):
                return keys.read(_LAST_WORD)
        if time.monotonic() > end:
            return None
        time.sleep(0.05)
