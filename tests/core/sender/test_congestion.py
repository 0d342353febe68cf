"""What moves the window, rule by rule. Round trips in ns; the shortest is 10 ms, and a queue is more than 20 ms."""

from typing import Any

import numpy as np
import pytest

from paceline.core import wire
from paceline.core.sender import congestion
from paceline.core.sender.congestion import QUEUE_NS, TOGETHER, next_window
from paceline.core.sender.program import new_senders
from tests.core.headers import header

SHORTEST = 10e6
QUEUED = SHORTEST + QUEUE_NS + 1e6


def test_without_loss_it_grows_until_the_queue_is_long() -> None:
    assert next_window(100.0, 0, 100, SHORTEST, SHORTEST) == 150.0
    assert next_window(100.0, 1, 99, SHORTEST, SHORTEST) == 150.0
    assert next_window(100.0, 0, 100, QUEUED, SHORTEST) == 100.0


def test_heavy_loss_halves_it_whatever_the_round_trip() -> None:
    assert next_window(100.0, 50, 50, SHORTEST, SHORTEST) == 50.0


def test_some_loss_shrinks_it_only_where_the_path_queues() -> None:
    assert next_window(100.0, 9, 91, QUEUED, SHORTEST) == 85.0
    assert next_window(100.0, 9, 91, SHORTEST, SHORTEST) > 100.0
    assert next_window(100.0, 9, 91, SHORTEST + 0.8 * QUEUE_NS, SHORTEST) == 100.0


def test_random_loss_settles_where_the_path_holds_the_window() -> None:
    """A path of 100 chunks in 10 ms: what is under way beyond that queues; 9 % of the chunks are late."""
    for window in (8.0, 5000.0):
        seen = []
        for _ in range(100):
            rtt = max(SHORTEST, SHORTEST * window / 100.0)
            window = next_window(window, 9, 91, rtt, SHORTEST)
            seen.append(window)
        assert min(seen[50:]) >= 100.0
        assert max(seen[50:]) <= 350.0


# --- together -----------------------------------------------------------------------------------------------


class Together:
    """A sender's record, and rounds of results for it."""

    def __init__(self, **fields: Any) -> None:
        self.state = new_senders(1, 8).state[0]
        given = {"window": 100.0, "window_min": 4.0, "window_max": 1000.0, "threshold": 0.0, "increase": 5.0}
        given |= {"congestion": TOGETHER, "queue_ns": QUEUE_NS, "target_rise": 1.0, "agreed_chunk": 0}
        given |= {"room": 1000.0, "round_room": 1000.0, "minds_memory": 1, "slots": 512}
        for name, value in {**given, **fields}.items():
            setattr(self.state, name, value)
        self.now_ns = 0

    def round(
        self,
        results: int = 100,
        marked: int = 0,
        fallen_back: int = 0,
        lost: int = 0,
        rtt_ns: float = 0.0,
        **fields: Any,
    ) -> float:
        """A round of results in which so many had a mark, found no aggregator, or had been lost; the new window."""
        first = int(self.state.round_end)
        for i in range(results):
            flag = (wire.ECN if i < marked else 0) | (wire.COLLISION if i < fallen_back else 0)
            congestion.on_result(self.state, header(wire.RESULT, flag=flag, chunk=first + i, **fields), True)
        for _ in range(lost):
            congestion.on_loss(self.state)
        if rtt_ns:
            congestion.on_pure_rtt(self.state, int(rtt_ns))
        self.now_ns += 1_000_000
        self.state.highest_done = self.state.next = first + results
        assert congestion.end_round(self.state, self.now_ns)
        return float(self.state.window)


def test_without_a_sign_the_window_doubles_until_the_first_and_then_grows_evenly() -> None:
    sender = Together(window=8.0, threshold=1000.0)
    assert [sender.round(), sender.round()] == [16.0, 32.0]
    assert sender.round(marked=50) == 24.0
    assert [sender.round(), sender.round()] == [29.0, 34.0]


def test_a_window_of_results_makes_a_round() -> None:
    sender = Together()
    sender.state.round_end, sender.state.highest_done = 50, 49
    assert not congestion.end_round(sender.state, 1)


@pytest.mark.parametrize(("marked", "window"), [(1, 99.5), (20, 90.0), (100, 50.0)])
def test_marks_cut_by_half_of_their_share(marked: int, window: float) -> None:
    assert Together().round(marked=marked) == pytest.approx(window)


def test_a_queue_longer_than_the_target_cuts_and_a_shorter_one_does_not() -> None:
    sender = Together()
    assert sender.round(rtt_ns=SHORTEST) > 100.0
    before = sender.state.window
    assert sender.round(rtt_ns=SHORTEST + QUEUE_NS) > before
    before = sender.state.window
    assert sender.round(rtt_ns=SHORTEST + 2 * QUEUE_NS) == pytest.approx(0.75 * before)


