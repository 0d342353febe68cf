"""The sending side: windows, timers by RFC 6298, losses found once, results taken once."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import wire
from paceline.core.homes import HOME, home_word
from paceline.core.invariants import check_ended, check_senders
from paceline.core.sender import congestion
from paceline.core.sender import program as sending
from paceline.core.sender.flights import forget_backoff
from paceline.core.sender.program import DUPLICATE, NEVER_NS, NEW, UNKNOWN
from tests.core.headers import header

RTO_NS = 1_000


class Sender:
    """One sender and its driver; by default a stream with a window of four and room for eight."""

    def __init__(self, *, span: int = 8, window: float = 4.0, rto_ns: int = RTO_NS, **fields: Any) -> None:
        self.all = sending.new_senders(1, span)
        self.state = self.all.state[0]
        settings_ = {
            "span": span, "window_min": 1.0, "window_max": 64.0, "rto_min_ns": 10, "rto_max_ns": 100_000,
            "reorder_chunks": 3, "reorder_rtts": 0.0, "resends_max": 5, "slots": 16, "job": 2, "worker": 1,
            "mask": 2, "fan_in": 4, "fan_in_upper": 1, "count": 7, "flush": 1,
        }  # fmt: skip
        for name, value in {**settings_, **fields}.items():
            setattr(self.state, name, value)
        sending.start(self.all, 0, window, rto_ns)

    def release(self, chunks: int) -> None:
        sending.release(self.all, 0, chunks)

    def poll(self, now_ns: int = 0) -> Any:
        """The next packet, or None."""
        packet = header()
        return packet if sending.poll_transmit(self.all, 0, packet, now_ns) else None

    def send(self, now_ns: int = 0) -> list[int]:
        """The chunks of all packets that may go now."""
        chunks = []
        while (packet := self.poll(now_ns)) is not None:
            chunks.append(int(packet.chunk))
        return chunks

    def result(self, chunk: int, now_ns: int = 0, **fields: Any) -> int:
        return int(sending.handle_result(self.all, 0, header(wire.RESULT, chunk=chunk, **fields), now_ns))

    def timeout(self, now_ns: int) -> int:
        return int(sending.handle_timeout(self.all, 0, now_ns))


def started(chunks: int = 100, **fields: Any) -> Sender:
    sender = Sender(**fields)
    sender.release(chunks)
    return sender


# --- streams: what goes next --------------------------------------------------------------------------------


def test_nothing_goes_before_it_is_released() -> None:
    sender = Sender()
    assert sender.send() == []
    sender.release(2)
    assert sender.send() == [0, 1]
    sender.release(1)
    assert sender.send() == []


def test_a_packet_carries_what_the_sender_is() -> None:
    packet = started(rack=3, epoch=9).poll()
    assert (packet.kind, packet.flag, packet.magic, packet.version) == (
        wire.GRADIENT,
        0,
        wire.MAGIC,
        wire.VERSION,
    )
    assert (packet.job, packet.worker, packet.mask, packet.rack, packet.epoch) == (2, 1, 2, 3, 9)
    assert (packet.fan_in, packet.fan_in_upper, packet.count, packet.level) == (4, 1, 7, 1)
    assert 0 <= packet.index < 16


def test_the_window_bounds_the_chunks_without_a_result() -> None:
    sender = started()
    assert sender.send() == [0, 1, 2, 3]
    assert sender.send() == []
    assert sender.result(0) == NEW
    assert sender.send() == [4]


def test_a_stream_never_goes_further_than_its_span_past_the_oldest() -> None:
    sender = started(window=64.0, reorder_chunks=100)
    assert sender.send() == list(range(8))
    for chunk in range(1, 8):
        sender.result(chunk)
    assert sender.send() == []
    sender.result(0)
    assert sender.send() == list(range(8, 16))


def test_chunks_of_one_lane_use_one_aggregator_until_another_is_offered() -> None:
    sender = started(span=2, window=2.0)
    first = int(sender.poll().index)
    sender.result(0)
    sender.send()
    sender.result(1)
    sender.result(2, flag=wire.COLLISION, offer=21)
    assert int(sender.all.flights[0, 0].index) == 21 % 16
    assert first == sending.mix(3, 0) % 16


def test_a_place_comes_back_to_the_row_with_its_next_sum_that_found_an_aggregator() -> None:
    """Else a job that has met others is scattered, and meets itself where memory is small."""
    sender = started(chunks=1_000, minds_memory=1, slots=44, window=64.0, span=8)
    row = [int(sender.poll().index) for _ in range(8)]
    assert row == [(row[0] + k) % 44 for k in range(8)]
    for chunk in range(8):
        sender.result(chunk, flag=wire.COLLISION if chunk in (2, 3) else 0, offer=(row[chunk] + 20) % 44)
    moved = [int(sender.poll().index) for _ in range(8)]
    assert moved == [(row[0] + 8 + k) % 44 if k not in (2, 3) else (row[k] + 20) % 44 for k in range(8)]
    for chunk in range(8, 16):
        sender.result(chunk)
    assert [int(sender.poll().index) for _ in range(8)] == [(row[0] + 16 + k) % 44 for k in range(8)]


def test_a_place_goes_to_the_home_that_its_result_tells_collision_or_not() -> None:
    sender = started(chunks=1_000, minds_memory=1, slots=44, window=64.0, span=8)
    sender.send()
    for chunk in range(8):
        sender.result(chunk, flag=wire.COLLISION if chunk in (2, 3) else 0, offer=home_word(1, 2))
    assert [int(sender.poll().index) for _ in range(8)] == [22 + chunk % 22 for chunk in range(8, 16)]


def test_there_is_room_for_as_many_chunks_as_the_home_has_aggregators() -> None:
    sender = started(chunks=1_000, minds_memory=1, slots=44, window=64.0, span=256)
    sender.state.congestion = congestion.TOGETHER
    for chunk in range(200):
        sender.send()
        sender.result(chunk, offer=home_word(1, 8))
    assert sender.state.room == 5.0
    # By custodians alone nobody tells a home, and room comes back.
    for chunk in range(200, 400):
        sender.send()
        sender.result(chunk)
    assert sender.state.room > 5.0


def _queries(sender: Sender, now_ns: int) -> list[int]:
    """The chunks that are asked about now."""
    sender.timeout(now_ns)
    asked = []
    while (packet := sender.poll(now_ns)) is not None:
        if packet.kind == wire.QUERY:
            asked.append(int(packet.chunk))
    return asked


def test_what_was_lost_together_is_asked_for_together() -> None:
    """All results of a window were lost in a full queue: one after the other, each would wait for a timer."""
    sender = started(chunks=8, window=8.0, in_order=1, inquires=1)
    sender.send()
    assert _queries(sender, RTO_NS) == [0]
    sender.result(0, RTO_NS + 10, worker=int(sender.state.worker))
    assert sender.state.timer_ns <= RTO_NS + 10
    assert _queries(sender, RTO_NS + 10) == list(range(1, 8))


def test_a_late_result_is_no_sign_of_a_loss() -> None:
    """It was asked for, and came because another worker's contribution did: nothing was lost."""
    sender = started(chunks=8, window=8.0, in_order=1, inquires=1)
    sender.send()
    assert _queries(sender, RTO_NS) == [0]
    sender.result(0, RTO_NS + 10, worker=int(sender.state.worker) + 1)
    assert sender.state.losses == 0
    assert _queries(sender, RTO_NS + 10) == [1], "the oldest alone, which is overdue itself"


