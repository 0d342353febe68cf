"""Custodians: what they accept, when they make a result, whom they ask, and who keeps which chunk."""

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import wire
from paceline.core.bits import NO_BITS
from paceline.core.custodian import program as custody
from paceline.core.custodian.program import MULTICAST, NEVER_NS, NOTHING, PULL_REST, UNICAST
from paceline.core.homes import HOME, home_word, is_home
from paceline.core.invariants import Truth, check_custody
from paceline.core.sender import program as sender
from tests.core.headers import WIDTH, Out, header, mask_of

PATIENCE_NS = 100


class Keeper:
    """One custodian of job 0, with a ring of four chunks; `fan_in` workers in each rack."""

    def __init__(
        self, fan_in: tuple[int, ...] = (3,), *, home: int = 0, racks: int = 4, **fields: Any
    ) -> None:
        self.all = custody.new_custodians(1, 4, racks, WIDTH)
        self.state = self.all.state[0]
        self.now_ns = 0
        options = {
            "ring": 4, "endpoint": 9, "fan_in_upper": len(fan_in), "count": WIDTH, "slots": 16,
            "patience_ns": PATIENCE_NS, "patience_max_ns": 1_000, "reminders": 1, "pulls": 1,
        }  # fmt: skip
        for name, value in {**options, **fields}.items():
            setattr(self.state, name, value)
        for place, workers in enumerate(fan_in):
            self.all.fan_in[0, home + place] = workers

    def put(self, packet: Any, value: int = 1) -> Out:
        buffer = np.array([[value, 2 * value]], dtype=np.int32)
        verdict = custody.handle_packet(self.all, 0, packet, buffer, 0, self.now_ns)
        return Out(int(verdict), packet, tuple(int(v) for v in buffer[0]))

    def partial(self, value: int, *workers: int, **fields: Any) -> Out:
        fields = {"fan_in": 3, "fan_in_upper": int(self.state.fan_in_upper), **fields}
        return self.put(header(wire.PARTIAL, mask=mask_of(*workers), **fields), value)

    def count(self, counter: int) -> int:
        return int(self.all.counters[0, counter])

    def round(self, now_ns: int) -> list[Any]:
        """What the custodian asks at this time."""
        custody.handle_timeout(self.all, 0, now_ns)
        asked = []
        while True:
            packet = header()
            if not custody.poll_transmit(self.all, 0, packet):
                return asked
            asked.append(packet)


# --- accept, drop, replace ----------------------------------------------------------------------------------


def test_disjoint_partials_are_added_and_a_full_mask_makes_the_result() -> None:
    keeper = Keeper()
    assert keeper.partial(5, 0).verdict == NOTHING
    assert keeper.partial(7, 2).verdict == NOTHING
    out = keeper.partial(11, 1)
    assert (out.verdict, out.packet.kind, out.values) == (MULTICAST, wire.RESULT, (23, 46))
    assert (keeper.count(custody.ACCEPTED), keeper.count(custody.FINISHES)) == (3, 1)


def test_a_whole_sum_makes_the_result_at_once() -> None:
    out = Keeper().partial(5, 0, 1, 2)
    assert (out.verdict, out.values) == (MULTICAST, (5, 10))


@pytest.mark.parametrize("again", [(0,), (0, 1), (1,)])
def test_what_overlaps_is_dropped_whole(again: tuple[int, ...]) -> None:
    keeper = Keeper((5,))
    keeper.partial(5, 0, 1)
    assert keeper.partial(7, *again).verdict == NOTHING
    assert keeper.partial(7, 1, 2).verdict == PULL_REST
    assert keeper.all.values[0, 0].tolist() == [5, 10]
    assert keeper.count(custody.OVERLAPS) == 2


def test_who_is_dropped_with_an_overlap_is_asked_for_its_own_and_nobody_else_is() -> None:
    keeper = Keeper((5,))
    keeper.partial(5, 0, 1)
    out = keeper.partial(7, 1, 2, 3)
    assert (out.verdict, out.packet.kind, out.packet.flag, out.packet.count) == (PULL_REST, wire.PULL, 0, 0)
    assert (out.packet.mask, out.packet.custodian) == (mask_of(2, 3), 9)
    assert Keeper((5,), pulls=0).partial(5, 0).verdict == NOTHING