def test_sums_without_an_aggregator_leave_less_room() -> None:
    sender = Together(room=40.0, round_room=40.0)
    sender.round(fallen_back=3)
    assert 37.0 < sender.state.room < 41.0
    sender.state.room = sender.state.round_room = 40.0
    sender.round(results=60, fallen_back=60)
    assert sender.state.room == 20.0, "at most half of it in a round"
    assert congestion.window_of(sender.state) == 20.0


def test_room_grows_quickly_until_a_sum_finds_no_aggregator_and_again_when_none_did_for_long() -> None:
    sender = Together(room=10.0, room_threshold=100.0, next=0)
    sender.round(results=90)
    assert sender.state.room == 100.0
    sender.round(results=1, fallen_back=1)
    cut = float(sender.state.room)
    sender.round(results=1_000)
    soon = float(sender.state.room) - cut
    sender.round(results=8_000)
    assert soon < 40.0 < 300.0 < sender.state.room


def test_room_settles_where_as_many_fall_back_as_it_allows() -> None:
    """So many aggregators of others that a chunk meets one with a chance of 1 in 200 for each chunk under way."""
    sender = Together(room=4.0, round_room=0.0)
    seen, due = [], 0.0
    for chunk in range(40_000):
        due += sender.state.room / 200.0
        flag = wire.COLLISION if due >= 1.0 else 0
        due -= flag != 0
        congestion.on_result(sender.state, header(wire.RESULT, flag=flag, chunk=chunk), True)
        seen.append(float(sender.state.room))
    assert 12.0 < sum(seen[20_000:]) / 20_000 < 16.0


def test_room_grows_on_where_one_sum_in_forty_finds_no_aggregator_however_little_is_under_way() -> None:
    """Rows of two jobs meet in ample memory too: that is no sign of too little of it."""
    sender = Together(room=40.0, round_room=0.0, slots=5_120)
    for _ in range(400):
        sender.round(results=40, fallen_back=1)
    assert sender.state.room > 100.0


def test_a_job_has_no_more_under_way_than_there_are_aggregators() -> None:
    sender = Together(room=8.0, slots=44, window=1000.0, room_threshold=1000.0)
    for _ in range(20):
        sender.round()
    assert sender.state.room == congestion.window_of(sender.state) == 44.0
    sender = Together(slots=44, minds_memory=0, window=1000.0)
    assert congestion.window_of(sender.state) == 1000.0, "who does not mind memory"


def test_a_burst_begins_with_all_of_its_room_which_grows_by_its_turn_but_never_by_less_than_meetings_take() -> (
    None
):
    """An eighth of what memory allows would leave the link idle, where memory holds little more than a round trip."""
    early, late = (
        Together(room=5.0, window=1000.0, burst_length=1 << 40, burst_first=-turn, next=0)
        for turn in (0, 1 << 40)
    )
    assert congestion.window_of(early.state) == congestion.window_of(late.state) == 5.0
    grown = []
    for sender in (early, late):
        congestion.on_result(sender.state, header(wire.RESULT, chunk=0), True)
        grown.append(float(sender.state.room) - 5.0)
    assert grown == [pytest.approx(0.03, abs=1e-4), pytest.approx(0.1, abs=1e-4)]


def test_a_job_uses_more_of_its_window_the_further_it_is_in_a_burst() -> None:
    sender = Together(burst_length=800, burst_first=1_000, next=1_000)
    shares = []
    for sender.state.next in (1_000, 1_400, 1_800, 2_400):
        shares.append(congestion.window_of(sender.state) / 100.0)
    assert shares == [1 / 8, pytest.approx(4.5 / 8), 1.0, 1.0]
    assert congestion.window_of(Together(burst_length=0).state) == 100.0, "no burst has ended yet"


def test_a_job_that_waits_uses_more_of_its_window_the_longer_it_does() -> None:
    """Of many jobs that are all ahead of it, none may take all for long."""
    sender = Together(
        burst_length=8_000, burst_first=0, next=0, burst_took_ns=4e9, room=8000.0, idle_ns=1 << 62
    )
    shares = []
    for second in (0, 2, 4, 9):
        sender.state.next = sender.state.unfinished = min(second, 1)
        congestion.on_send(sender.state, 0, second * 1_000_000_000)
        shares.append(congestion.window_of(sender.state) / 100.0)
    assert shares == [1 / 8, pytest.approx(4.5 / 8, abs=0.01), 1.0, 1.0]


def test_how_long_bursts_take_follows_the_last_ones() -> None:
    sender = Together(srtt_ns=1e6, idle_ns=np.iinfo(np.int64).max)
    took = []
    now_ns = 5_000_000_000
    for chunk, burst_ns in enumerate((4e9, 4e9, 8e9, 8e9)):
        sender.state.next = min(chunk, 1)
        congestion.on_send(sender.state, chunk, now_ns)
        took.append(float(sender.state.burst_took_ns))
        sender.state.next = 1
        now_ns += int(burst_ns)
        sender.state.idle_ns = now_ns
        now_ns += 300_000_000
    assert took == [0.0, 4e9, 4e9, 5e9]


