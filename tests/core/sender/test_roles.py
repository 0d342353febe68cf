"""Roles, shares, credit, queries, pulls and epochs of a sender."""

from typing import Any

import numpy as np
import pytest

from paceline.core import wire
from paceline.core.bits import ALL_SHARES
from paceline.core.invariants import check_senders
from paceline.core.sender import program as sending
from paceline.core.sender.program import (
    ANSWER_IT,
    CREDITED,
    DONE,
    IDLE,
    IGNORE,
    LOST,
    NEVER_NS,
    NEW,
    POLL,
    SENT,
)
from tests.core.headers import header, mask_of
from tests.core.sender.test_program import RTO_NS, Sender

LEADERS = mask_of(0, 1, 2)


def leader(chunks: int = 100, **fields: Any) -> Sender:
    """A leader in help mode; its own bit is 1 of rack 0."""
    sender = Sender(**{"congestion": 1, "budget": 6, **fields})
    sending.take_role(sender.all, 0, 0, 1, 0, LEADERS, 3)
    sender.release(chunks)
    return sender


def ack(sender: Sender, chunk: int, now_ns: int = 10, **fields: Any) -> bool:
    fields = {"mask": mask_of(0, 1, 2), "flag": wire.CUSTODY, **fields}
    return bool(sending.handle_ack(sender.all, 0, header(wire.ACK, chunk=chunk, **fields), now_ns))


def pull(sender: Sender, chunk: int, **fields: Any) -> int:
    fields = {"mask": mask_of(1), **fields}
    return int(sending.handle_pull(sender.all, 0, header(wire.PULL, chunk=chunk, **fields)))


def state_of(sender: Sender, chunk: int) -> int:
    return int(sender.all.flights[0, chunk % sender.state.span].state)


def test_a_leader_asks_for_custody_at_the_fan_in_of_the_leaders() -> None:
    packet = leader().poll()
    assert (packet.kind, packet.flag, packet.fan_in) == (wire.GRADIENT, wire.CUSTODY, 3)


def test_the_oldest_without_a_credit_is_asked_about_where_all_before_it_have_one() -> None:
    """Its receipt was lost, and nothing comes after it that could overtake it."""
    sender = leader(chunks=3, inquires=1, in_order=1)
    for _ in range(3):
        sender.poll()
    for chunk in (0, 1):
        ack(sender, chunk)
    assert state_of(sender, 2) == SENT
    sending.handle_timeout(sender.all, 0, 100 * RTO_NS)
    asked = sender.poll(100 * RTO_NS)
    kinds = []
    while asked is not None:
        kinds.append((int(asked.kind), int(asked.chunk)))
        asked = sender.poll(100 * RTO_NS)
    assert (wire.QUERY, 2) in kinds


def test_a_straggler_never_holds_an_aggregator() -> None:
    sender = leader()
    sending.take_role(sender.all, 0, 1, 1, 1, LEADERS, 3)
    packet = sender.poll()
    assert (packet.flag, packet.fan_in, packet.epoch) == (wire.CUSTODY | wire.FLUSH, 1, 1)


def test_an_acknowledgement_gives_credit_and_keeps_the_chunk() -> None:
    sender = leader(window=2.0, congestion=0)
    assert sender.send() == [0, 1]
    assert ack(sender, 0)
    assert (state_of(sender, 0), sender.state.credited, sender.state.credits) == (CREDITED, 1, 1)
    assert sender.send() == [2]
    assert sender.state.oldest == 0
    assert not ack(sender, 0)
    assert sender.state.credited == 1


def test_the_result_of_a_credited_chunk_is_no_sign_of_a_loss() -> None:
    """Credit sets a longer timer; only one that ran out since tells of a copy that was lost."""
    sender = leader(window=2.0, inquires=1, in_order=1)
    sender.send()
    for chunk in (0, 1):
        ack(sender, chunk)
    assert sender.result(0) == NEW
    assert sender.state.losses == 0
    sending.handle_timeout(sender.all, 0, 100 * RTO_NS)
    assert sender.result(1) == NEW
    assert sender.state.losses == 1


