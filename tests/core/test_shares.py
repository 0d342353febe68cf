"""Shares: their bits, when containers meet, and what switch and custodian make of them."""

import itertools
from typing import Any

import numpy as np
import pytest

from paceline.core import wire
from paceline.core.bits import (
    ALL_SHARES,
    DISJOINT,
    OTHER_OWNER,
    OVERLAPPING,
    is_sound,
    overlap_of,
    place_of,
    share_bits,
)
from paceline.core.custodian import program as custody
from paceline.core.switch import program as sw
from paceline.core.switch.memory import FILLING, HELD
from tests.core.custodian.test_program import Keeper
from tests.core.headers import Bench, header, mask_of

WITH_CUSTODIANS = ("atp", "esa", "esa-plus", "never", "always-preempt", "coin-flip")
HALF = np.uint64(0xFFFFFFFF)
REST = ALL_SHARES ^ HALF


@pytest.mark.parametrize("count", range(1, 65))
def test_micro_batches_are_a_partition_of_the_word(count: int) -> None:
    parts = [int(share_bits(m, count)) for m in range(count)]
    assert all(parts)
    assert sum(parts) == int(ALL_SHARES)
    assert all(not a & b for a, b in itertools.combinations(parts, 2))


def test_an_owner_is_a_bit_of_a_rack() -> None:
    assert place_of(0, 5) == 5
    assert place_of(3, 5) == 197


@pytest.mark.parametrize(
    ("fields", "sound"),
    [
        ({"mask": 1, "owner": 1}, True),
        ({"mask": 0, "owner": 1}, True),
        ({"mask": 3, "owner": 1}, False),
        ({"mask": 3, "owner": 65}, True),
        ({"mask": 1, "owner": 1, "level": 2}, False),
        ({"mask": 1, "owner": 4096}, False),
        ({"mask": 1, "owner": -1}, False),
    ],
)
def test_a_worker_is_there_by_its_bit_or_by_shares(fields: dict[str, int], sound: bool) -> None:
    assert bool(is_sound(header(share=1, **fields))) == sound


@pytest.mark.parametrize(
    ("slot", "packet", "meets"),
    [
        ({"mask": 1}, {"mask": 2}, DISJOINT),
        ({"mask": 3}, {"mask": 2}, OVERLAPPING),
        ({"mask": 1, "owner": 5, "share": 1}, {"mask": 2}, DISJOINT),
        ({"mask": 1, "owner": 5, "share": 1}, {"mask": 2, "owner": 5, "share": 2}, DISJOINT),
        ({"mask": 1, "owner": 5, "share": 3}, {"mask": 2, "owner": 5, "share": 2}, OVERLAPPING),
        ({"mask": 1, "owner": 5, "share": 1}, {"mask": 2, "owner": 6, "share": 2}, OTHER_OWNER),
        ({"mask": 1, "owner": 1, "share": 1}, {"mask": 2}, OVERLAPPING),
        ({"mask": 2}, {"mask": 1, "owner": 1, "share": 1}, OVERLAPPING),
        ({"mask": 2}, {"mask": 1, "owner": 65, "share": 1}, DISJOINT),
        ({"mask": 1, "owner": 65, "share": 1}, {"mask": 2}, DISJOINT),
        ({"mask": 0, "owner": 1, "share": 1}, {"mask": 0, "owner": 1, "share": 2}, DISJOINT),
    ],
)
def test_what_two_containers_have_in_common(slot: Any, packet: Any, meets: int) -> None:
    assert overlap_of(header(**{"owner": 0, "share": 0, **slot}), header(**packet)) == meets


# --- the switch ---------------------------------------------------------------------------------------------


def share(bench: Bench, value: int, *workers: int, part: Any = 0, owner: int = 2, **fields: Any) -> Any:
    fields = {"fan_in": 3, **fields}
    return bench.put(header(mask=mask_of(*workers), owner=owner, share=part, **fields), value)


@pytest.mark.parametrize("policy", WITH_CUSTODIANS)
def test_all_shares_of_a_worker_complete_a_sum_in_its_place(policy: str) -> None:
    bench = Bench(policy)
    assert share(bench, 1, 0, part=HALF).verdict == sw.CONSUMED
    assert share(bench, 2, 1).verdict == sw.CONSUMED
    assert bench.switch.memory.slots[0].state == FILLING
    out = share(bench, 4, part=REST)
    assert out.values == (7, 14)
    if policy == "atp":
        assert (out.verdict, out.packet.share) == (sw.TO_CUSTODIAN, ALL_SHARES)
        assert bench.switch.memory.slots[0].state == HELD
    else:
        assert (out.verdict, out.packet.kind) == (sw.DOWN, wire.RESULT)


