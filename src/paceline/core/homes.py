"""A job's home: the aggregators that its row lies in, an equal part of them for each job that has sent of late.

The switch counts these jobs, and writes into each result where the home of the packet's job begins and how many share.
All workers hear the same result, so all of them use the same aggregator for the chunk that comes next in that place of
the window. So rows of different jobs do not meet. Nothing is reserved by it: where jobs send one after the other there
are no homes, and each job's row goes through all of the memory; and where rows do meet, for a while or among racks,
sums find aggregators taken and go by custodians.
"""

from typing import Any

from paceline.compile.decorators import compiled_inner

HOME = 1 << 31
"""In `offer`: of a contribution, that its sender wants to be told; of a result, that this is a home and no index."""
SHARERS_MAX = (1 << 15) - 1
_SHARERS_BITS = 15
_BEGIN_BITS = 16
_BEGIN_MASK = (1 << _BEGIN_BITS) - 1


@compiled_inner
def home_word(place: int, sharers: int) -> int:
    """The home of the job in this place among so many."""
    begin = ((int(place) << _BEGIN_BITS) + int(sharers) - 1) // int(sharers)
    return HOME | (min(begin, _BEGIN_MASK) << _SHARERS_BITS) | int(sharers)


@compiled_inner
def is_home(offer: Any) -> bool:
    """Does an offer tell a home? Without a number of jobs it only asks for one."""
    return bool(offer & HOME != 0 and offer & SHARERS_MAX != 0)


@compiled_inner
def sharers_in(offer: Any) -> int:
    """How many jobs share the memory, by an offer that tells a home."""
    return int(offer & SHARERS_MAX)


@compiled_inner
def home_index(offer: Any, slots: int, chunk: int) -> int:
    """The aggregator of a chunk in its job's home."""
    slots = max(1, int(slots))
    begin = (int(offer >> _SHARERS_BITS) & _BEGIN_MASK) * slots >> _BEGIN_BITS
    return int((begin + chunk % max(1, slots // sharers_in(offer))) % slots)
