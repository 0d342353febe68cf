"""Looking for switches while reductions go another way, and making new agents when there is one.

The search has a thread of its own: a host that is not there keeps an attempt waiting for seconds, and no reduction
should wait with it."""

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from paceline.errors import UserError
from paceline.torch.failover.agent_path import AgentPath
from paceline.torch.failover.offer import PathOffer

RETRY_S = (2.0, 300.0)
"""Between attempts after agents have failed: at first, and at most; each waits twice as long as the one before."""
JOIN_S = (0.5, 5.0)
"""The same where agents work and only the switch is missing."""


class MakeOffer(Protocol):
    """Asks the switches for a place, as `offer.make_offer` does."""

    def __call__(self, ahead: Sequence[int] = (), strict: bool = True) -> PathOffer: ...


class SwitchSearch:
    """The first worker's search for a place; `take` gives what was found, once."""

    def __init__(self, make_offer: MakeOffer, drop_offer: Callable[[PathOffer], None]) -> None:
        """`drop_offer` gives back what is not better than what there is."""
        self._make_offer, self._drop_offer = make_offer, drop_offer
        self._found: PathOffer | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._wait_s = self._longest_s = 0.0  # before the next attempt, and at most
        self._ahead: Sequence[int] = ()
        self._more_than: Callable[[], int] | None = None

    def begin(
        self,
        waits_s: tuple[float, float],
        ahead: Sequence[int] = (),
        more_than: Callable[[], int] | None = None,
    ) -> None:
        """Look from now on for this: any path at all, or one with more switches than that.

        A search that is under way goes on with the new wish, and with the waits (first, longest) where they were.
        """
        self._longest_s, self._ahead, self._more_than = waits_s[1], ahead, more_than
        if self._found is not None or (self._thread is not None and self._thread.is_alive()):
            return
        self._wait_s = max(self._wait_s, waits_s[0])
        self._thread = threading.Thread(target=self._run, name="paceline-seek", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._wait_s):
            self._wait_s = min(2 * self._wait_s, self._longest_s)
            try:
                offer = self._make_offer(ahead=self._ahead, strict=False)
            except UserError:
                continue  # it may pass
            if self._is_enough(offer):
                self._found = offer
                return
            self._drop_offer(offer)

    def _is_enough(self, offer: PathOffer) -> bool:
        if self._more_than is not None:
            return offer.admitted > self._more_than()
        return offer.admitted > 0 or not offer.missing

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
        """Whether switches that were missing when this path was made can be used, and more of them than now."""
        if self._search is None or path.offer is None or not path.offer.missing:
            return False
        self._search.begin(JOIN_S, path.offer.missing, path.switches_used)
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
            self._search.begin(RETRY_S)
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