def test_the_budget_bounds_how_far_a_leader_runs_ahead() -> None:
    sender = leader(window=2.0, budget=5, congestion=0)
    sent = sender.send()
    while sent and ack(sender, sent[0]):
        sent = sent[1:] + sender.send()
    assert sender.state.next == 5
    assert sender.result(0) == NEW
    assert sender.send() == [5]


def test_a_limit_bounds_it_too() -> None:
    sender = leader(window=4.0, limit=2)
    assert sender.send() == [0, 1]
    sender.state.limit = 3
    assert sender.send() == [2]


@pytest.mark.parametrize(
    "fields", [{"epoch": 1}, {"rack": 1}, {"mask": mask_of(0)}, {"chunk": 50}, {"chunk": -1}]
)
def test_an_acknowledgement_for_others_or_of_another_epoch_is_none(fields: dict[str, Any]) -> None:
    sender = leader()
    sender.send()
    assert not ack(sender, **{"chunk": 0, **fields})
    assert sender.state.credited == 0


def test_an_adopter_is_credited_for_all_that_it_carries_or_not_at_all() -> None:
    sender = leader()
    sending.set_share(sender.all, 0, mask_of(1, 4), 0, np.uint64(0))
    sender.send()
    assert not ack(sender, 0)
    assert ack(sender, 0, mask=mask_of(0, 1, 4))


def test_a_straggler_with_a_share_is_known_by_its_number() -> None:
    sender = leader()
    sending.set_share(sender.all, 0, np.uint64(0), 1, np.uint64(3))
    sender.send()
    assert not ack(sender, 0, worker=2)
    assert ack(sender, 0, worker=1, mask=0)


def test_the_round_trip_is_measured_to_the_acknowledgement_not_to_the_result() -> None:
    sender = leader()
    sender.send()
    ack(sender, 0, now_ns=40)
    assert sender.state.srtt_ns == 40.0
    sender.result(0, now_ns=90_000)
    assert sender.state.srtt_ns == 40.0


def test_acknowledgements_that_overtake_find_what_was_lost() -> None:
    sender = leader(window=6.0)
    sender.send()
    for chunk in (1, 2, 3):
        ack(sender, chunk)
    assert state_of(sender, 0) == LOST
    packet = sender.poll()
    assert (packet.chunk, packet.flag) == (0, wire.CUSTODY | wire.FLUSH)


def test_what_acknowledgements_overtook_is_counted_until_its_result_comes() -> None:
    sender = leader(8, window=8.0, budget=8, congestion=0, in_order=1, reorder_chunks=64)
    sender.send()
    for chunk, behind in [(2, 3), (1, 3), (5, 6)]:
        ack(sender, chunk)
        assert (sender.state.behind, check_senders(sender.all)) == (behind, [])
    for chunk, behind in [(5, 5), (0, 4), (6, 4), (2, 3), (1, 2), (3, 1), (4, 0), (7, 0)]:
        assert sender.result(chunk) == NEW
        assert (sender.state.behind, check_senders(sender.all)) == (behind, [])


def test_in_a_new_epoch_credit_has_overtaken_nothing() -> None:
    """Else all that was credited would look lost, and leave room in a window that it fills."""
    sender = leader(20, window=8.0, budget=16, span=16, congestion=0, in_order=1, reorder_chunks=1)
    sender.send()
    for chunk in range(8):
        ack(sender, chunk)
    sender.send()
    sender.result(1)
    assert sender.state.behind == 7
    sending.take_role(sender.all, 0, 1, 0, 0, np.uint64(0), 4)
    assert (sender.state.highest_done, sender.state.behind, check_senders(sender.all)) == (1, 1, [])
    now_ns = 50_000
    assert sender.send(now_ns) == [0, *range(2, 9)], "a window of what goes again"
    sender.timeout(now_ns + 10)
    assert [chunk for chunk in range(9) if state_of(sender, chunk) == LOST] == [0], "overtaken by a result"