def test_in_several_racks_an_overlap_waits_for_the_timer() -> None:
    keeper = Keeper((3, 3))
    keeper.partial(5, 0, 1)
    assert keeper.partial(7, 1, 2).verdict == NOTHING


def test_a_result_tells_the_least_of_its_contributors_windows() -> None:
    keeper = Keeper()
    keeper.partial(5, 0, window=40)
    keeper.partial(5, 1, window=25)
    assert keeper.partial(5, 2, window=60).packet.window == 25
    kept = Keeper()
    custody.keep_result(kept.all, 0, header(wire.RESULT, window=17), np.zeros((1, WIDTH), np.int32), 0, 0)
    assert kept.put(header(wire.QUERY)).packet.window == 17


@pytest.mark.parametrize(("workers", "verdict"), [((0, 1), NOTHING), ((0, 1, 2), MULTICAST)])
def test_a_sum_that_holds_all_that_is_counted_and_more_takes_its_place(workers: Any, verdict: int) -> None:
    """As a full bitmap does at ATP's server: worker 0 went past the switch, its resend was added there."""
    keeper = Keeper()
    keeper.partial(5, 0)
    assert keeper.partial(12, *workers).verdict == verdict
    assert keeper.all.values[0, 0].tolist() == [12, 24]
    assert keeper.all.masks[0, 0, 0] == mask_of(*workers)


def test_sums_wrap() -> None:
    keeper = Keeper((2,))
    keeper.partial(2**30 - 1, 0)
    out = keeper.partial(2**30 - 1, 1)
    assert out.values == (2**31 - 2, -4)


@pytest.mark.parametrize(
    "fields",
    [{"job": 1}, {"rack": 4}, {"rack": 63}, {"fan_in_upper": 2}, {"mask": 0}]
    + [
        {"share": 1},
        {"share": 1, "owner": 4096},
        {"share": 1, "owner": 64, "level": 2},
        {"share": 1, "owner": 256},
    ]
    + [{"kind": kind} for kind in (wire.GRADIENT, wire.RESULT, wire.REMINDER, wire.PULL, wire.ACK)],
)
def test_what_is_not_for_this_custodian_is_refused(fields: dict[str, int]) -> None:
    keeper = Keeper()
    before = keeper.all.chunks.tobytes()
    assert keeper.put(header(**{"kind": wire.PARTIAL, **fields})).verdict == NOTHING
    assert keeper.count(custody.REFUSED) == 1
    assert keeper.all.chunks.tobytes() == before


# --- two levels ---------------------------------------------------------------------------------------------


def test_workers_of_two_racks_with_the_same_place_are_different_contributions() -> None:
    keeper = Keeper((2, 1))
    keeper.partial(5, 0, rack=0)
    assert keeper.partial(7, 0, rack=1).verdict == NOTHING
    out = keeper.partial(11, 1, rack=0)
    assert (out.verdict, out.values, out.packet.level) == (MULTICAST, (23, 46), 2)


def test_whole_racks_and_single_workers_come_together() -> None:
    keeper = Keeper((2, 2, 2))
    keeper.partial(5, 0, 2, level=2)
    keeper.partial(7, 1, rack=1)
    out = keeper.partial(11, 0, rack=1)
    assert (out.verdict, out.values) == (MULTICAST, (23, 46))


def test_a_worker_of_a_rack_that_is_in_is_dropped() -> None:
    keeper = Keeper((2, 2))
    keeper.partial(5, 1, level=2)
    assert keeper.partial(7, 0, rack=1).verdict == NOTHING
    assert keeper.count(custody.OVERLAPS) == 1
    keeper.partial(9, 0, rack=0)
    assert keeper.all.values[0, 0].tolist() == [14, 28]


