"""How late a worker's contributions come: behind the first to the same chunk, on average, and at worst in each round.

The others send no more than a window ahead of a straggler. Of a large gradient only the chunks of that window are late,
and the rest come in step: the mean over chunks says little of the wait, the largest lag between two pauses says it all.
A *round* is what a worker sends between two pauses of its own; in training, an iteration. A pause is a gap of at
least `PAUSE_MIN_NS`, and of more than half of those of late: buckets are shorter apart than iterations. What pauses are
like is learned slowly. One that is odd (a start, a checkpoint, a busy machine) must not hide the ordinary ones after
it: iterations that run into one round would be told by the largest lag of all of them. [ours]

What counts is the first that a worker brings to a chunk, whatever its flags: where memory is short, a straggler's first
contributions are those that go straight to the custodian. What it sends again says nothing of how late it is.
"""

from typing import Any

from paceline.compile.decorators import compiled_inner
from paceline.core.bits import NO_BITS, bit

PAUSE_MIN_NS = 1_000_000
"""A shorter gap is none: packets come in trains."""
PAUSE_FIRST_NS = 100_000_000
"""What is taken for a pause before there was one."""
ROUND_PAUSES_MAX = 4
"""A round that lasts longer than so many pauses may have missed one: from then on a somewhat shorter gap is enough."""


@compiled_inner
def note_arrival(member: Any, arrival: Any, worker: int, chunk: int, time_ns: int) -> None:
    """A worker's contribution to a chunk has come; `arrival`: the entry for chunks like this one."""
    if chunk < arrival.chunk:
        return
    if chunk > arrival.chunk:
        arrival.chunk = chunk
        arrival.first_ns = time_ns
        arrival.seen = NO_BITS
    own = bit(worker)
    if arrival.seen & own != NO_BITS:
        return
    arrival.seen |= own
    _note_round(member, time_ns)
    member.arrivals += 1
    lag_ns = time_ns - arrival.first_ns
    member.lag_ns += lag_ns
    member.peak_ns = max(member.peak_ns, lag_ns)


@compiled_inner
def _note_round(member: Any, time_ns: int) -> None:
    """A pause before this contribution ends the worker's round."""
    if member.heard_ns == 0:
        member.heard_ns = member.paused_ns = time_ns
        member.pause_ns = PAUSE_FIRST_NS
    gap_ns = time_ns - member.heard_ns
    member.heard_ns = time_ns
    if gap_ns >= PAUSE_MIN_NS and 2 * gap_ns > member.pause_ns:
        member.peaks_ns += member.peak_ns
        member.rounds += 1
        member.peak_ns = 0
        longer_ns = min(gap_ns, member.pause_ns + (member.pause_ns >> 2))
        member.pause_ns = max(longer_ns, member.pause_ns - (member.pause_ns >> 3), PAUSE_MIN_NS)
        member.paused_ns = time_ns
    elif time_ns - member.paused_ns > ROUND_PAUSES_MAX * member.pause_ns:
        member.pause_ns = max(member.pause_ns - (member.pause_ns >> 3), PAUSE_MIN_NS)
        member.paused_ns = time_ns