def test_a_share_that_is_already_inside_is_a_duplicate() -> None:
    bench = Bench("esa")
    share(bench, 1, 0, part=HALF)
    for again in (
        share(bench, 1, 0, part=HALF),
        share(bench, 1, part=np.uint64(1)),
        share(bench, 9, 2),
    ):
        assert again.verdict == sw.CONSUMED
    assert bench.count(sw.DUPLICATES) == 3
    assert bench.values(0) == (1, 2)


def test_shares_of_a_second_owner_go_to_the_custodian() -> None:
    bench = Bench("esa")
    share(bench, 1, 0, part=HALF, owner=2)
    out = share(bench, 2, 1, part=HALF, owner=3)
    assert (out.verdict, out.packet.kind, out.values) == (sw.TO_CUSTODIAN, wire.PARTIAL, (2, 4))
    assert out.packet.flag & wire.COLLISION
    assert bench.values(0) == (1, 2)


@pytest.mark.parametrize("flag", [0, wire.FLUSH])
def test_a_pool_knows_no_shares(flag: int) -> None:
    bench = Bench("switchml", slots=8, pool=2)
    assert share(bench, 1, 0, part=HALF, flag=flag).verdict == sw.DROPPED
    assert bench.count(sw.DROP_MASK) == 1


def test_a_rack_with_a_share_from_elsewhere_is_not_the_racks_sum() -> None:
    """Full of its own workers, with a share of another rack's: only a custodian can take it apart."""
    bench = Bench("esa")
    share(bench, 1, 0, part=HALF, owner=64 + 2, fan_in=2, fan_in_upper=2)
    out = share(bench, 2, 1, fan_in=2, fan_in_upper=2)
    assert (out.verdict, out.packet.kind, out.packet.level) == (sw.TO_CUSTODIAN, wire.PARTIAL, 1)
    assert (out.packet.mask, out.packet.share, out.packet.owner) == (3, HALF, 66)


def test_a_rack_whose_owner_is_complete_goes_up_as_the_rack() -> None:
    bench = Bench("esa")
    share(bench, 1, 0, part=HALF, owner=1, fan_in=2, fan_in_upper=2)
    out = share(bench, 2, part=REST, owner=1, fan_in=2, fan_in_upper=2)
    assert (out.verdict, out.packet.level, out.packet.mask) == (sw.UP, 2, 1)
    assert (out.packet.share, out.values) == (0, (3, 6))


# --- custody in the switch ----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", WITH_CUSTODIANS)
def test_leaders_complete_an_aggregator_for_their_custodian(policy: str) -> None:
    bench = Bench(policy)
    leaders = {"flag": wire.CUSTODY, "fan_in": 2}
    assert share(bench, 1, 0, **leaders).verdict == sw.CONSUMED
    out = share(bench, 2, 1, **leaders)
    assert (out.verdict, out.packet.kind, out.values) == (sw.TO_CUSTODIAN, wire.PARTIAL, (3, 6))
    assert bench.used() == 0


def test_with_custody_shares_do_not_stand_for_a_leader() -> None:
    bench = Bench("esa")
    leaders = {"flag": wire.CUSTODY, "fan_in": 3}
    share(bench, 1, 0, part=HALF, owner=5, **leaders)
    assert share(bench, 2, 1, part=REST, owner=5, **leaders).verdict == sw.CONSUMED
    out = share(bench, 4, 3, owner=0, **leaders)
    assert (out.verdict, out.values, out.packet.share) == (sw.TO_CUSTODIAN, (7, 14), ALL_SHARES)


@pytest.mark.parametrize("policy", WITH_CUSTODIANS)
@pytest.mark.parametrize("racks", [1, 2])
def test_a_straggler_passes_the_aggregators_by(policy: str, racks: int) -> None:
    bench = Bench(policy)
    leaders = {"flag": wire.CUSTODY, "fan_in": 2, "fan_in_upper": racks}
    share(bench, 1, 0, **leaders)
    late = {"flag": wire.CUSTODY | wire.FLUSH, "fan_in": 1, "fan_in_upper": racks}
    for out in (share(bench, 8, 2, **late), share(bench, 8, part=HALF, owner=2, **late)):
        assert (out.verdict, out.packet.kind, out.values) == (sw.TO_CUSTODIAN, wire.PARTIAL, (8, 16))
    assert bench.values(0) == (1, 2)
    assert bench.count(sw.PASSES) == 2


def test_no_rack_sum_goes_up_with_custody() -> None:
    bench = Bench("esa")
    leaders = {"flag": wire.CUSTODY, "fan_in": 2, "fan_in_upper": 2}
    share(bench, 1, 0, **leaders)
    out = share(bench, 2, 1, **leaders)
    assert (out.verdict, out.packet.level, out.packet.mask) == (sw.TO_CUSTODIAN, 1, 3)
    share(bench, 1, 0, chunk=1, **leaders)
    out = share(bench, 1, 0, chunk=1, **{**leaders, "flag": wire.CUSTODY | wire.FLUSH})
    assert (out.verdict, out.packet.level) == (sw.TO_CUSTODIAN, 1)