def test_a_rack_one_of_whose_workers_is_in_beside_others_is_dropped() -> None:
    keeper = Keeper((2, 2, 2))
    keeper.partial(5, 0, rack=0)
    keeper.partial(7, 0, rack=1)
    assert keeper.partial(9, 0, level=2).verdict == NOTHING
    assert keeper.count(custody.OVERLAPS) == 1


def test_racks_that_hold_all_that_is_counted_take_its_place() -> None:
    keeper = Keeper((2, 2, 2))
    keeper.partial(5, 0, rack=0)
    assert keeper.partial(9, 0, 1, level=2).verdict == NOTHING
    assert keeper.all.values[0, 0].tolist() == [9, 18]
    out = keeper.partial(20, 0, 1, 2, level=2)
    assert (out.verdict, out.values) == (MULTICAST, (20, 40))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_partials_in_any_order_give_the_exact_sum(data: Any) -> None:
    """Random racks, subsets, overlaps, whole racks: a custodian never holds what its masks do not say."""
    fan_in = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3), label="racks"))
    keeper = Keeper(fan_in)

    def share(level: int, rack: int, place: int) -> int:
        if level == 2:
            return sum(share(1, place, w) for w in range(fan_in[place]))
        return 10 ** (3 * rack + place)

    total = sum(share(2, 0, rack) for rack in range(len(fan_in)))
    truth = Truth(
        lambda _job, level, rack, place, _chunk: [share(level, rack, place), 2 * share(level, rack, place)],
        lambda _job, _chunk: [total, 2 * total],
    )
    for _ in range(30):
        level = data.draw(st.sampled_from([1, 2] if len(fan_in) > 1 else [1]))
        rack = data.draw(st.integers(0, len(fan_in) - 1))
        places = range(fan_in[rack] if level == 1 else len(fan_in))
        inside = data.draw(st.lists(st.sampled_from(places), min_size=1, unique=True))
        value = sum(share(level, rack, place) for place in inside)
        out = keeper.partial(value, *inside, rack=rack, level=level)
        assert check_custody(keeper.all, truth) == []
        if out.verdict not in (NOTHING, PULL_REST):
            assert out.values == ((total + 2**31) % 2**32 - 2**31, (2 * total + 2**31) % 2**32 - 2**31)
            return


# --- finished chunks, the ring ------------------------------------------------------------------------------


def finished() -> Keeper:
    keeper = Keeper()
    keeper.partial(5, 0, 1, 2, index=3, priority=20, window=4)
    return keeper


@pytest.mark.parametrize(
    ("kind", "workers", "verdict"),
    [(wire.PARTIAL, (1,), UNICAST), (wire.QUERY, (), UNICAST), (wire.PARTIAL, (0, 2), MULTICAST)],
)
def test_a_finished_chunk_answers_with_its_result_again(kind: int, workers: Any, verdict: int) -> None:
    keeper = finished()
    out = keeper.put(header(kind, mask=mask_of(*workers), worker=1), 99)
    assert (out.verdict, out.packet.kind, out.packet.worker) == (verdict, wire.RESULT, 1)
    assert (out.values, out.packet.index, out.packet.window) == ((5, 10), 3, 4)
    assert keeper.count(custody.REPLAYS) == 1


def test_an_answer_for_a_finished_chunk_is_not_answered() -> None:
    assert finished().put(header(wire.ANSWER), 99).verdict == NOTHING


def test_a_query_for_what_is_not_finished_asks_for_what_is_missing() -> None:
    """A pull to the asker alone while its contribution is missing, an acknowledgement when it is counted."""
    keeper = Keeper()
    keeper.partial(7, 1)
    out = keeper.put(header(wire.QUERY, worker=2))
    assert (out.verdict, out.packet.kind, out.packet.flag) == (UNICAST, wire.PULL, wire.FLUSH)
    assert (out.packet.worker, out.packet.count, out.packet.custodian) == (2, 0, 9)
    keeper.partial(5, 0)
    out = keeper.put(header(wire.QUERY, worker=2))
    assert (out.verdict, out.packet.kind, out.packet.worker) == (UNICAST, wire.ACK, 2)
    assert keeper.all.values[0, 0].tolist() == [12, 24]


