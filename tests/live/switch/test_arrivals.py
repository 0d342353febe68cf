"""How late workers are, from the arrivals of their contributions."""

import random
import statistics
from typing import Any

import numpy as np
import pytest

from paceline.compile.decorators import compiled
from paceline.live.switch.arrivals import note_arrival
from paceline.live.switch.shard_state import ARRIVAL, ARRIVALS, MEMBER

MS = 1_000_000
WINDOW = 256
CHUNK_NS = 50_000


@compiled
def note(members: Any, arrivals: Any, worker: int, chunk: int, time_ns: int) -> None:
    note_arrival(members[worker], arrivals[chunk % ARRIVALS], worker, chunk, time_ns)


class Seen:
    """Two workers as a switch sees them: 0 is quick, 1 begins later."""

    def __init__(self) -> None:
        self.members: Any = np.zeros(2, dtype=MEMBER).view(np.recarray)
        self.arrivals: Any = np.zeros(ARRIVALS, dtype=ARRIVAL).view(np.recarray)
        self.arrivals["chunk"] = -1
        self.now_ns, self.chunk = MS, 0

    def iteration(self, chunks: int, late_ns: int, computing_ns: int) -> None:
        """The quick one sends a window and waits; from then on chunks come in step, 100 us apart."""
        begin_ns = self.now_ns + computing_ns
        ahead = min(WINDOW, chunks)
        for k in range(ahead):
            note(self.members, self.arrivals, 0, self.chunk + k, begin_ns + k * CHUNK_NS)
        for k in range(chunks):
            self.now_ns = begin_ns + late_ns + k * CHUNK_NS
            if k >= ahead:
                note(self.members, self.arrivals, 0, self.chunk + k, self.now_ns - 100_000)
            note(self.members, self.arrivals, 1, self.chunk + k, self.now_ns)
        self.chunk += chunks

    def lag_ms(self, worker: int, since: tuple[int, int] = (0, 0)) -> float:
        rounds, peaks_ns = self.counted(worker)
        return float((peaks_ns - since[1]) / (rounds - since[0]) / MS)

    def counted(self, worker: int) -> tuple[int, int]:
        return int(self.members[worker].rounds), int(self.members[worker].peaks_ns)

    def mean_ms(self, worker: int) -> float:
        return float(self.members[worker].lag_ns / self.members[worker].arrivals / MS)


@pytest.mark.parametrize("chunks", [1, 100, 1_000, 10_000])
def test_a_straggler_lags_as_much_whatever_the_size_of_the_gradient(chunks: int) -> None:
    seen = Seen()
    for _ in range(10):
        seen.iteration(chunks, late_ns=100 * MS, computing_ns=300 * MS)
    assert seen.lag_ms(1) == pytest.approx(100.0, rel=0.01)
    assert seen.members[1].rounds == 9, "the tenth goes on"
    assert seen.lag_ms(0) == pytest.approx(0.0)
    if chunks == 10_000:
        assert seen.mean_ms(1) < 5.0, "the mean over chunks hides it"


def test_buckets_of_one_iteration_are_one_round() -> None:
    """Each of four buckets comes later than the one before; the last tells for how long the others wait."""
    seen = Seen()
    for iteration in range(20):
        begin_ns = (1 + iteration) * 400 * MS
        for bucket in range(4):
            for k in range(10):
                seen.chunk += 1
                for worker, apart_ns in ((0, 10 * MS), (1, 30 * MS)):
                    arrives_ns = begin_ns + bucket * apart_ns + k * CHUNK_NS
                    note(seen.members, seen.arrivals, worker, seen.chunk, arrives_ns)
    assert seen.members[1].rounds == 19
    assert seen.lag_ms(1) == pytest.approx(60.0)


def test_a_long_halt_is_forgotten() -> None:
    seen = Seen()
    for _ in range(5):
        seen.iteration(200, late_ns=50 * MS, computing_ns=100 * MS)
    seen.now_ns += 60_000 * MS
    for _ in range(5):
        seen.iteration(200, late_ns=50 * MS, computing_ns=100 * MS)
    before = seen.counted(1)
    for _ in range(10):
        seen.iteration(200, late_ns=20 * MS, computing_ns=100 * MS)
    assert seen.counted(1)[0] - before[0] == 10
    assert seen.lag_ms(1, before) == pytest.approx(20.0, rel=0.2)


@pytest.mark.parametrize("odd", [0.0, 0.15, 0.3])
def test_odd_pauses_do_not_hide_the_ordinary_ones(odd: float) -> None:
    """A start of seconds, and then a busy machine that holds a straggler up now and then."""
    seen, chance, lags_ms = Seen(), random.Random(1), []
    seen.iteration(200, late_ns=3_000 * MS, computing_ns=2_000 * MS)
    for _ in range(20):
        seen.iteration(200, late_ns=50 * MS, computing_ns=40 * MS)
    before = seen.counted(1)
    for _ in range(200):
        lags_ms.append(50.0 + (chance.expovariate(1 / 300.0) if chance.random() < odd else 0.0))
        seen.iteration(200, late_ns=round(lags_ms[-1] * MS), computing_ns=40 * MS)
    assert seen.counted(1)[0] - before[0] == pytest.approx(200, rel=0.4)
    assert seen.lag_ms(1, before) == pytest.approx(statistics.mean(lags_ms), rel=0.4)


def test_what_a_worker_sends_again_says_nothing_of_how_late_it_is() -> None:
    seen = Seen()
    for worker, time_ms in ((0, 0), (0, 50), (1, 100), (0, 150), (1, 150)):
        note(seen.members, seen.arrivals, worker, 7, MS * (1 + time_ms))
    assert [int(member.arrivals) for member in seen.members] == [1, 1]
    assert [int(member.lag_ns) for member in seen.members] == [0, 100 * MS]


def test_a_chunk_of_long_ago_does_not_touch_the_one_in_its_place() -> None:
    seen = Seen()
    note(seen.members, seen.arrivals, 0, 7 + ARRIVALS, MS)
    note(seen.members, seen.arrivals, 1, 7, 2 * MS)
    note(seen.members, seen.arrivals, 1, 7 + ARRIVALS, 3 * MS)
    assert int(seen.members[1].arrivals) == 1
    assert int(seen.members[1].lag_ns) == 2 * MS