def test_after_a_late_worker_came_the_others_results_are_waited_for_a_little() -> None:
    """It was told that its contribution is counted, and is asked about again only once nothing comes any more."""
    sender = started(chunks=8, window=8.0, in_order=1, inquires=1, rto_min_ns=160)
    sender.state.srtt_ns, sender.state.reorder_rtts = 20.0, 2.0
    sender.send()
    assert _queries(sender, RTO_NS) == [0]
    sending.handle_ack(sender.all, 0, header(wire.ACK, chunk=0, mask=2, worker=1, job=2), RTO_NS + 10)
    for chunk in range(3):
        now_ns = 2 * RTO_NS + 40 * chunk
        sender.result(chunk, now_ns)
        assert _queries(sender, now_ns) == []
    # The rest of the results were lost.
    assert now_ns + 10 < sender.state.timer_ns <= now_ns + 2 * 20 + 160 // 16
    assert _queries(sender, int(sender.state.timer_ns)) == [3]


def test_who_minds_memory_asks_for_a_home() -> None:
    """Where windows are agreed: where each worker judges alone, so it does of memory."""
    together = started(minds_memory=1, slots=44, congestion=congestion.TOGETHER)
    assert int(together.poll().offer) == HOME
    assert int(started(minds_memory=1, slots=44).poll().offer) == 0
    assert int(started().poll().offer) == 0


