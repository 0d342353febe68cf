"""Iterations of the keeper in virtual time: exactly once at any speeds, and nobody waits for a slow one in vain."""

import heapq
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="PyTorch is not installed")

from paceline.core.help.takeover import Grant, Paces
from paceline.torch.takeover.keeper import Iteration

SECOND = 1_000_000_000


@dataclass
class World:
    """Ranks of given speeds on one step; claims ahead, deaths and pauses included, time passes as events say."""

    paces: list[float]
    counts: list[int]
    deaths: dict[int, float] = field(default_factory=dict)
    lease_s: float = 1e6
    step: Iteration = field(init=False)
    kept: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def run(self, known: Paces | None = None) -> float:
        ranks = len(self.paces)
        self.step = Iteration(ranks, int(self.lease_s * SECOND), known or Paces(), 0)
        events: list[tuple[float, int, int, Grant | None]] = []
        queued: dict[int, Grant] = {}
        asking: set[int] = set()
        for rank in range(ranks):
            self.step.begin(rank, list(range(self.counts[rank])), 0)
        alive = set(range(ranks))
        for rank, when in self.deaths.items():
            heapq.heappush(events, (when, -1, rank, None))

        def start(rank: int, grant: Grant, now: float) -> None:
            ahead = self.step.claim(rank, int(now * SECOND), ahead=True)
            if ahead is not None:
                queued[rank] = ahead
            heapq.heappush(events, (now + self.paces[rank], 0, rank, grant))

        def serve(now: float) -> None:
            for rank in sorted(asking, key=lambda r: self.step.policy.paces.of(r)):
                grant = self.step.claim(rank, int(now * SECOND))
                if grant is not None:
                    asking.discard(rank)
                    start(rank, grant, now)

        asking.update(alive)
        serve(0.0)
        now = 0.0
        while not self.step.freeze():
            if events:
                when, kind, rank, grant = heapq.heappop(events)
                now = max(now, when)
                if kind == -1:
                    alive.discard(rank)
                    asking.discard(rank)
                    self.step.leave(rank)
                    for holders in self.kept.values():
                        if rank in holders:
                            holders.remove(rank)
                elif rank in alive:
                    assert grant is not None
                    took = int(self.paces[rank] * SECOND)
                    kept, _ = self.step.finish(rank, grant.claim, took, int(now * SECOND))
                    if kept:
                        self.kept.setdefault((grant.owner, grant.m), []).append(rank)
                    if rank in queued:
                        start(rank, queued.pop(rank), now)
                    else:
                        asking.add(rank)
            else:
                now += 0.02
                assert now < 1e5, "nobody is given what is free"
            serve(now)
        self.busy_until = max([now, *(when for when, kind, rank, _ in events if kind == 0 and rank in alive)])
        return now

    def check(self) -> None:
        shares = self.step.shares()
        wanted = {(owner, m) for owner, count in enumerate(self.counts) for m in range(count)}
        assert {(owner, m) for owner in range(len(shares)) for m in range(len(shares[owner]))} == wanted
        for (owner, m), holders in self.kept.items():
            assert holders == [shares[owner][m]]
        assert set(self.kept) == wanted


@given(
    paces=st.lists(st.floats(0.01, 10.0), min_size=1, max_size=6),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_every_micro_batch_counts_exactly_once_at_any_speeds(paces: list[float], data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 20), min_size=len(paces), max_size=len(paces)))
    mortal = data.draw(st.sets(st.integers(1, 5), max_size=len(paces) - 1)) & set(range(1, len(paces)))
    deaths = {rank: data.draw(st.floats(0.0, 40.0)) for rank in sorted(mortal)}
    world = World(paces, counts, deaths)
    world.run()
    world.check()


def test_one_slow_among_four_costs_little() -> None:
    known = Paces()
    for _ in range(3):
        world = World([1.0, 1.0, 1.0, 2.5], [16] * 4)
        world.run(known)
        world.check()
    # 64 micro-batches at 3.4 a second are 18.8 s; alone, the slow one takes 40.
    assert world.busy_until <= 21.0
    assert any("helps worker 3" in entry["reason"] for entry in world.step.reasons)


def test_equal_ranks_compute_their_own() -> None:
    known = Paces()
    for _ in range(2):
        world = World([1.0] * 4, [8] * 4)
        assert world.run(known) == pytest.approx(8.0)
    assert world.step.shares() == [[rank] * 8 for rank in range(4)]


def test_a_very_slow_rank_starts_nothing_that_all_would_wait_for() -> None:
    known = Paces()
    for rank, pace in enumerate((1.0, 1.0, 30.0)):
        known.note(rank, int(pace * SECOND))
    world = World([1.0, 1.0, 30.0], [4, 4, 2])
    world.run(known)
    assert world.busy_until <= 31.0
    assert world.step.shares()[2].count(2) <= 1


def test_a_race_is_won_by_who_finishes_first_and_the_other_is_told() -> None:
    known = Paces()
    known.note(0, SECOND)
    step = Iteration(2, 1000 * SECOND, known, 0)
    step.begin(0, [0], 0)
    step.begin(1, [0], 0)
    slow = step.claim(1, 0)
    own = step.claim(0, 0)
    assert slow is not None
    assert own is not None
    assert step.finish(0, own.claim, SECOND, SECOND) == (True, [])
    known.note(1, 20 * SECOND)
    race = step.claim(0, SECOND)
    assert race is not None
    assert "races worker 1" in race.reason
    assert step.finish(0, race.claim, SECOND, 2 * SECOND) == (True, [(1, slow.number)])
    assert step.finish(1, slow.claim, 20 * SECOND, 20 * SECOND) == (False, [])
    assert step.thrown_away == 1
    assert step.freeze()
    assert step.shares() == [[0], [0]]


def test_a_lease_that_runs_out_gives_the_micro_batch_to_another() -> None:
    step = Iteration(2, SECOND, Paces(), 0)
    step.begin(0, [0], 0)
    step.begin(1, [0], 0)
    lost = step.claim(1, 0)
    own = step.claim(0, 0)
    assert lost is not None
    assert own is not None
    step.finish(0, own.claim, SECOND // 2, SECOND // 2)
    step.renew(lost.claim, SECOND // 2)
    assert step.claim(0, SECOND) is None
    again = step.claim(0, 2 * SECOND)
    assert again is not None
    assert (again.owner, again.m) == (1, 0)
    assert step.finish(1, lost.claim, SECOND, 2 * SECOND) == (False, [])
    assert step.finish(0, again.claim, SECOND, 3 * SECOND)[0]