@pytest.mark.parametrize("dead", [0, 1])
def test_an_acknowledgement_goes_to_the_rack_that_it_is_for(dead: int) -> None:
    bench = Bench("esa", levels=(1, 2))
    bench.switch.config.dead[:] = dead
    packet = header(wire.ACK, flag=wire.CUSTODY, mask=3, level=2, rack=1, fan_in_upper=2)
    assert bench.put(packet).verdict == sw.UP
    assert bench.put(packet, s=1).verdict == sw.DOWN_ONE
    assert bench.put(packet).verdict == sw.DOWN


# --- the custodian ------------------------------------------------------------------------------------------


def part(keeper: Keeper, value: int, *workers: int, part: Any = 0, owner: int = 2, **fields: Any) -> Any:
    return keeper.partial(value, *workers, owner=owner, share=part, **fields)


def test_shares_are_counted_until_they_are_the_whole_worker() -> None:
    keeper = Keeper()
    assert part(keeper, 1, 0, part=HALF).verdict == custody.NOTHING
    assert keeper.all.chunks[0, 0].owners == 1
    assert part(keeper, 2, part=REST).verdict == custody.NOTHING
    assert keeper.all.chunks[0, 0].owners == 0
    assert keeper.all.masks[0, 0, 0] == mask_of(0, 2)
    out = part(keeper, 4, 1)
    assert (out.verdict, out.packet.kind, out.values) == (custody.MULTICAST, wire.RESULT, (7, 14))
    assert (out.packet.share, out.packet.owner) == (0, 0)


def test_a_whole_worker_may_come_from_another_rack() -> None:
    keeper = Keeper((1, 2))
    part(keeper, 1, 0, part=HALF, owner=64)
    part(keeper, 2, 1, rack=1)
    assert part(keeper, 4, part=REST, owner=64).verdict == custody.MULTICAST
    assert keeper.all.chunks[0, 0].racks == 3


@pytest.mark.parametrize(
    ("workers", "fields"),
    [
        ((0,), {"part": HALF}),
        ((1,), {"part": np.uint64(1)}),
        ((2,), {}),
        ((1, 2), {}),
    ],
)
def test_what_has_a_share_in_common_is_dropped_whole(workers: tuple[int, ...], fields: Any) -> None:
    keeper = Keeper()
    part(keeper, 1, 0, part=HALF)
    assert part(keeper, 8, *workers, **fields).verdict == custody.NOTHING
    assert keeper.count(custody.OVERLAPS) == 1
    assert keeper.all.values[0, 0].tolist() == [1, 2]


def test_a_worker_by_its_bit_keeps_its_shares_out() -> None:
    keeper = Keeper()
    part(keeper, 1, 2)
    assert part(keeper, 8, 0, part=HALF).verdict == custody.NOTHING
    assert keeper.count(custody.OVERLAPS) == 1


@pytest.mark.parametrize(
    ("workers", "fields"),
    [((0, 1), {"part": HALF}), ((0,), {"part": ALL_SHARES}), ((0, 2), {}), ((0,), {"level": 2})],
)
def test_more_of_the_same_takes_its_place(workers: tuple[int, ...], fields: Any) -> None:
    keeper = Keeper((4,))
    part(keeper, 1, 0, part=HALF)
    part(keeper, 8, *workers, **fields)
    assert keeper.count(custody.ACCEPTED) == 2
    assert keeper.all.values[0, 0].tolist() == [8, 16]


def test_shares_of_one_owner_too_many_are_refused() -> None:
    keeper = Keeper((9,))
    for owner in range(2, 6):
        part(keeper, 1, part=HALF, owner=owner)
    part(keeper, 8, part=HALF, owner=6)
    assert (keeper.count(custody.REFUSED), keeper.all.values[0, 0].tolist()) == (1, [4, 8])
    part(keeper, 1, part=REST, owner=3)
    part(keeper, 8, part=HALF, owner=6)
    assert keeper.count(custody.REFUSED) == 1


def test_leaders_are_acknowledged_when_they_are_counted_and_again() -> None:
    keeper = Keeper()
    for _ in range(2):
        out = part(keeper, 1, 0, 1, flag=wire.CUSTODY, fan_in=2)
        assert (out.verdict, out.packet.kind, out.packet.mask) == (custody.ACKNOWLEDGE, wire.ACK, 3)
        assert (out.packet.count, out.packet.flag, out.packet.custodian) == (0, wire.CUSTODY, 9)
    assert keeper.all.values[0, 0].tolist() == [1, 2]
    assert keeper.count(custody.ACKS_SENT) == 2