def test_waiting_for_a_straggler_sends_nothing_again() -> None:
    """Only the oldest chunk is asked about, with back-off, by a packet without payload."""
    sender = leader(4, window=4.0, resends_max=60)
    sender.send()
    for chunk in range(4):
        ack(sender, chunk)
    asked = []
    while sender.state.timer_ns < 100_000:
        now_ns = int(sender.state.timer_ns)
        sender.timeout(now_ns)
        while (packet := sender.poll(now_ns)) is not None:
            asked.append((int(packet.kind), int(packet.chunk), int(packet.count)))
            ack(sender, 0, now_ns=now_ns)
    assert 3 < len(asked) < 40
    assert set(asked) == {(wire.QUERY, 0, 0)}
    assert sender.state.resent == 0
    assert sender.state.failed == 0


def test_a_custodian_that_never_answers_is_given_up() -> None:
    sender = leader(1)
    sender.send()
    ack(sender, 0)
    for _ in range(20):
        if sender.state.failed:
            break
        sender.timeout(int(sender.state.timer_ns))
        sender.send()
    assert sender.state.failed == 1


def test_a_result_that_was_overtaken_is_asked_for() -> None:
    sender = leader(6, window=8.0)
    sender.send()
    for chunk in range(6):
        ack(sender, chunk)
    for chunk in (0, 2, 4):
        assert sender.result(chunk, 1_000) == NEW
    asked = set()
    now_ns = 1_000
    for _ in range(6):
        now_ns = max(now_ns, int(sender.state.timer_ns))
        sender.timeout(now_ns)
        while (packet := sender.poll(now_ns)) is not None:
            asked.add((int(packet.kind), int(packet.chunk)))
    assert asked == {(wire.QUERY, 1), (wire.QUERY, 3)}


def test_a_pull_for_a_credited_chunk_is_answered_by_a_question() -> None:
    sender = leader()
    sender.send()
    ack(sender, 0)
    assert pull(sender, 0) == POLL
    assert sender.poll().kind == wire.QUERY
    assert pull(sender, 0, flag=wire.FLUSH, worker=1) == POLL
    packet = sender.poll()
    assert (packet.kind, packet.chunk, packet.flag & wire.FLUSH) == (wire.GRADIENT, 0, wire.FLUSH)
    assert sender.state.credited == 0


def test_where_parts_change_whoever_holds_a_result_answers_for_it() -> None:
    """A pull names those who are missing by the parts of the chunk's own iteration, and these may have changed."""
    sender = leader()
    sender.send()
    sender.result(0)
    assert pull(sender, 0, mask=mask_of(5)) == IGNORE
    sending.set_share(sender.all, 0, mask_of(1), 0, np.uint64(0))
    assert pull(sender, 0, mask=mask_of(5)) == ANSWER_IT
    assert pull(sender, 1, mask=mask_of(5)) == IGNORE


def test_a_pull_is_answered_by_the_result_else_by_a_resend_else_not() -> None:
    sender = leader()
    sender.send()
    sender.result(1)
    assert pull(sender, 1) == ANSWER_IT
    assert pull(sender, 1, epoch=7) == ANSWER_IT
    assert pull(sender, 0) == POLL
    assert state_of(sender, 0) == LOST
    assert pull(sender, 2, epoch=7) == IGNORE
    assert pull(sender, 2, mask=mask_of(0)) == IGNORE
    assert pull(sender, 90) == IGNORE


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"mask": mask_of(1)}, True),
        ({"mask": mask_of(5)}, True),
        ({"mask": mask_of(0)}, False),
        ({"mask": 0, "owner": 5, "share": np.uint64(1)}, True),
        ({"mask": 0, "owner": 5, "share": np.uint64(4)}, False),
        ({"mask": 0, "owner": 4, "share": np.uint64(1)}, False),
        ({"mask": mask_of(0), "fan_in_upper": 2}, True),
        ({"mask": mask_of(1), "fan_in_upper": 2}, False),
    ],
)
def test_a_helper_is_asked_by_its_bit_or_for_its_share(fields: dict[str, Any], asked: bool) -> None:
    sender = leader()
    sending.set_share(sender.all, 0, mask_of(1), 5, np.uint64(3))
    sender.send()
    assert (pull(sender, 0, **fields) == POLL) == asked