def test_a_query_for_what_nobody_has_brought_yet_has_it_sent_again_by_the_switch() -> None:
    """Neither here nor in the switch: it was lost, and there is nobody to be asked for it."""
    keeper = Keeper()
    out = keeper.put(header(wire.QUERY, worker=2, chunk=3))
    assert (out.verdict, out.packet.kind, out.packet.worker) == (UNICAST, wire.NACK, 2)
    assert keeper.round(PATIENCE_NS) == []


def test_nor_for_one_that_waits_in_the_switch_without_the_asker() -> None:
    keeper = Keeper()
    keeper.partial(5, 0, 1, 2, chunk=3)
    assert keeper.put(header(wire.QUERY, flag=wire.COLLISION, chunk=2)).packet.kind == wire.NACK
    assert keeper.put(header(wire.QUERY, chunk=2)).packet.kind == wire.PULL


@pytest.mark.parametrize("how", ["asked before", "overtaken"])
def test_a_query_opens_a_chunk_that_may_be_done_elsewhere_so_that_the_custodian_asks_for_it(how: str) -> None:
    keeper = Keeper()
    if how == "overtaken":
        keeper.partial(5, 0, 1, 2, chunk=3)
    keeper.put(header(wire.QUERY, flag=wire.FLUSH if how == "asked before" else 0, chunk=2))
    assert [int(packet.kind) for packet in keeper.round(PATIENCE_NS)] == [wire.REMINDER]


def test_a_query_of_an_epoch_before_is_not_answered() -> None:
    keeper = Keeper(epoch=2)
    assert keeper.put(header(wire.QUERY, epoch=1)).verdict == NOTHING
    assert keeper.count(custody.OUTDATED) == 1
    assert keeper.put(header(wire.QUERY, epoch=3)).verdict == UNICAST
    assert keeper.state.epoch == 3


def test_an_answer_finishes_a_chunk_with_the_result_that_a_worker_held() -> None:
    keeper = Keeper()
    keeper.partial(5, 0)
    out = keeper.put(header(wire.ANSWER, flag=wire.COLLISION, offer=6), 23)
    assert (out.verdict, out.packet.kind, out.values) == (MULTICAST, wire.RESULT, (23, 46))
    assert (out.packet.flag & wire.COLLISION, out.packet.offer) == (wire.COLLISION, 6)


def test_a_later_chunk_takes_the_place_of_an_earlier_one_in_the_ring_and_not_the_reverse() -> None:
    keeper = Keeper()
    keeper.partial(5, 0, 1, chunk=1)
    keeper.partial(7, 2, chunk=5)
    assert keeper.all.chunks[0, 1].chunk == 5
    assert keeper.all.values[0, 1].tolist() == [7, 14]
    assert keeper.all.masks[0, 1, 0] == mask_of(2)
    assert keeper.partial(9, 0, chunk=1).verdict == NOTHING
    assert keeper.count(custody.OUTDATED) == 1
    assert keeper.all.chunks[0, 1].chunk == 5


def test_a_collision_is_told_with_an_aggregator_to_use_instead() -> None:
    keeper = Keeper()
    keeper.partial(5, 0, 1, flag=wire.COLLISION)
    out = keeper.partial(7, 2)
    assert out.packet.flag & wire.COLLISION
    assert 0 <= out.packet.offer < 16


def test_without_a_collision_nobody_moves() -> None:
    keeper = Keeper()
    keeper.partial(5, 0, 1)
    assert not keeper.partial(7, 2).packet.flag & wire.COLLISION


def test_workers_that_use_different_aggregators_for_a_chunk_are_brought_together() -> None:
    """One took an offer that another never saw: without a new one they would miss each other for ever."""
    keeper = Keeper()
    keeper.partial(5, 0, 1, index=3)
    assert keeper.partial(7, 2, index=4).packet.flag & wire.COLLISION


