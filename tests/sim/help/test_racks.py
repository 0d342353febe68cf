"""Racks, places in masks, and who carries the bits of the dead."""

from paceline.core.help.shares import ALL_SHARES
from paceline.sim.help.racks import Racks


def test_a_worker_has_its_bit_in_its_racks_mask() -> None:
    racks = Racks([0, 2, 0, 2, 2])
    assert racks.are_spread
    assert [racks.part(rank)[0] for rank in range(5)] == [1, 1, 2, 2, 4]
    assert racks.owner(3) == 2 * 64 + 1
    assert (racks.fan_in(0), racks.fan_in(2)) == (2, 3)


def test_only_leaders_bits_complete_a_racks_sum_in_help_mode() -> None:
    racks = Racks([0, 0, 1, 1])
    assert racks.fan_in(0, {0, 2, 3}) == 1
    assert racks.fan_in(1, {0, 2, 3}) == 2
    assert racks.fan_in(0, {2, 3}) == 1, "nobody there sends as a leader, and a fan-in is at least 1"


def test_a_survivor_of_the_rack_carries_a_dead_workers_bit_a_leader_first() -> None:
    racks = Racks([0, 0, 0, 1])
    assert racks.choose_carriers({0}, [1, 2, 3], {2, 3}) == []
    assert racks.carriers == {0: 2}
    assert racks.part(2) == (0b101, 0, 0)
    assert racks.fan_in(0, {2, 3}) == 2
    # Who carries goes on carrying; whoever carried and dies is followed.
    assert racks.choose_carriers({0, 2}, [1, 3], {1, 3}) == []
    assert racks.carriers == {0: 1, 2: 1}
    assert racks.part(1)[0] == 0b111


def test_where_a_rack_is_lost_others_carry_one_of_its_workers_each() -> None:
    racks = Racks([0, 0, 1, 1, 1])
    alive = [0, 1]
    assert racks.is_rack_lost(alive)
    assert racks.choose_carriers({2, 3, 4}, alive, set(alive)) == [4]
    assert {racks.part(rank)[1] for rank in alive} == {64, 65}
    assert all(racks.part(rank)[2] == int(ALL_SHARES) for rank in alive)
