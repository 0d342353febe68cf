"""Looking for a switch while reductions go another way, and making new agents when there is one.

The search has a thread of its own: a host that is not there keeps an attempt waiting for seconds, and no reduction
should wait with it."""

import threading
from collections.abc import Callable

from paceline.errors import UserError
from paceline.torch.failover.agent_path import AgentPath, PathOffer

RETRY_S = (2.0, 300.0)
"""Between attempts after agents have failed: at first, and at most; each waits twice as long as the one before."""
JOIN_S = (0.5, 5.0)
"""The same where agents work and only the switch is missing."""


class SwitchSearch:
    """The first worker's search for a place; `take` gives what was found, once."""

    def __init__(self, make_offer: Callable[[], PathOffer]) -> None:
        self._make_offer = make_offer
        self._found: PathOffer | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._wait_s = 0.0  # before the next attempt

    def begin(self, first_s: float, longest_s: float) -> None:
        """Begin, unless it looks already or has found; the waits go on from where they were."""
        if self._found is not None or (self._thread is not None and self._thread.is_alive()):
            return
        self._wait_s = max(self._wait_s, first_s)
        self._thread = threading.Thread(
            target=self._run, args=(longest_s,), name="paceline-seek", daemon=True
        )
        self._thread.start()

    def _run(self, longest_s: float) -> None:
        while not self._stop.wait(self._wait_s):
            self._wait_s = min(2 * self._wait_s, longest_s)
            try:
                offer = self._make_offer()
            except UserError:
                continue  # full, or a changed token: it may pass
            if offer.admission or not offer.wanted:
                self._found = offer
                return

    def has_found(self) -> bool:
        """Whether there is something to take."""
        return self._found is not None

    def take(self) -> PathOffer | None:
        """What was found since the last time."""
        found, self._found = self._found, None
        return found

    def close(self) -> None:
        """Stop; an attempt that is under way ends by its own time-out."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(1.0)


class NextPath:
    """The next generation's agents, made step by step while reductions go over Gloo; the first worker searches.

    An attempt that one worker cannot go on with (the switch was there, and is gone again) is given up by all, and
    the search begins anew. A worker is ready only in an attempt in which all have told their addresses, that is, for
    which all have left the one before: nobody can take another's "ready" for that of another attempt.
    """

    def __init__(self, make_path: Callable[[int, int], AgentPath], search: SwitchSearch | None) -> None:
        self._make_path, self._search = make_path, search
        self._path: AgentPath | None = None
        self._attempt = 0

    def may_join(self, path: AgentPath) -> bool:
        """Whether the switch that was missing when this path was made has been found."""
        offer = path.offer
        if self._search is None or offer is None or offer.admission or not offer.wanted:
            return False
        self._search.begin(*JOIN_S)
        return self._search.has_found()

    def prepare(self, generation: int) -> None:
        """One step; what making a path raises comes through."""
        if self._path is None:
            self._path = self._make_path(generation, self._attempt)
        if self._path.given_up():
            self._path.close(0.0)
            self._path, self._attempt = None, self._attempt + 1
            return
        if self._search is not None and self._path.offer is None:
            self._search.begin(*RETRY_S)
            found = self._search.take()
            if found is not None:
                self._path.publish(found)
        try:
            self._path.step()
        except Exception as error:
            self._path.give_up(str(error))
            raise

    def ready(self) -> bool:
        """Whether this worker's agent runs."""
        return self._path is not None and self._path.running()

    def take(self) -> AgentPath:
        """The path, for use."""
        assert self._path is not None
        path, self._path, self._attempt = self._path, None, 0
        return path

    def close(self, linger_s: float | None) -> None:
        """End what was not used."""
        if self._path is not None:
            self._path.close(linger_s)