def test_all_workers_of_a_job_agree_on_the_aggregators() -> None:
    assert (started(worker=1, mask=2).all.flights.index == started(worker=3, mask=8).all.flights.index).all()


def test_a_sender_that_starts_again_has_forgotten_everything() -> None:
    fresh = Sender().state.tobytes()
    sender = started()
    sender.send()
    sender.result(0, 40)
    sender.timeout(10**6)
    for counter in ("sent", "resent", "timeouts", "duplicates", "marks", "losses", "round_losses"):
        sender.state[counter] = 0
    sending.start(sender.all, 0, 4.0, RTO_NS)
    assert sender.state.tobytes() == fresh
    assert sender.send() == []


# --- results ------------------------------------------------------------------------------------------------


def test_a_result_is_new_once() -> None:
    sender = started()
    sender.send()
    assert [sender.result(1), sender.result(1), sender.result(0), sender.result(0), sender.result(1)] == [
        NEW, DUPLICATE, NEW, DUPLICATE, DUPLICATE,
    ]  # fmt: skip
    assert sender.state.duplicates == 3
    assert (sender.state.oldest, sender.state.unfinished) == (2, 2)


@pytest.mark.parametrize("chunk", [4, 50, 2**61])
def test_a_result_of_a_chunk_never_sent_is_unknown(chunk: int) -> None:
    sender = started()
    sender.send()
    before = sender.all.flights.tobytes()
    assert sender.result(chunk) == UNKNOWN
    assert sender.all.flights.tobytes() == before
    assert sender.state.unfinished == 4


def test_a_result_ends_a_chunk_that_was_taken_for_lost() -> None:
    sender = started()
    sender.send()
    sender.timeout(RTO_NS)
    assert sender.result(0) == NEW
    assert sender.send(RTO_NS) == [1, 2, 3, 4]
    assert sender.state.lost == 0


def test_a_worker_can_give_results_that_it_holds_to_others() -> None:
    sender = started()
    sender.send()
    sender.result(0)
    sender.result(2)
    holds = [bool(sending.holds_result(sender.all, 0, chunk)) for chunk in range(5)]
    assert holds == [True, False, True, False, False]


def test_a_result_older_than_the_span_is_not_promised() -> None:
    sender = started(span=2, window=2.0)
    for chunk in range(5):
        sender.send()
        sender.result(chunk)
    assert [bool(sending.holds_result(sender.all, 0, chunk)) for chunk in (2, 3, 4)] == [False, True, True]


def test_a_sender_with_all_results_has_ended() -> None:
    sender = started(chunks=3)
    sender.send()
    assert check_ended(sender.all)
    for chunk in range(3):
        sender.result(chunk)
    assert check_ended(sender.all) == []


# --- timers: RFC 6298 ---------------------------------------------------------------------------------------


def test_the_timer_follows_rfc_6298() -> None:
    """Samples of 100, 200 and 100 ns, worked by hand from section 2 of the RFC."""
    sender = started()
    sender.send(0)
    sender.result(0, 100)
    assert (sender.state.srtt_ns, sender.state.rttvar_ns, sender.state.rto_ns) == (100.0, 50.0, 300)
    sender.result(1, 200)
    assert (sender.state.srtt_ns, sender.state.rttvar_ns, sender.state.rto_ns) == (112.5, 62.5, 362)
    sender.result(2, 100)
    assert (sender.state.srtt_ns, sender.state.rttvar_ns) == (110.9375, 50.0)
    assert sender.state.rto_ns == 310


@pytest.mark.parametrize(("rtt_ns", "rto_ns"), [(1, 10), (10**9, 100_000)])
def test_the_timer_stays_between_its_bounds(rtt_ns: int, rto_ns: int) -> None:
    sender = started()
    sender.send()
    sender.result(0, rtt_ns)
    assert sender.state.rto_ns == rto_ns


def test_no_sample_comes_from_a_chunk_that_was_resent() -> None:
    sender = started(chunks=1)
    sender.send()
    sender.timeout(RTO_NS)
    assert sender.send(RTO_NS) == [0]
    sender.result(0, RTO_NS + 3)
    assert (sender.state.srtt_ns, sender.state.rto_ns) == (0.0, RTO_NS)


