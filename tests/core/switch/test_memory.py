"""Switch memory: what goes in comes out, and who may take an aggregator from whom."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import wire
from paceline.core.bits import seed_word
from paceline.core.switch import memory
from paceline.core.switch.state import new_switches
from tests.core.headers import WIDTH, header, mask_of

CARRIED = ("chunk", "job", "epoch", "mask", "count", "window", "fan_in", "fan_in_upper")
CARRIED += ("custodian", "worker", "rack", "level", "priority", "flag")
"""What an aggregator keeps of a packet."""


def full(seed: int) -> Any:
    """A header with a different number in every field that an aggregator keeps, near the end of its range."""
    return header(
        chunk=2**62 - seed,
        job=seed,
        epoch=65_535 - seed,
        mask=2**64 - seed,
        window=seed,
        fan_in=64 - seed,
        fan_in_upper=60 - seed,
        custodian=65_535 - seed,
        worker=65_000 - seed,
        rack=63 - seed,
        level=1 + seed % 2,
        priority=255 - seed,
        flag=seed,
    )


def kept(packet: Any) -> dict[str, int]:
    return {name: int(packet[name]) for name in CARRIED}


def payload(first: int) -> Any:
    return np.array([[first, first + 1]], dtype=np.int32)


def config_of(policy: str, rules: int = memory.ALL_RULES) -> Any:
    """A switch's configuration; its aggregators are stale after 1,000 ns."""
    return new_switches([1], 1, 1, WIDTH, memory.POLICIES[policy], 1_000, 1, rules=rules).config[0]


def test_memory_begins_empty() -> None:
    fresh = memory.new_memory(3, WIDTH)
    assert fresh.slots.job.tolist() == [-1, -1, -1]
    assert fresh.slots.state.tolist() == [memory.EMPTY] * 3
    assert fresh.values.shape == (3, WIDTH)


def test_what_is_stored_is_taken_out_again_in_every_field() -> None:
    held = memory.new_memory(2, WIDTH)
    memory.store(held, 1, full(3), payload(5), 0, 40)
    out, values = header(), payload(0)
    memory.take_out(held, 1, out, values, 0)
    assert kept(out) == kept(full(3))
    assert values.tolist() == [[5, 6]]
    assert (held.slots[1].state, held.slots[1].since_ns) == (memory.FILLING, 40)
    assert held.slots[0].state == memory.EMPTY


def test_a_swap_exchanges_every_field_and_the_values() -> None:
    held = memory.new_memory(1, WIDTH)
    memory.store(held, 0, full(3), payload(5), 0, 40)
    packet, values = full(4), payload(9)
    memory.swap(held, 0, packet, values, 0, 50)
    assert kept(packet) == kept(full(3))
    assert values.tolist() == [[5, 6]]
    out, taken = header(), payload(0)
    memory.take_out(held, 0, out, taken, 0)
    assert kept(out) == kept(full(4))
    assert taken.tolist() == [[9, 10]]
    assert (held.slots[0].state, held.slots[0].since_ns) == (memory.FILLING, 50)


@settings(deadline=None)
@given(st.integers(-(2**31), 2**31 - 2), st.integers(-(2**31), 2**31 - 2))
def test_adding_joins_masks_and_wraps_sums(a: int, b: int) -> None:
    held = memory.new_memory(1, WIDTH)
    memory.store(held, 0, header(mask=mask_of(0)), payload(a), 0, 1)
    memory.add(held, 0, header(mask=mask_of(5), flag=wire.ECN | wire.FLUSH), payload(b), 0, 2)
    assert held.slots[0].mask == mask_of(0, 5)
    assert held.slots[0].since_ns == 2
    assert held.slots[0].flag == wire.ECN
    assert [int(v) for v in held.values[0]] == [(a + b + lane + 2**31) % 2**32 - 2**31 for lane in (0, 2)]


def test_a_freed_aggregator_is_blank() -> None:
    held = memory.new_memory(1, WIDTH)
    memory.store(held, 0, full(3), payload(5), 0, 40)
    memory.free(held, 0)
    slot = held.slots[0]
    assert (slot.job, slot.state, slot.mask, slot.priority) == (-1, memory.EMPTY, 0, 0)
    assert not memory.holds(slot, full(3))


@pytest.mark.parametrize(
    ("field", "value", "same"),
    [("mask", 2, True), ("priority", 1, True), ("chunk", 9, False), ("job", 1, False), ("epoch", 1, False)],
)
def test_an_aggregator_works_on_one_job_epoch_and_chunk(field: str, value: int, same: bool) -> None:
    held = memory.new_memory(1, WIDTH)
    memory.store(held, 0, header(), payload(1), 0, 0)
    assert memory.holds(held.slots[0], header(**{field: value})) is same