def test_a_home_that_the_switch_has_told_goes_on_with_the_result() -> None:
    """Whether or not all partials bring it, and whether or not workers missed each other."""
    keeper = Keeper()
    keeper.partial(5, 0, 1, index=3, offer=home_word(1, 2))
    out = keeper.partial(7, 2, index=4, offer=HOME)
    assert out.packet.flag & wire.COLLISION
    assert out.packet.offer == home_word(1, 2)
    keeper.partial(5, 0, 1, chunk=1, flag=wire.COLLISION)
    assert not is_home(keeper.partial(7, 2, chunk=1).packet.offer)


def test_congestion_met_by_one_is_told_to_all() -> None:
    keeper = Keeper()
    keeper.partial(5, 0, 1, flag=wire.ECN)
    assert keeper.partial(7, 2).packet.flag & wire.ECN


# --- results made by the switch -----------------------------------------------------------------------------


def keep(keeper: Keeper, value: int, **fields: Any) -> None:
    buffer = np.array([[value, 2 * value]], dtype=np.int32)
    custody.keep_result(keeper.all, 0, header(wire.RESULT, **fields), buffer, 0, keeper.now_ns)


@pytest.mark.parametrize("opened", [False, True])
def test_a_result_of_the_switch_is_kept_for_a_worker_whose_copy_was_lost(opened: bool) -> None:
    keeper = Keeper()
    if opened:
        keeper.partial(5, 0)
    keep(keeper, 23)
    assert keeper.count(custody.KEPT) == 1
    out = keeper.partial(7, 1, worker=1)
    assert (out.verdict, out.packet.kind, out.packet.worker, out.values) == (
        UNICAST,
        wire.RESULT,
        1,
        (23, 46),
    )
    assert keeper.round(10**6) == [], "a finished chunk asks for nothing"


def test_a_result_is_kept_once_and_never_in_the_place_of_a_later_chunk() -> None:
    keeper = Keeper()
    keep(keeper, 23, chunk=5)
    keep(keeper, 99, chunk=5)
    keep(keeper, 99, chunk=1)
    assert (keeper.count(custody.KEPT), keeper.count(custody.OUTDATED)) == (1, 1)
    assert keeper.put(header(wire.QUERY, chunk=5)).values == (23, 46)


def test_a_result_of_another_job_is_refused() -> None:
    keeper = Keeper()
    keep(keeper, 23, job=1)
    assert (keeper.count(custody.KEPT), keeper.count(custody.REFUSED)) == (0, 1)
    assert keeper.put(header(wire.QUERY)).packet.kind == wire.NACK


# --- reminders and pulls ------------------------------------------------------------------------------------


def test_a_custodian_with_nothing_open_has_no_timer() -> None:
    keeper = Keeper()
    assert keeper.state.timer_ns == NEVER_NS
    keeper.partial(5, 0, 1, 2)
    assert keeper.round(10**6) == []
    assert keeper.state.timer_ns == NEVER_NS


def test_reminders_and_pulls_take_turns_and_wait_longer_each_time() -> None:
    keeper = Keeper()
    keeper.partial(5, 0, chunk=2, index=3, priority=44)
    asked, times = [], [0]
    for _ in range(10):
        times.append(int(keeper.state.timer_ns))
        assert keeper.round(times[-1] - 1) == []
        packets = keeper.round(times[-1])
        assert len(packets) == 1
        asked.append(int(packets[0].kind))
    assert asked == [wire.REMINDER, wire.PULL] * 5
    assert [b - a for a, b in pairwise(times)] == [100, 100, 100, 200, 200, 400, 400, 800, 800, 1_000]
    assert (keeper.count(custody.REMINDERS_SENT), keeper.count(custody.PULLS_SENT)) == (5, 5)


def test_an_eager_custodian_asks_the_workers_first_about_what_was_flushed() -> None:
    for eager, flag, kind in (
        (1, wire.FLUSH, wire.PULL),
        (1, 0, wire.REMINDER),
        (0, wire.FLUSH, wire.REMINDER),
    ):
        keeper = Keeper()
        keeper.state.eager = eager
        keeper.partial(5, 0, chunk=2, flag=flag)
        assert [int(packet.kind) for packet in keeper.round(PATIENCE_NS)] == [kind]


