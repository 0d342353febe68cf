"""Every checker is silent about a sound state and speaks up about a spoilt one."""

from collections.abc import Callable

import pytest

from paceline.core import invariants, wire
from paceline.core.custodian import program as custody
from paceline.core.switch import memory
from tests.core.headers import mask_of
from tests.core.star import Faults, Job, Star


def half_way(policy: str) -> Star:
    """A run stopped while aggregators and custodians hold partial sums."""
    star = Star(
        policy, [Job((0,) * 4, 60), Job((0,) * 3, 60, 90)], slots=6, seed=5, faults=Faults(0.1, 0.1, 0.2)
    )
    while star.step():
        slots = star.switch.memory.slots
        busy = (slots.state == memory.FILLING).any() and (slots.state == memory.EMPTY).any()
        kept = star.custodians.chunks.state
        if star.steps > 100 and busy and (kept == custody.OPEN).any() and (kept == custody.FINISHED).any():
            return star
    raise AssertionError("never half way")


@pytest.fixture
def star() -> Star:
    return half_way("esa")


def filling(star: Star) -> int:
    return int((star.switch.memory.slots.state == memory.FILLING).argmax())


def kept(star: Star, state: int) -> tuple[int, int]:
    k, at = divmod(int((star.custodians.chunks.state == state).argmax()), star.custodians.chunks.shape[1])
    return k, at


def test_a_sound_state_has_no_violations(star: Star) -> None:
    assert star.check_now() == []


def spoil_value(star: Star) -> None:
    star.switch.memory.values[filling(star), 1] ^= 4


def spoil_mask(star: Star) -> None:
    star.switch.memory.slots[filling(star)].mask ^= mask_of(0)


def spoil_state(star: Star) -> None:
    star.switch.memory.slots[filling(star)].state = memory.HELD


def spoil_full(star: Star) -> None:
    slot = star.switch.memory.slots[filling(star)]
    slot.fan_in = 1


def spoil_blank(star: Star) -> None:
    star.switch.memory.slots[filling(star)].mask = 0


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_value, "does not hold the sum over its mask"),
        (spoil_mask, "does not hold the sum over its mask"),
        (spoil_state, "is complete with"),
        (spoil_full, "is full and was not given out"),
        (spoil_blank, "holds no contribution"),
    ],
)
def test_an_aggregator_that_is_not_its_mask_is_found(
    star: Star, spoil: Callable[[Star], None], words: str
) -> None:
    spoil(star)
    assert any(words in line for line in invariants.check_aggregators(star.switch, star.truth))


def test_a_wrong_answer_kept_by_switchml_is_found() -> None:
    star = Star("switchml", [Job((0, 0), 4)], slots=8, seed=1)
    while not (star.switch.memory.slots.state == memory.ANSWERED).any():
        assert star.step()
    assert invariants.check_aggregators(star.switch, star.truth) == []
    star.switch.memory.values[int((star.switch.memory.slots.state == memory.ANSWERED).argmax()), 0] += 1
    assert len(invariants.check_aggregators(star.switch, star.truth)) == 1


@pytest.mark.parametrize("state", [custody.OPEN, custody.FINISHED])
def test_a_custodians_wrong_sum_is_found(star: Star, state: int) -> None:
    star.custodians.values[(*kept(star, state), 0)] ^= 1
    assert any(
        "does not hold the sum" in line for line in invariants.check_custody(star.custodians, star.truth)
    )


def test_a_contribution_counted_without_its_bit_is_found(star: Star) -> None:
    k, at = kept(star, custody.OPEN)
    star.custodians.masks[k, at, 0] ^= mask_of(0)
    assert invariants.check_custody(star.custodians, star.truth)


def test_a_full_chunk_without_a_result_is_found(star: Star) -> None:
    k, at = kept(star, custody.FINISHED)
    star.custodians.chunks[k, at].state = custody.OPEN
    star.custodians.chunks[k, at].racks = mask_of(0)
    assert any("made no result" in line for line in invariants.check_custody(star.custodians, star.truth))


@pytest.mark.parametrize("kind", [wire.GRADIENT, wire.PARTIAL, wire.RESULT])
def test_a_packet_that_is_not_its_mask_is_found(star: Star, kind: int) -> None:
    packet = wire.new_packets(1)[0]
    packet.kind, packet.job, packet.chunk, packet.level, packet.mask = kind, 1, 3, 1, mask_of(0, 2)
    values = (
        star.total_of(1, 3)
        if kind == wire.RESULT
        else star.share_of(1, 1, 0, 0, 3) + star.share_of(1, 1, 0, 2, 3)
    )
    assert invariants.check_packet(packet, values, star.truth) == []
    values[0] += 1
    assert len(invariants.check_packet(packet, values, star.truth)) == 1


def test_packets_without_a_sum_are_not_judged(star: Star) -> None:
    packet = wire.new_packets(1)[0]
    packet.kind = wire.PULL
    assert invariants.check_packet(packet, [1, 2, 3], star.truth) == []


def test_a_leaked_aggregator_is_found(star: Star) -> None:
    star.switch.jobs[0, int(star.switch.memory.slots[filling(star)].job)].active = 0
    assert any("has left and holds" in line for line in invariants.check_accounts(star.switch))


def test_a_wrong_count_is_found(star: Star) -> None:
    star.switch.jobs[0, 1].used += 1
    assert any("are counted" in line for line in invariants.check_accounts(star.switch))


def test_a_broken_cap_is_found(star: Star) -> None:
    star.switch.jobs[0, int(star.switch.memory.slots[filling(star)].job)].slots_max = 0
    assert any("may hold 0" in line for line in invariants.check_accounts(star.switch))


@pytest.mark.parametrize(
    ("field", "value", "words"), [("job", -1, "filling with job -1"), ("mask", 4, "empty with mask 0x4")]
)
def test_an_aggregator_that_is_half_empty_is_found(star: Star, field: str, value: int, words: str) -> None:
    slots = star.switch.memory.slots
    at = filling(star) if field == "job" else int((slots.state == memory.EMPTY).argmax())
    slots[at][field] = value
    assert any(words in line for line in invariants.check_accounts(star.switch))


@pytest.mark.parametrize("policy", ["esa", "switchml"])
def test_a_sender_that_has_not_ended_is_found(policy: str) -> None:
    star = Star(policy, [Job((0, 0), 6)], slots=4)
    assert star.run() == []
    assert invariants.check_ended(star.senders) == []
    state = star.senders.state[0]
    state.released += 1
    assert invariants.check_ended(star.senders)
    state.released -= 1
    for field, words in (("failed", "gave up"), ("unfinished", "unfinished"), ("lost", "to be resent")):
        state[field] = 1
        assert any(words in line for line in invariants.check_ended(star.senders))
        state[field] = 0
    star.senders.flights[0, 0].state = 2
    assert any("is lost" in line for line in invariants.check_ended(star.senders))


@pytest.mark.parametrize("name", ["unfinished", "lost", "credited", "asking", "behind"])
def test_a_sender_that_has_lost_count_is_found(star: Star, name: str) -> None:
    assert invariants.check_senders(star.senders) == []
    star.senders.state[0][name] += 1
    assert [name in line for line in invariants.check_senders(star.senders)] == [True]