def test_an_overdue_chunk_goes_again_with_the_flush_flag() -> None:
    sender = started(chunks=2)
    sender.send()
    assert sender.state.timer_ns == RTO_NS
    assert sender.timeout(RTO_NS - 1) == 0
    assert sender.timeout(RTO_NS) == 2
    packet = sender.poll(RTO_NS)
    assert (packet.chunk, packet.flag, packet.index) == (0, wire.FLUSH, sender.all.flights[0, 0].index)
    assert (sender.state.resent, sender.state.timeouts) == (1, 2)


def test_without_flush_a_resend_is_a_plain_packet() -> None:
    sender = started(chunks=1, flush=0)
    sender.send()
    sender.timeout(RTO_NS)
    assert sender.poll(RTO_NS).flag == 0


def test_each_resend_of_a_chunk_doubles_its_own_wait() -> None:
    sender = started(chunks=2, resends_max=50)
    sender.send()
    sender.result(1)
    sender.state.rto_ns = RTO_NS
    waits, now_ns = [], 0
    for _ in range(9):
        waits.append(int(sender.state.timer_ns) - now_ns)
        now_ns = int(sender.state.timer_ns)
        assert sender.timeout(now_ns) == 1
        assert sender.send(now_ns) == [0]
    plain = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 100_000, 100_000]
    assert waits[0] == plain[0]
    assert all(wait <= waited <= 1.25 * wait for wait, waited in zip(plain, waits, strict=True))


def test_workers_that_timed_out_together_do_not_wait_alike() -> None:
    waits = set()
    for worker in range(4):
        sender = started(chunks=1, worker=worker)
        sender.send()
        sender.timeout(RTO_NS)
        sender.send(RTO_NS)
        waits.add(int(sender.state.timer_ns))
    assert len(waits) == 4


def test_in_a_new_epoch_everything_without_a_result_goes_again() -> None:
    sender = started(chunks=4)
    sender.send()
    sender.result(1)
    assert sending.change_epoch(sender.all, 0, 7) == 3
    packets = [sender.poll(5) for _ in range(3)]
    assert [(int(packet.chunk), int(packet.epoch)) for packet in packets] == [(0, 7), (2, 7), (3, 7)]


def test_a_pull_is_no_time_out() -> None:
    sender = started(chunks=1, resends_max=2)
    sender.send()
    for _ in range(5):
        assert sending.resend(sender.all, 0, 0)
        assert sender.send() == [0]
    assert sender.state.timer_ns == RTO_NS
    assert sender.state.failed == 0


def test_a_sender_that_waits_for_nothing_has_no_timer() -> None:
    sender = started(chunks=1)
    assert sender.state.timer_ns == NEVER_NS
    sender.send()
    sender.result(0)
    assert sender.timeout(RTO_NS) == 0
    assert sender.state.timer_ns == NEVER_NS


def test_too_many_resends_of_one_chunk_fail_the_sender() -> None:
    sender = started(chunks=2, resends_max=2)
    sender.send()
    sender.result(1)
    for _ in range(2):
        assert sender.timeout(10**6 * (1 + int(sender.state.resent))) == 1
        assert sender.state.failed == 0
        assert sender.send(int(sender.state.resent) * 10**6) == [0]
    sender.timeout(10**9)
    assert sender.state.failed == 1
    assert sender.poll(10**9) is None
    assert any("gave up" in line for line in check_ended(sender.all))


def test_lost_chunks_go_before_new_ones_and_in_order() -> None:
    sender = started(congestion=0)
    sender.send()
    sender.result(1)
    sender.timeout(RTO_NS)
    assert sender.send(RTO_NS) == [0, 2, 3, 4]


# --- losses found by their order ----------------------------------------------------------------------------


def test_a_chunk_overtaken_by_three_is_lost_and_judged_once() -> None:
    sender = started(span=32, window=16.0)
    sender.send()
    sender.result(1)
    sender.result(2)
    assert sender.state.lost == 0
    sender.result(3)
    assert sender.state.lost == 1
    assert sender.send(1) == [0, *range(16, 19)]
    for chunk in range(4, 12):
        sender.result(chunk, 2)
    assert sender.state.lost == 0
    assert sender.state.resent == 1