def test_a_helper_sends_its_bit_and_its_share_in_one_packet() -> None:
    sender = leader()
    sending.set_share(sender.all, 0, mask_of(1), 5, np.uint64(3))
    packet = sender.poll()
    assert (packet.mask, packet.owner, packet.share) == (2, 5, 3)


def test_who_contributes_nothing_sends_nothing_and_asks() -> None:
    sender = leader(4)
    sending.set_share(sender.all, 0, np.uint64(0), 0, np.uint64(0))
    assert sender.send(100) == []
    assert (sender.state.next, sender.state.credited) == (4, 4)
    assert sender.state.timer_ns < NEVER_NS
    sender.timeout(int(sender.state.timer_ns))
    packet = sender.poll(10_000)
    assert (packet.kind, packet.chunk, packet.mask, packet.share) == (wire.QUERY, 0, 0, 0)
    assert [sender.result(chunk) for chunk in range(4)] == [NEW] * 4
    assert (sender.state.credited, sender.state.unfinished, sender.state.sent) == (0, 0, 0)


def test_a_new_epoch_sends_everything_again_as_new_and_within_the_window() -> None:
    sender = leader(6, window=2.0, congestion=0)
    sent = sender.send()
    while sent and ack(sender, sent[0]):
        sent = sent[1:] + sender.send()
    assert sender.result(2) == NEW
    assert sending.take_role(sender.all, 0, 1, 0, 0, np.uint64(0), 4) == 5
    assert (sender.state.credited, sender.state.lost) == (0, 5)
    packets = [sender.poll(), sender.poll()]
    assert [(int(packet.chunk), int(packet.flag), int(packet.epoch)) for packet in packets] == [
        (0, 0, 1),
        (1, 0, 1),
    ]
    assert sender.poll() is None
    assert (state_of(sender, 0), state_of(sender, 2), state_of(sender, 3)) == (SENT, DONE, LOST)
    sender.timeout(10 * RTO_NS)
    assert sender.poll().flag == wire.FLUSH


def test_an_epoch_in_which_a_worker_has_nothing_to_say_and_the_next() -> None:
    sender = leader(2)
    sender.send()
    sending.set_share(sender.all, 0, np.uint64(0), 0, np.uint64(0))
    assert sending.take_role(sender.all, 0, 1, 1, 1, LEADERS, 3) == 0
    assert (sender.send(), sender.state.credited) == ([], 2)
    sending.set_share(sender.all, 0, mask_of(1), 0, np.uint64(0))
    assert sending.take_role(sender.all, 0, 2, 1, 0, LEADERS, 3) == 2
    assert sender.send() == [0, 1]
    assert [sender.result(0), sender.result(1)] == [NEW, NEW]
    assert state_of(sender, 0) == IDLE


def test_a_straggler_that_keeps_all_may_say_so_by_its_share() -> None:
    sender = leader()
    sending.set_share(sender.all, 0, np.uint64(0), 1, ALL_SHARES)
    packet = sender.poll()
    assert (packet.mask, packet.share) == (0, ALL_SHARES)


def test_leaders_of_a_helped_job_are_in_no_hurry() -> None:
    assert sending.effective_priority(header(flag=0), 200) == 200
    assert sending.effective_priority(header(flag=wire.CUSTODY), 200) == 0
