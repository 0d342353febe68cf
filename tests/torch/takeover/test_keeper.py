"""Iterations of the keeper in virtual time: exactly once at any speeds, and nobody waits for a slow one in vain."""

import heapq
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="PyTorch is not installed")

from paceline.core.help.takeover import Grant, Paces
from paceline.torch.takeover.keeper import TICK_S, Iteration, Keeper, Outgoing

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


class Talk:
    """Ranks that speak to a keeper as the client does, over several iterations; messages take no time."""

    def __init__(self, ranks: int, lease_s: float = 1e6, tick_s: float = TICK_S) -> None:
        self.tick_s = tick_s
        self.keeper = Keeper(ranks, int(lease_s * SECOND))
        self.whole = [False] * ranks
        self.step, self.now_s = 0, 0.0
        self.hung: set[int] = set()
        for rank in range(ranks):
            self.keeper.join(rank)

    def run(self, paces: list[float], counts: list[int], deaths: dict[int, float] | None = None) -> float:
        """One iteration; a rank's death is so many seconds after its beginning."""
        self.step, began_s = self.step + 1, self.now_s
        self.paces, self.counts = paces, counts
        self.kept: dict[int, list[tuple[int, int]]] = {rank: [] for rank in range(len(paces))}
        self.sent: list[tuple[int, str]] = []
        self.frozen: dict[int, dict[str, Any]] = {}
        self.own: dict[int, int] = {}  # of a rank without claims: how many it has computed
        self.at: dict[int, tuple[tuple[int, int, int], float]] = {}  # what it computes since when
        self.events = [(began_s + when, -1, rank) for rank, when in (deaths or {}).items()]
        heapq.heapify(self.events)
        for rank in range(len(paces)):
            self._say(rank, "begin", micro_batches=list(range(counts[rank])), whole=self.whole[rank])
        for rank in range(len(paces)):
            if self.whole[rank]:
                self.own[rank] = 0
                self._start(rank, (rank, 0, 1))
            else:
                self._say(rank, "claim", ahead=False)
        while not set(self.frozen) >= set(self.kept) - self.hung:
            self._next(began_s)
        return self.now_s - began_s

    def _next(self, began_s: float) -> None:
        tick_s = self.now_s + self.tick_s
        assert tick_s < began_s + 2e3, "nobody is given what is free"
        if not self.events or self.events[0][0] > tick_s:
            self.now_s = tick_s
            self._take(self.keeper.answer_waiting(self._now_ns()))
            return
        self.now_s, kind, rank = heapq.heappop(self.events)
        if rank in self.keeper._gone or rank in self.hung:
            return
        if kind == -1:
            self.at.pop(rank, None)
            del self.kept[rank]
            self._take(self.keeper.lose(rank, self._now_ns()))
        else:
            self._ended(rank)

    def _ended(self, rank: int) -> None:
        claim, _ = self.at.pop(rank)
        took_ns = int(self.paces[rank] * SECOND)
        if rank not in self.own:
            self._say(rank, "finish", claim=list(claim), took_ns=took_ns)
        else:
            self.own[rank] += 1
            self.kept[rank].append(claim[:2])
            if self.own[rank] < self.counts[rank]:
                self._start(rank, (rank, self.own[rank], self.own[rank] + 1))
                return
            self._say_whole(rank, None)
        self._say(rank, "claim", ahead=False)

    def _say_whole(self, rank: int, working_ns: int | None) -> None:
        took_ns = [int(self.paces[rank] * SECOND)] * self.own.pop(rank)
        self._say(rank, "whole", took_ns=took_ns, working_ns=working_ns)

    def _start(self, rank: int, claim: tuple[int, int, int]) -> None:
        self.at[rank] = claim, self.now_s
        heapq.heappush(self.events, (self.now_s + self.paces[rank], 0, rank))

    def _now_ns(self) -> int:
        return int(self.now_s * SECOND)

    def _say(self, rank: int, kind: str, **fields: Any) -> None:
        self.sent.append((rank, kind))
        claim = fields.get("claim")
        message = {"kind": kind, "step": self.step, "id": 0, **fields}
        self._take(self.keeper.handle(rank, message, self._now_ns()), claim)

    def _take(self, messages: list[Outgoing], finished: list[int] | None = None) -> None:
        for rank, message in messages:
            if message.get("kept"):
                assert finished is not None
                self.kept[rank].append((finished[0], finished[1]))
            elif "claim" in message and "id" in message:
                owner, m, number = message["claim"]
                self._start(rank, (owner, m, number))
            elif message.get("kind") == "recall" and rank in self.own and rank not in self.hung:
                self._say_whole(rank, int((self.now_s - self.at[rank][1]) * SECOND))
            elif "frozen" in message:
                self.frozen[rank], self.whole[rank] = message["frozen"], message["whole"]

    def check(self) -> None:
        """Each micro-batch is in the gradient of exactly one rank, and everybody knows whose."""
        (shares,) = {str(result["shares"]) for result in self.frozen.values()}
        told = next(iter(self.frozen.values()))["shares"]
        assert str(told) == shares
        assert [len(share) for share in told] == self.counts
        for rank, kept in self.kept.items():
            assert sorted(kept) == [
                (owner, m) for owner, share in enumerate(told) for m, by in enumerate(share) if by == rank
            ]