def test_a_chunk_is_not_lost_before_its_round_trips_have_passed() -> None:
    sender = started(span=32, window=16.0, reorder_rtts=1.0)
    sender.send(0)
    for chunk in (1, 2, 3):
        sender.result(chunk, 400 * chunk)
    assert sender.state.lost == 1, "0 was sent longer than a smoothed round trip before the third result"
    patient = started(span=32, window=16.0, reorder_rtts=4.0)
    patient.send(0)
    for chunk in (1, 2, 3):
        patient.result(chunk, 400 * chunk)
    assert patient.state.lost == 0
    patient.result(4, 40_000)
    assert patient.state.lost == 1


def test_a_chunk_that_came_in_time_is_never_lost() -> None:
    sender = started(span=32, window=16.0)
    sender.send()
    for chunk in (2, 1, 0, 5, 4, 3):
        sender.result(chunk)
    assert (sender.state.lost, sender.state.resent) == (0, 0)


def test_on_a_path_that_keeps_the_order_an_overtaken_chunk_is_judged_again() -> None:
    slow = {"rto_ns": 160_000, "rto_min_ns": 160_000, "rto_max_ns": 10**9}
    sender = started(span=64, window=16.0, in_order=1, reorder_rtts=2.0, **slow)
    sender.send(0)
    sender.result(1, 1_000)
    assert sender.state.srtt_ns == 1_000.0
    for chunk in range(2, 8):
        sender.result(chunk, 3_000)
    assert 0 in sender.send(3_000), "found by its order"
    sender.result(8, 4_000)
    # Two round trips and a sixteenth of the timer's least, doubled for the one resend.
    patience_ns = int(2.0 * float(sender.state.srtt_ns)) + 10_000
    due_ns = 3_000 + 2 * patience_ns
    assert sender.state.timer_ns <= due_ns < sender.state.rto_ns
    assert sender.timeout(due_ns - 1) == 0
    assert sender.timeout(due_ns) == 1
    assert sender.send(due_ns)[0] == 0


def test_an_overtaken_chunk_gives_no_round_trip_where_the_order_is_kept() -> None:
    for in_order in (0, 1):
        sender = started(span=64, window=16.0, in_order=in_order, reorder_rtts=100.0)
        sender.send(0)
        sender.result(1, 1_000)
        sender.result(0, 50_000)
        assert (sender.state.srtt_ns == 1_000.0) == (in_order == 1)


def test_what_was_overtaken_leaves_room_in_the_window() -> None:
    sender = started(span=64, window=8.0, in_order=1, reorder_chunks=64)
    assert sender.send() == list(range(8))
    for chunk in (3, 5):
        sender.result(chunk)
    assert sender.state.behind == 4
    assert sender.send() == list(range(8, 14)), "two results, and four that are not on the way any more"
    for chunk in (0, 1, 2, 4):
        sender.result(chunk)
    assert sender.state.behind == 0
    plain = started(span=64, window=8.0, reorder_chunks=64)
    plain.send()
    for chunk in (3, 5):
        plain.result(chunk)
    assert plain.send() == [8, 9]


def test_the_last_chunks_are_overtaken_by_any_result_ahead() -> None:
    sender = started(
        4,
        span=64,
        window=8.0,
        in_order=1,
        reorder_chunks=64,
        rto_ns=160_000,
        rto_min_ns=160_000,
        rto_max_ns=10**9,
    )
    sender.send(0)
    sender.result(3, 1_000)
    assert sender.state.timer_ns == 10_000, "nobody is late: the others went on"
    assert sender.timeout(10_000) == 3


def test_a_pull_resends_what_is_in_flight_only() -> None:
    sender = started()
    sender.send()
    sender.result(0)
    assert [bool(sending.resend(sender.all, 0, chunk)) for chunk in (0, 1, 4, 77)] == [
        False,
        True,
        False,
        False,
    ]
    packet = sender.poll(5)
    assert (packet.chunk, packet.flag) == (1, wire.FLUSH)
    assert not sending.resend(sender.all, 0, 9), "chunk 9 has the lane of chunk 1 and was never sent"


# --- congestion ---------------------------------------------------------------------------------------------