def test_what_is_asked_names_the_chunk_and_fits_the_wire() -> None:
    keeper = Keeper()
    keeper.partial(5, 0, 2, chunk=2, index=3, priority=44)
    packet = keeper.round(PATIENCE_NS)[0]
    assert (packet.job, packet.chunk, packet.index, packet.custodian, packet.priority) == (0, 2, 3, 9, 44)
    assert (packet.count, packet.level) == (0, 1)
    assert wire.decode(wire.encode(packet)).kind == wire.REMINDER


@pytest.mark.parametrize(("reminders", "pulls", "kind"), [(1, 0, wire.REMINDER), (0, 1, wire.PULL)])
def test_a_custodian_may_be_told_to_use_one_of_the_two(reminders: int, pulls: int, kind: int) -> None:
    keeper = Keeper(reminders=reminders, pulls=pulls)
    keeper.partial(5, 0)
    assert [int(keeper.round(t)[0].kind) for t in (10**4, 10**5)] == [kind, kind]


def test_a_custodian_may_be_told_to_ask_nothing() -> None:
    keeper = Keeper(reminders=0, pulls=0)
    keeper.partial(5, 0)
    assert keeper.state.timer_ns == NEVER_NS
    assert keeper.round(10**6) == []


def _asked(packet: Any, rack: int, *positions: int, owner: int = 0, share: int = 0) -> bool:
    senders = sender.new_senders(1, 1)
    senders.state[0].rack = rack
    sender.set_share(senders, 0, mask_of(*positions), owner, np.uint64(share))
    return bool(sender.is_asked(senders.state[0], packet))


@pytest.mark.parametrize("home", [0, 2])
def test_a_pull_names_the_workers_that_are_missing(home: int) -> None:
    keeper = Keeper(home=home, reminders=0)
    keeper.partial(5, 0, 2, rack=home)
    packet = keeper.round(PATIENCE_NS)[0]
    assert [_asked(packet, home, worker) for worker in range(3)] == [False, True, False]


def test_a_pull_over_racks_names_the_racks_that_are_missing() -> None:
    keeper = Keeper((2, 2, 2), reminders=0)
    keeper.partial(5, 1, level=2)
    keeper.partial(7, 0, rack=2)
    packet = keeper.round(PATIENCE_NS)[0]
    assert packet.level == 2
    assert [_asked(packet, rack, 0) for rack in range(3)] == [True, False, True]


def test_every_open_chunk_is_asked_for_and_no_other() -> None:
    keeper = Keeper(reminders=0)
    for chunk in (7, 4, 6):
        keeper.partial(5, 0, chunk=chunk)
    keeper.partial(5, 1, 2, chunk=6)
    keeper.state.reach = 4
    assert [int(packet.chunk) for packet in keeper.round(PATIENCE_NS)] == [4, 7]


def test_of_chunks_that_all_wait_the_oldest_is_asked_for_and_more_when_that_pays() -> None:
    keeper = Keeper(reminders=0)
    for chunk in (4, 5, 6, 7):
        keeper.partial(5, 0, chunk=chunk)
    assert [int(packet.chunk) for packet in keeper.round(PATIENCE_NS)] == [4]
    keeper.partial(5, 1, 2, chunk=4)
    assert keeper.state.reach == 2
    assert [int(packet.chunk) for packet in keeper.round(3 * PATIENCE_NS)] == [5, 6]
    # No answer: half as many from the third question on.
    for turn in range(2, 9):
        keeper.round(10**turn * PATIENCE_NS)
    assert keeper.state.reach == 1


def test_what_was_overtaken_is_asked_for_whatever_waits_before_it() -> None:
    keeper = Keeper(reminders=0, reorder_chunks=1)
    for chunk in (4, 5, 6):
        keeper.partial(5, 0, chunk=chunk)
    keeper.partial(5, 0, 1, 2, chunk=7)
    assert [int(packet.chunk) for packet in keeper.round(PATIENCE_NS)] == [4, 5, 6]