def test_alike_ranks_compute_their_own_with_two_messages_each() -> None:
    talk = Talk(4)
    assert talk.run([1.0, 1.01, 1.0, 1.02], [4] * 4) >= 4.0
    for _ in range(3):
        assert talk.run([1.0, 1.01, 1.0, 1.02], [4] * 4) == pytest.approx(4.08)
        talk.check()
        # The last two go out together.
        assert (
            talk.sent.count((3, "begin"))
            == talk.sent.count((3, "whole"))
            == talk.sent.count((3, "claim"))
            == 1
        )
        assert len(talk.sent) == 12


def test_a_rank_that_turns_slow_is_recalled_and_helped_at_once() -> None:
    talk = Talk(4)
    talk.run([1.0] * 4, [4] * 4)
    assert talk.whole == [True] * 4
    # Alone it would take 10 s. It is recalled after 4.5 s, in its second: the others compute the last two.
    assert talk.run([1.0, 1.0, 1.0, 2.5], [4] * 4) <= 5.6
    talk.check()
    assert talk.frozen[0]["shares"][3].count(3) == 2
    assert talk.whole == [False] * 4
    talk.run([1.0, 1.0, 1.0, 2.5], [4] * 4)
    talk.check()
    for _ in range(8):
        talk.run([1.0] * 4, [4] * 4)
        talk.check()
    assert talk.whole == [True] * 4


def test_a_rank_that_hangs_when_recalled_loses_what_it_computed() -> None:
    talk = Talk(3, lease_s=30.0)
    talk.run([1.0] * 3, [4] * 3)
    talk.hung = {2}
    talk.run([1.0] * 3, [4] * 3)
    assert all(by != 2 for by in talk.frozen[0]["shares"][2])
    # It wakes up, and finds that others have computed its own.
    answer = talk.keeper.handle(
        2, {"kind": "whole", "step": talk.step, "took_ns": [1] * 4, "working_ns": None}, talk._now_ns()
    )
    assert answer == []
    assert talk.frozen[0]["shares"] == talk.keeper._iterations[talk.step].shares()


@given(ranks=st.integers(1, 5), data=st.data())
@settings(max_examples=100, deadline=None)
def test_ranks_that_change_their_speed_count_exactly_once(ranks: int, data: st.DataObject) -> None:
    talk = Talk(ranks, tick_s=0.4)
    usual = data.draw(st.lists(st.integers(1, 6), min_size=ranks, max_size=ranks))
    talk.run([1.0] * ranks, usual)
    talk.check()
    for last in (False, False, True):
        slow = data.draw(
            st.dictionaries(st.integers(0, ranks - 1), st.sampled_from((1.1, 1.7, 4.0, 30.0)), max_size=2)
        )
        paces = [slow.get(rank, 1.0) for rank in range(ranks)]
        counts = data.draw(st.lists(st.integers(1, 6), min_size=ranks, max_size=ranks))
        mortal = data.draw(st.sets(st.integers(0, ranks - 1), max_size=ranks - 1)) if last else set()
        talk.run(paces, counts, {rank: data.draw(st.floats(0.001, 20.0)) for rank in sorted(mortal)})
        talk.check()