def test_marks_halve_the_window_once_for_each_window() -> None:
    sender = started(window=8.0, congestion=1)
    assert sender.send() == list(range(8))
    for chunk in range(8):
        sender.result(chunk, flag=wire.ECN)
    assert (sender.state.window, sender.state.marks) == (4.0, 8)
    assert sender.send() == [8, 9, 10, 11]
    sender.result(8, flag=wire.ECN)
    assert sender.state.window == 2.0


def test_the_window_grows_by_one_a_round_trip_after_a_mark_and_faster_before() -> None:
    sender = started(window=2.0, congestion=1, window_max=8.0)
    sender.send()
    sender.result(0)
    sender.result(1)
    assert sender.state.window == 4.0
    sender.send()
    sender.result(2, flag=wire.ECN)
    assert sender.state.window == 2.0
    sender.result(3)
    sender.result(4)
    assert sender.state.window == pytest.approx(2.0 + 1 / 2 + 1 / 2.5)


def test_the_window_stays_between_its_bounds() -> None:
    sender = started(chunks=1_000, window=2.0, congestion=1, window_min=2.0, window_max=5.0)
    for chunk in range(40):
        sender.send()
        sender.result(chunk)
    assert sender.state.window == 5.0
    for chunk in range(40, 80):
        sender.send()
        sender.result(chunk, flag=wire.ECN)
    assert sender.state.window == 2.0


def test_a_fixed_window_ignores_marks_and_losses() -> None:
    sender = started(congestion=0)
    sender.send()
    sender.result(0, flag=wire.ECN)
    sender.timeout(RTO_NS)
    assert (sender.state.window, sender.state.marks) == (4.0, 0)


def test_a_timeout_halves_the_window_once() -> None:
    sender = started(window=8.0, congestion=1)
    sender.send()
    sender.timeout(RTO_NS)
    sender.send(RTO_NS)
    sender.timeout(100 * RTO_NS)
    assert sender.state.window == 4.0


# --- questions ----------------------------------------------------------------------------------------------


def asking(chunks: int = 100, **fields: Any) -> Sender:
    """A sender that asks for what is overdue."""
    return started(chunks, inquires=1, in_order=1, congestion=3, increase=1.0, rto_min_ns=160, **fields)


def ask(sender: Sender, now_ns: int) -> list[tuple[int, int]]:
    """The questions that are due: chunk and flag. Whatever else would be sent is not polled."""
    sender.timeout(now_ns)
    found = []
    while sender.state.asking > 0:
        packet = sender.poll(now_ns)
        assert packet.kind == wire.QUERY
        assert packet.count == 0
        found.append((int(packet.chunk), int(packet.flag)))
    return found


def told(sender: Sender, kind: int, chunk: int, now_ns: int, **fields: Any) -> bool:
    packet = header(kind, **{"chunk": chunk, "worker": 1, "job": 2, "mask": 2, "rack": 0, **fields})
    handle = sending.handle_ack if kind == wire.ACK else sending.handle_nack
    return bool(handle(sender.all, 0, packet, now_ns))


def test_of_chunks_that_all_wait_the_oldest_is_asked_for_and_nothing_is_sent_again() -> None:
    sender = asking()
    assert sender.send() == [0, 1, 2, 3]
    assert ask(sender, RTO_NS - 1) == []
    assert ask(sender, RTO_NS) == [(0, 0)]
    assert (sender.state.resent, sender.state.losses) == (0, 0)
    assert sender.state.window == 4.0


def test_questions_back_off_and_from_the_second_on_take_along_what_waits() -> None:
    sender = asking()
    sender.send()
    assert ask(sender, RTO_NS) == [(0, 0)]
    assert ask(sender, 2 * RTO_NS) == []
    due = int(sender.state.timer_ns)
    assert 3 * RTO_NS <= due <= 4 * RTO_NS
    assert ask(sender, due) == [(0, wire.FLUSH)]


def test_after_a_silence_nobody_waits_for_the_end_of_a_back_off() -> None:
    sender = asking()
    sender.send()
    now_ns = RTO_NS
    for _ in range(4):
        assert ask(sender, now_ns)
        now_ns = int(sender.state.timer_ns)
    asked_ns = int(sender.all.flights[0, 0].sent_ns)
    again_ns = asked_ns + 3 * RTO_NS
    assert again_ns < now_ns, "the timer was doubled beyond that"
    forget_backoff(sender.all, 0, again_ns)
    assert sender.state.timer_ns == again_ns
    assert ask(sender, again_ns) == [(0, wire.FLUSH)]
    check_senders(sender.all)