def test_in_ample_memory_some_room_is_left_however_often_sums_meet() -> None:
    sender = Together(room=400.0, round_room=0.0, slots=51_200)
    for _ in range(5):
        sender.round(fallen_back=100)
    assert sender.state.room == 100.0
    sender = Together(room=40.0, round_room=0.0, slots=64)
    for _ in range(5):
        sender.round(fallen_back=100)
    assert sender.state.room == 1.0


def test_jobs_that_cut_and_grow_around_the_target_do_not_raise_it() -> None:
    """With many of them a queue stays as long as it is though each cuts a little, since others grow."""
    sender = Together(increase=20.0)
    sender.round(rtt_ns=SHORTEST)
    for _ in range(40):
        sender.round(rtt_ns=SHORTEST + 1.3 * QUEUE_NS)
        sender.round(rtt_ns=SHORTEST + 0.95 * QUEUE_NS)
    assert sender.state.target_rise == 1.0


def test_a_pause_begins_a_burst_as_long_as_the_longest_of_late() -> None:
    sender = Together(srtt_ns=1e6, idle_ns=0)
    lengths = []
    for chunk in (500, 600, 700):
        sender.state.idle_ns = sender.now_ns
        congestion.on_send(sender.state, chunk - 10, sender.now_ns + 3_000_000)
        sender.now_ns += 5_000_000
        congestion.on_send(sender.state, chunk, sender.now_ns)
        lengths.append(int(sender.state.burst_length))
        assert sender.state.burst_first == chunk, "a short pause begins none"
    assert lengths == [500, 438, 384]


def test_a_job_that_nobody_slows_down_has_its_most_under_way_from_the_start_of_a_burst() -> None:
    sender = Together(window=1000.0, threshold=8000.0, burst_length=100_000, next=0, slots=8000)
    for _ in range(4):
        sender.round()
        sender.state.next = 0
    assert congestion.window_of(sender.state) == 1000.0


def test_many_losses_halve_it_some_only_where_the_path_queues() -> None:
    assert Together().round(lost=60) == 50.0
    assert Together().round(lost=9) > 100.0
    sender = Together()
    sender.round(rtt_ns=SHORTEST)
    before = sender.state.window
    assert sender.round(lost=9, rtt_ns=SHORTEST + 0.8 * QUEUE_NS) == pytest.approx(0.85 * before)


def test_nobody_has_more_under_way_than_the_least_of_all_windows() -> None:
    sender = Together()
    assert congestion.window_of(sender.state) == 100.0
    sender.round(window=30)
    assert congestion.window_of(sender.state) == 30.0
    assert sender.state.window == 65.0, "beyond twice that it was never tried"
    congestion.on_result(sender.state, header(wire.RESULT, chunk=0, window=3), True)
    assert congestion.window_of(sender.state) == 30.0, "what an older chunk tells is old"
    congestion.on_result(sender.state, header(wire.RESULT, chunk=10_000, window=0), True)
    assert congestion.window_of(sender.state) == 30.0, "nothing was told"


def test_a_contribution_tells_the_own_window_and_never_none() -> None:
    assert congestion.told_window(Together(window=77.9).state) == 77
    assert congestion.told_window(Together(window=1e9).state) == 1000, "its most"
    assert congestion.told_window(Together(window=1e9, window_max=1e9, room=1e9).state) == wire.WINDOW_MAX
    assert congestion.told_window(Together(window=0.2).state) == 1
    assert congestion.told_window(Together(congestion=congestion.AIMD).state) == 0


def test_a_queue_that_cutting_does_not_shorten_is_anothers_and_the_target_rises_with_it() -> None:
    """Beside a flow that fills the buffer, whatever we do, the window would else fall to its least."""
    sender = Together()
    sender.round(rtt_ns=SHORTEST)
    for _ in range(40):
        sender.round(rtt_ns=SHORTEST + 3 * QUEUE_NS)
    assert sender.state.window > 50.0
    for _ in range(10):
        sender.round(rtt_ns=SHORTEST)
    assert sender.state.target_rise == 1.0


def test_workers_that_hear_the_same_results_keep_the_same_window() -> None:
    """However different their own paths are: the one with the worst decides for all, a round later."""
    rtts = [SHORTEST, SHORTEST + 1.5 * QUEUE_NS, SHORTEST]
    workers = [Together(window=64.0 * (1 + i), threshold=1000.0) for i in range(3)]
    for turn in range(60):
        told = min(congestion.told_window(worker.state) for worker in workers)
        for worker, rtt in zip(workers, rtts, strict=True):
            worker.round(rtt_ns=rtt if turn else SHORTEST, window=told)
        assert (
            len({congestion.window_of(worker.state) for worker in workers if worker.state.window >= told})
            == 1
        )