def test_what_was_asked_for_often_holds_nobody_back() -> None:
    """A late copy opened a chunk that is done everywhere: nobody will ever answer."""
    keeper = Keeper(reminders=0)
    keeper.partial(5, 0, chunk=4)
    for turn in range(1, 6):
        keeper.round(10**turn * PATIENCE_NS)
    keeper.partial(5, 0, chunk=5)
    assert [int(packet.chunk) for packet in keeper.round(10**7 * PATIENCE_NS)] == [4, 5]


def test_a_chunk_that_is_not_overdue_sets_the_next_timer() -> None:
    keeper = Keeper()
    keeper.partial(5, 0, chunk=0)
    keeper.now_ns = 60
    keeper.partial(5, 0, chunk=1)
    assert [int(packet.chunk) for packet in keeper.round(PATIENCE_NS)] == [0]
    assert keeper.state.timer_ns == 160


def test_one_chunk_far_ahead_does_not_make_a_round_long() -> None:
    keeper = Keeper()
    keeper.partial(5, 0, chunk=0)
    keeper.partial(5, 0, chunk=2**62 - 1)
    assert [int(packet.chunk) for packet in keeper.round(PATIENCE_NS)] == [2**62 - 1]


# --- who keeps a chunk --------------------------------------------------------------------------------------


@pytest.mark.parametrize("members", [1, 2, 3, 8, 13])
@pytest.mark.parametrize("epoch", [0, 1, 65_535])
def test_chunks_are_spread_evenly(members: int, epoch: int) -> None:
    chunks = 400 * members
    counts = Counter(int(custody.custodian_for(chunk, members, NO_BITS, epoch)) for chunk in range(chunks))
    assert sorted(counts) == list(range(members))
    assert min(counts.values()) > 320
    assert max(counts.values()) < 480


def test_a_member_more_moves_only_the_chunks_that_it_gets() -> None:
    before = [int(custody.custodian_for(chunk, 7, NO_BITS, 0)) for chunk in range(4_000)]
    after = [int(custody.custodian_for(chunk, 8, NO_BITS, 0)) for chunk in range(4_000)]
    moved = [b for a, b in zip(before, after, strict=True) if a != b]
    assert set(moved) == {7}
    assert 400 < len(moved) < 600


def test_an_epoch_deals_the_chunks_anew() -> None:
    same = sum(
        custody.custodian_for(chunk, 8, NO_BITS, 0) == custody.custodian_for(chunk, 8, NO_BITS, 1)
        for chunk in range(4_000)
    )
    assert 300 < same < 700


def test_partials_of_an_epoch_before_are_dropped() -> None:
    keeper = Keeper(epoch=2)
    assert keeper.partial(5, 0, epoch=1).verdict == NOTHING
    assert keeper.count(custody.OUTDATED) == 1
    assert keeper.count(custody.ACCEPTED) == 0


def test_a_new_epoch_voids_partial_sums_and_keeps_results() -> None:
    keeper = Keeper()
    keeper.partial(7, 0, 1, 2, chunk=0)
    keeper.partial(5, 0, chunk=1)
    assert keeper.partial(1, 1, chunk=1, epoch=1).verdict == NOTHING
    assert keeper.partial(2, 0, 2, chunk=1, epoch=1).verdict == MULTICAST
    assert keeper.put(header(wire.QUERY, chunk=0, fan_in=3)).values == (7, 14)


def test_a_custodian_that_forgot_has_nothing_and_asks_nothing() -> None:
    keeper = Keeper()
    keeper.partial(7, 0, 1, 2, chunk=0)
    keeper.partial(5, 0, chunk=1)
    custody.forget(keeper.all, 0, 1)
    assert keeper.state.timer_ns == NEVER_NS
    assert keeper.round(10 * PATIENCE_NS) == []
    assert keeper.put(header(wire.QUERY, chunk=0, fan_in=3)).verdict == NOTHING
    assert keeper.partial(9, 0, chunk=0, epoch=1).verdict == NOTHING
    answer = keeper.put(header(wire.ANSWER, chunk=0, fan_in=3), 7)
    assert (answer.verdict, answer.values) == (MULTICAST, (7, 14))