def test_a_way_that_was_never_silent_changes_nothing() -> None:
    sender = asking()
    sender.send()
    forget_backoff(sender.all, 0, RTO_NS - 1)
    assert ask(sender, RTO_NS - 1) == []
    assert ask(sender, RTO_NS) == [(0, 0)]


def test_an_answer_that_it_is_counted_gives_patience_and_a_round_trip_and_sends_nothing() -> None:
    sender = asking()
    sender.send()
    ask(sender, RTO_NS)
    assert not told(sender, wire.ACK, 0, RTO_NS + 50)
    assert sender.state.srtt_ns == 50.0, "from the question to the answer nobody was waited for"
    assert sender.send(RTO_NS + 50) == []
    assert ask(sender, RTO_NS + 100) == []


def test_an_answer_that_it_is_missing_sends_it_again_by_the_switch_and_asks_for_what_went_with_it() -> None:
    sender = asking()
    sender.send()
    ask(sender, RTO_NS)
    assert told(sender, wire.NACK, 0, RTO_NS + 50)
    packet = sender.poll(RTO_NS + 50)
    assert (packet.kind, packet.chunk, packet.flag) == (wire.GRADIENT, 0, 0)
    assert (sender.state.losses, sender.state.nacks) == (1, 1)
    assert [chunk for chunk, _ in ask(sender, RTO_NS + 60)] == [1, 2, 3]


@pytest.mark.parametrize("wrong", [{"worker": 2}, {"epoch": 1}, {"chunk": 1}, {"chunk": 50}])
def test_an_answer_that_nobody_asked_for_changes_nothing(wrong: dict[str, int]) -> None:
    sender = asking()
    sender.send()
    ask(sender, RTO_NS)
    before = sender.state.tobytes(), sender.all.flights.tobytes()
    assert not told(sender, wire.NACK, **{"chunk": 0, "now_ns": RTO_NS + 50, **wrong})
    assert (sender.state.tobytes(), sender.all.flights.tobytes()) == before


def test_what_results_have_overtaken_is_asked_for_without_waiting_for_the_timer() -> None:
    sender = asking(span=16, window=8.0, reorder_rtts=2.0)
    sender.send()
    for chunk in (0, 2, 3, 5, 6, 7):
        sender.result(chunk, 20, worker=1)
    assert sender.state.srtt_ns == 20.0
    assert sender.state.timer_ns == int(sender.state.reorder_rtts * 20) + 160 // 16
    assert [chunk for chunk, _ in ask(sender, int(sender.state.timer_ns) + 10)] == [1, 4]
    assert sender.state.timeouts == 0, "nobody is late"


def test_a_result_that_comes_for_the_asking_was_lost_on_its_way() -> None:
    sender = asking(span=16, window=8.0)
    sender.send()
    for chunk in (0, 2, 3, 4, 5):
        sender.result(chunk, 20, worker=1)
    ask(sender, 100)
    sender.result(1, 120)
    assert sender.state.losses == 1
    # But not where it was slow for want of an aggregator, or waited for another's contribution.
    for late, fields in ((6, {"flag": wire.COLLISION}), (7, {})):
        sender.send(200)
        for chunk in range(int(sender.state.highest_done) + 1, int(sender.state.next)):
            if chunk not in (6, 7):
                sender.result(chunk, 220)
        ask(sender, 10_000)
        told(sender, wire.ACK, late, 10_010) if late == 7 else None
        sender.result(late, 10_020, **fields)
    assert sender.state.losses == 1


def test_only_who_came_last_learns_from_a_round_trip_unless_it_is_shorter_than_all() -> None:
    sender = asking(window=8.0, span=16)
    sender.send()
    sender.result(0, 500, worker=2)
    assert (sender.state.srtt_ns, sender.state.round_rtts) == (500.0, 0), "the first is an upper bound"
    sender.result(1, 900, worker=2)
    assert sender.state.srtt_ns == 500.0, "it waited for another"
    sender.result(2, 900, worker=1)
    assert sender.state.srtt_ns == 550.0
    assert sender.state.round_rtts == 1