def test_leaders_are_acknowledged_together() -> None:
    keeper = Keeper((4,))
    assert part(keeper, 1, 0, flag=wire.CUSTODY, fan_in=3).verdict == custody.NOTHING
    assert part(keeper, 1, 0, flag=wire.CUSTODY, fan_in=3).verdict == custody.NOTHING, "again, and not yet"
    out = part(keeper, 1, 3, flag=wire.CUSTODY | wire.FLUSH, fan_in=1)
    assert (out.verdict, out.packet.mask) == (custody.ACKNOWLEDGE, 8), "a straggler waits for nobody"
    out = part(keeper, 1, 1, 2, flag=wire.CUSTODY, fan_in=3)
    assert out.verdict == custody.MULTICAST, "the last part makes the result"

    out = part(keeper, 1, 0, chunk=1, flag=wire.CUSTODY, fan_in=3)
    out = part(keeper, 1, 1, 2, chunk=1, flag=wire.CUSTODY, fan_in=3)
    assert (out.verdict, out.packet.mask) == (custody.ACKNOWLEDGE, 7)
    out = part(keeper, 1, 0, chunk=1, flag=wire.CUSTODY, fan_in=3)
    assert (out.verdict, out.packet.mask) == (custody.ACKNOWLEDGE, 1), "again, to who asks"


def test_a_chunk_that_lacks_leaders_is_asked_for_sooner_than_one_that_lacks_its_straggler() -> None:
    keeper = Keeper((4,), patience_ns=1000, patience_led_ns=10)
    state = keeper.state
    part(keeper, 1, 3, flag=wire.CUSTODY | wire.FLUSH, fan_in=1)
    assert keeper.all.chunks[0, 0].due_ns == state.timer_ns == 1000
    part(keeper, 1, 0, flag=wire.CUSTODY, fan_in=3)
    assert keeper.all.chunks[0, 0].due_ns == state.timer_ns == 10
    assert [asked.kind for asked in keeper.round(10)] == [wire.REMINDER]
    assert keeper.all.chunks[0, 0].due_ns == 20

    part(keeper, 1, 0, 1, 2, chunk=1, flag=wire.CUSTODY, fan_in=3)
    assert keeper.all.chunks[0, 1].due_ns == 1000


def test_what_is_not_counted_is_not_acknowledged() -> None:
    keeper = Keeper()
    part(keeper, 1, 0, 2, flag=wire.CUSTODY)
    assert part(keeper, 1, 0, 1, flag=wire.CUSTODY).verdict == custody.NOTHING
    part(keeper, 1, part=HALF, owner=1, flag=wire.CUSTODY)
    assert (
        part(keeper, 1, part=ALL_SHARES >> np.uint64(8), owner=1, flag=wire.CUSTODY).verdict
        == custody.NOTHING
    )


def test_a_straggler_with_a_share_is_acknowledged_by_itself() -> None:
    keeper = Keeper((1, 3))
    out = part(keeper, 1, part=HALF, flag=wire.CUSTODY, worker=2, rack=1, owner=66)
    assert (out.verdict, out.packet.kind, out.packet.worker) == (custody.UNICAST, wire.ACK, 2)
    assert out.packet.level == 2


@pytest.mark.parametrize(("asks", "kind"), [(HALF, wire.ACK), (REST, wire.PULL), (np.uint64(0), wire.ACK)])
def test_a_query_about_shares(asks: Any, kind: int) -> None:
    keeper = Keeper()
    part(keeper, 1, 0, part=HALF)
    assert keeper.put(header(wire.QUERY, mask=0, owner=2, share=asks)).packet.kind == kind


def test_an_answer_may_still_carry_what_its_pull_asked_for() -> None:
    keeper = Keeper((2, 2))
    out = keeper.put(header(wire.ANSWER, mask=~np.uint64(0), owner=1, share=HALF, fan_in_upper=2), 5)
    assert (out.verdict, out.packet.kind, out.packet.share) == (custody.MULTICAST, wire.RESULT, 0)


def test_a_pull_names_the_micro_batches_that_are_missing() -> None:
    keeper = Keeper(reminders=0)
    part(keeper, 1, 0, part=HALF)
    packet = keeper.round(10**6)[0]
    assert (packet.owner, packet.share) == (2, REST)
    assert not packet.mask & mask_of(0, 2)
    assert packet.mask & mask_of(1)


def test_custodians_are_chosen_among_the_leaders() -> None:
    leaders = mask_of(1, 4, 6)
    chosen = [int(custody.custodian_for(chunk, 8, leaders, 3)) for chunk in range(600)]
    assert set(chosen) == {1, 4, 6}
    fewer = [int(custody.custodian_for(chunk, 8, mask_of(1, 6), 3)) for chunk in range(600)]
    assert all(b == a for a, b in zip(chosen, fewer, strict=True) if a != 4)