@pytest.mark.parametrize(
    ("policy", "priority", "now_ns", "answer"),
    [
        ("esa", 11, 0, memory.TAKE),
        ("esa", 10, 0, memory.KEEP),
        ("esa", 9, 10**9, memory.KEEP),
        ("atp", 255, 1_100, memory.KEEP),
        ("atp", 1, 1_101, memory.TAKE),
        ("always-preempt", 0, 0, memory.TAKE),
        ("never", 255, 10**9, memory.KEEP),
        ("esa-plus", 10, 0, memory.TAKE),
        ("switchml", 255, 10**9, memory.KEEP),
        ("none", 255, 10**9, memory.KEEP),
    ],
)
def test_who_may_take_an_aggregator(policy: str, priority: int, now_ns: int, answer: int) -> None:
    """The holder has priority 10 and was last touched at 100 ns; it is stale after 1,000 ns."""
    held = memory.new_memory(1, WIDTH)
    memory.store(held, 0, header(priority=10), payload(1), 0, 100)
    random = np.array([seed_word(1)], dtype=np.uint64)
    before = held.slots.tobytes(), random.tobytes()
    assert memory.decide(config_of(policy), held.slots[0], priority, now_ns, random, 0) == answer
    assert (held.slots.tobytes(), random.tobytes()) == before


@pytest.mark.parametrize(
    ("inside", "highest_that_gives_way"),
    [(1, 10 + memory.MARGIN - 1), (4, 10 + memory.MARGIN + 5 - 1), (7, 10 + memory.MARGIN + 16 - 1)],
)
def test_the_more_an_aggregator_holds_the_cheaper_it_is_to_take(
    inside: int, highest_that_gives_way: int
) -> None:
    """Of 8: evicting 1, 4 or 7 sends 8, 5 or 2 packets to the custodian; refusing sends 8. An octave is 8 steps."""
    for holder in (highest_that_gives_way, highest_that_gives_way + 1):
        held = memory.new_memory(1, WIDTH)
        memory.store(
            held, 0, header(priority=holder, fan_in=8, mask=mask_of(*range(inside))), payload(1), 0, 0
        )
        answer = memory.decide(config_of("esa-plus"), held.slots[0], 10, 0, np.zeros(1, np.uint64), 0)
        assert answer == (memory.TAKE if holder == highest_that_gives_way else memory.KEEP)


@pytest.mark.parametrize(
    ("rules", "holder", "answer"),
    [
        (memory.ALL_RULES & ~memory.BY_PRIORITY, 255, memory.TAKE),
        (memory.ALL_RULES & ~memory.BY_COST, 10, memory.KEEP),
        (memory.ALL_RULES & ~memory.BY_COST, 9, memory.TAKE),
        (0, 255, memory.TAKE),
    ],
    ids=["all are equal without priority", "ties keep without cost", "higher takes", "none: always"],
)
def test_rules_of_esa_plus_can_be_left_out(rules: int, holder: int, answer: int) -> None:
    held = memory.new_memory(1, WIDTH)
    memory.store(held, 0, header(priority=holder), payload(1), 0, 0)
    config = config_of("esa-plus", rules)
    assert memory.decide(config, held.slots[0], 10, 0, np.zeros(1, np.uint64), 0) == answer


def test_marks_tell_chunks_and_jobs_apart() -> None:
    marks = {int(memory.mark_of(header(job=job, chunk=chunk))) for job in range(8) for chunk in range(1_000)}
    assert len(marks) > 7_990
    assert 0 not in marks


def test_a_coin_is_fair() -> None:
    held = memory.new_memory(1, WIDTH)
    memory.store(held, 0, header(priority=10), payload(1), 0, 100)
    random = np.array([seed_word(1)], dtype=np.uint64)
    config = config_of("coin-flip")
    taken = sum(memory.decide(config, held.slots[0], 0, 0, random, 0) == memory.TAKE for _ in range(2_000))
    assert 900 < taken < 1_100


def test_memory_without_values_keeps_the_rest() -> None:
    held = memory.new_memory(1, 0)
    memory.store(held, 0, full(3), np.zeros((1, 0), dtype=np.int32), 0, 40)
    memory.add(held, 0, header(mask=np.uint64(1)), np.zeros((1, 0), dtype=np.int32), 0, 41)
    assert held.slots[0].job == 3