def test_a_pull_by_the_custodian_sends_it_again_to_the_custodian() -> None:
    sender = asking()
    sender.send()
    packet = header(wire.PULL, chunk=2, mask=2, job=2)
    assert sending.handle_pull(sender.all, 0, packet) == sending.POLL
    again = sender.poll(10)
    assert (again.kind, again.chunk, again.flag) == (wire.GRADIENT, 2, wire.FLUSH)


# --- pools: SwitchML ----------------------------------------------------------------------------------------


def pooled(chunks: int = 100, **fields: Any) -> Sender:
    return started(chunks, pool=1, span=4, slots=4, flush=0, **fields)


def test_a_pool_sends_one_chunk_in_each_slot_and_the_next_only_after_its_result() -> None:
    sender = pooled()
    assert sender.send() == [0, 1, 2, 3]
    sender.result(2)
    assert sender.send() == [6]
    sender.result(6)
    assert sender.send() == [10], "the other slots do not hold this one back"
    assert sender.send() == []


def test_a_pools_index_is_its_slot() -> None:
    sender = pooled()
    assert [int(sender.poll().index) for _ in range(4)] == [0, 1, 2, 3]


def test_a_pool_goes_on_when_more_is_released() -> None:
    sender = pooled(chunks=2)
    assert sender.send() == [0, 1]
    sender.result(0)
    assert sender.send() == []
    sender.release(5)
    assert sorted(sender.send()) == [2, 3, 4]


def test_a_pool_takes_each_result_once() -> None:
    sender = pooled()
    sender.send()
    assert [sender.result(0), sender.result(0)] == [NEW, DUPLICATE]
    assert sender.result(4) == DUPLICATE, "queued, not sent yet"
    sender.send()
    assert [sender.result(4), sender.result(0), sender.result(4)] == [NEW, DUPLICATE, DUPLICATE]


def test_a_pool_resends_overdue_chunks_without_flush() -> None:
    sender = pooled()
    sender.send()
    sender.result(1, 0)
    sender.state.rto_ns = RTO_NS
    assert sender.timeout(RTO_NS) == 3
    packet = sender.poll(RTO_NS)
    assert (packet.chunk, packet.flag) == (0, 0)
    assert sender.send(RTO_NS) == [2, 3, 5]


def test_a_pool_that_has_all_results_has_ended() -> None:
    sender = pooled(chunks=6)
    for chunk in range(6):
        assert check_ended(sender.all)
        sender.send()
        assert sender.result(chunk) == NEW
    assert check_ended(sender.all) == []


# --- anything goes ------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    st.booleans(),
    st.booleans(),
    st.integers(1, 6),
    st.lists(st.tuples(st.sampled_from("rrrtps"), st.integers(0, 40), st.integers(0, 63)), max_size=60),
)
def test_whatever_comes_the_books_balance(
    pool: bool, in_order: bool, span: int, moves: list[tuple[str, int, int]]
) -> None:
    """Results in any order, timeouts, pulls: no chunk is new twice, the span is never exceeded."""
    sender = started(
        30, span=span, pool=int(pool), in_order=int(in_order and not pool), congestion=1, resends_max=10**6
    )
    now_ns = 0
    sent: set[int] = set(sender.send())
    fresh: set[int] = set()
    for move, chunk, flag in moves:
        now_ns += 700
        if move == "r":
            verdict = sender.result(chunk, now_ns, flag=flag, offer=chunk)
            assert (verdict == NEW) == (chunk in sent and chunk not in fresh)
            fresh |= {chunk} if verdict == NEW else set()
        elif move == "t":
            sender.timeout(now_ns)
        elif move == "p":
            sending.resend(sender.all, 0, chunk)
        else:
            sent |= set(sender.send(now_ns))
        assert sender.state.unfinished == len(sent - fresh)
        assert check_senders(sender.all) == []
        if not pool:
            highest = max(fresh, default=-1)
            assert sender.state.behind == len([chunk for chunk in sent - fresh if chunk < highest])
            oldest = min(set(range(41)) - fresh)
            assert sender.state.oldest == oldest
            assert max(sent) < oldest + span
        assert all(chunk - span in fresh for chunk in sent if chunk >= span)
    for _ in range(100):
        sent |= set(sender.send(now_ns))
        for chunk in sorted(sent - fresh):
            assert sender.result(chunk, now_ns) == NEW
            fresh.add(chunk)
    assert fresh == set(range(30))
    assert check_ended(sender.all) == []
