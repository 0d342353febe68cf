"""The search for switches: what is found must be better than what there is, and a new wish counts at once."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("torch")

from paceline.errors import UserError
from paceline.torch.failover.offer import BranchOffer, PathOffer
from paceline.torch.failover.switch_search import SwitchSearch

WAITS_S = (0.001, 0.01)


def offer(admitted: int, missing: Sequence[int] = ()) -> PathOffer:
    branches = tuple(BranchOffer(k, "", "yes", k) for k in range(admitted)) or (BranchOffer(0, ""),)
    return PathOffer(branches, "", 352, tuple(missing))


class Switches:
    """What the search asks: it gives offers in turn, the last again and again, and notes what is asked and dropped."""

    def __init__(self, *offers: PathOffer | Exception) -> None:
        self._offers: Iterator[PathOffer | Exception] = iter(offers)
        self._last: PathOffer | Exception = offers[0]
        self.asked: list[tuple[int, ...]] = []
        self.dropped: list[PathOffer] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def make(self, ahead: Sequence[int] = (), strict: bool = True) -> PathOffer:
        self.go_on.wait(20)
        assert not strict, "one switch's mistake must not keep a running job from the others"
        self.asked.append(tuple(ahead))
        self._last = next(self._offers, self._last)
        if isinstance(self._last, Exception):
            raise self._last
        return self._last

    def drop(self, unused: PathOffer) -> None:
        self.dropped.append(unused)


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_any_switch_is_enough_for_a_path_that_has_none() -> None:
    switches = Switches(UserError("not now"), offer(0, [0, 1]), offer(1, [1]))
    search = SwitchSearch(switches.make, switches.drop)
    search.begin(WAITS_S)
    until(search.has_found)
    found = search.take()
    assert found is not None
    assert (found.admitted, found.missing) == (1, (1,))
    assert switches.dropped == [offer(0, [0, 1])]
    assert search.take() is None
    search.close()


def test_custodians_alone_are_enough_where_no_switch_is_named() -> None:
    switches = Switches(offer(0))
    search = SwitchSearch(switches.make, switches.drop)
    search.begin(WAITS_S)
    until(search.has_found)
    search.close()


def test_joining_needs_more_switches_than_are_used_now() -> None:
    switches = Switches(offer(1, [0]))
    search = SwitchSearch(switches.make, switches.drop)
    used = [1]
    search.begin(WAITS_S, ahead=(1,), more_than=lambda: used[0])
    until(lambda: len(switches.dropped) > 3)
    assert not search.has_found()
    used[0] = 0  # the one that was used is gone meanwhile
    until(search.has_found)
    assert set(switches.asked) == {(1,)}
    search.close()


def test_a_search_that_is_under_way_follows_a_new_wish() -> None:
    """Agents fail while one switch is still missing: those that are there are enough then."""
    switches = Switches(offer(1, [1]))
    search = SwitchSearch(switches.make, switches.drop)
    search.begin(WAITS_S, ahead=(1,), more_than=lambda: 1)
    until(lambda: len(switches.dropped) > 1)
    search.begin(WAITS_S)
    until(search.has_found)
    assert switches.asked[-1] == ()
    search.close()
