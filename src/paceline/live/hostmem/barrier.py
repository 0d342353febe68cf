"""How the ranks of one host wait for each other: a barrier in shared memory, compiled, without the GIL.

A *channel* is a row of int32 words that all ranks map: a count of arrivals, the number of the last barrier
that all have reached (the word that sleepers sleep on), how many sleep, and one line for each rank: the last
barrier that it has reached, whether it has left, and a description of the tensor that it has brought. A rank
arrives, looks for a moment, then sleeps in the kernel (futex) until the last one wakes it. A sleeper wakes a few
times a second to see whether those it waits for still live (pidfd) and whether its time is over; so a dead rank
costs a fraction of a second, and a waiting one next to no CPU.

Words are read and written atomically, in one total order: the last to arrive either sees a sleeper and wakes
it, or the sleeper sees the last arrival before it sleeps."""

import numpy as np
import numpy.typing as npt

from paceline.compile.decorators import compiled, compiled_inner
from paceline.live.hostmem.words import FUTEX, add, clock, futex, load, poll, store

WORDS = npt.NDArray[np.int32]
TIMES = npt.NDArray[np.int64]
FDS = npt.NDArray[np.int32]

LINE = 16
"""Words of a cache line: what different ranks write never shares one."""
COUNT, REACHED, SLEEPERS = 0, LINE, 2 * LINE
RANKS = 3 * LINE
"""Where the ranks' lines begin."""
ARRIVED, LEFT = 0, 1
DESCRIPTION = 2
"""Where a rank's line describes its tensor, twice: for barriers with an even and with an odd number."""
DESCRIPTION_WORDS = 3

OK = 0
TIMEOUT = -1
"""Somebody has not come in time."""
DIFFERENT = -2
"""The ranks have come with different tensors."""
GONE = 1
"""The code for rank r's death or leave is `GONE + r`."""

_WAIT, _WAKE = 0, 1
_MONOTONIC = 1
_NAP_NS = 100_000_000
_POLLIN = 1


def words_of(ranks: int) -> int:
    """How many int32 words a channel of so many ranks has."""
    return RANKS + ranks * LINE


def supported() -> bool:
    """Whether this machine's system-call numbers are known here."""
    return FUTEX > 0


# --- the barrier -------------------------------------------------------------------------------------------


@compiled_inner
def _now_ns(times: TIMES, times_address: int) -> int:
    clock(_MONOTONIC, times_address + 16)
    return int(times[2]) * 1_000_000_000 + int(times[3])


@compiled_inner
def _passed(words: WORDS, turn: int) -> bool:
    """Whether everyone has reached barrier `turn`; the numbers wrap around."""
    return bool(np.int32(np.int32(load(words, REACHED)) - np.int32(turn)) >= 0)


@compiled
def missing(words: WORDS, ranks: int, turn: int) -> int:
    """The first rank that has not reached barrier `turn`, or -1."""
    for rank in range(ranks):
        if np.int32(np.int32(load(words, RANKS + rank * LINE + ARRIVED)) - np.int32(turn)) < 0:
            return rank
    return -1


@compiled
def gone(words: WORDS, fds: FDS, fds_address: int, ranks: int, turn: int) -> int:
    """A rank that will never reach barrier `turn`, or -1: one whose process ended, else one that left.

    In this order, since a rank that notices a death leaves: all are to name the same rank.
    """
    left = -1
    for rank in range(ranks):
        line = RANKS + rank * LINE
        if np.int32(np.int32(load(words, line + ARRIVED)) - np.int32(turn)) >= 0:
            continue
        pollfd = fds_address + 8 * rank
        if fds[2 * rank] >= 0 and poll(pollfd, 1, 0) > 0 and (fds[2 * rank + 1] >> 16) & _POLLIN:
            return rank
        if left < 0 and load(words, line + LEFT) != 0:
            left = rank
    return left


@compiled
def barrier(
    words: WORDS,
    address: int,
    fds: FDS,
    fds_address: int,
    times: TIMES,
    times_address: int,
    rank: int,
    ranks: int,
    turn: int,
    spins: int,
    timeout_ns: int,
) -> int:
    """Reach barrier `turn` (1, 2, ... without a gap) and wait for all: `OK`, `TIMEOUT` or `GONE` + rank.

    `times` is room for two timespecs: the nap, and the clock's answer; `fds` holds one pollfd a rank.
    """
    store(words, RANKS + rank * LINE + ARRIVED, np.int32(turn))
    if np.int32(add(words, COUNT, np.int32(1)) + np.int32(1)) == np.int32(turn * ranks):
        store(words, REACHED, np.int32(turn))
        if load(words, SLEEPERS) != 0:
            futex(address + 4 * REACHED, _WAKE, 0x7FFFFFFF, 0)
        return OK
    for _ in range(spins):
        if _passed(words, turn):
            return OK
    times[0] = 0
    times[1] = _NAP_NS
    begin_ns = -1
    while True:
        add(words, SLEEPERS, np.int32(1))
        seen = np.int32(load(words, REACHED))
        if np.int32(seen - np.int32(turn)) < 0:
            futex(address + 4 * REACHED, _WAIT, np.int64(seen), times_address)
        add(words, SLEEPERS, np.int32(-1))
        if _passed(words, turn):
            return OK
        if load(words, RANKS + rank * LINE + LEFT) != 0:  # by another thread of this rank
            return GONE + rank
        lost = gone(words, fds, fds_address, ranks, turn)
        if lost >= 0 and not _passed(words, turn):
            return GONE + lost
        now_ns = _now_ns(times, times_address)
        if begin_ns < 0:
            begin_ns = now_ns
        if now_ns - begin_ns > timeout_ns:
            return TIMEOUT


@compiled_inner
def describe(words: WORDS, rank: int, turn: int, size: int, form: int) -> None:
    """Say what this rank brings to barrier `turn`: arriving there publishes it."""
    at = RANKS + rank * LINE + DESCRIPTION + DESCRIPTION_WORDS * (turn & 1)
    words[at] = np.int32(size & 0x7FFFFFFF)
    words[at + 1] = np.int32(size >> 31)
    words[at + 2] = np.int32(form)


@compiled_inner
def differ(words: WORDS, ranks: int, turn: int) -> bool:
    """Whether ranks have brought different things to barrier `turn`, which all have reached; all see the same.

    A rank may be on its way to the next barrier, not further: the description of that one stands beside this.
    """
    first = RANKS + DESCRIPTION + DESCRIPTION_WORDS * (turn & 1)
    different = 0
    for rank in range(1, ranks):
        at = first + rank * LINE
        different |= words[first] ^ words[at]
        different |= words[first + 1] ^ words[at + 1]
        different |= words[first + 2] ^ words[at + 2]
    return bool(different != 0)


def description(words: WORDS, rank: int, turn: int) -> tuple[int, int]:
    """`size` and `form` that a rank has brought to barrier `turn`."""
    at = RANKS + rank * LINE + DESCRIPTION + DESCRIPTION_WORDS * (turn & 1)
    return int(words[at]) + (int(words[at + 1]) << 31), int(words[at + 2])


@compiled
def leave(words: WORDS, address: int, rank: int) -> None:
    """Say that this rank will reach no further barrier, and wake the ranks that wait for it."""
    store(words, RANKS + rank * LINE + LEFT, np.int32(1))
    futex(address + 4 * REACHED, _WAKE, 0x7FFFFFFF, 0)
