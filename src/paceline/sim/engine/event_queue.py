"""The event queue: a tournament over entities, each with the time of its next event.

Links are FIFO and their delay is constant, so a link needs one entry: the arrival of its oldest packet. The
same holds for a host's timers. A tournament tree keeps the earliest of them at its root; setting a time
replays the matches on one path. Ties go to the lower number, so a run is the same every time.
"""

from typing import Any, NamedTuple

import numpy as np

from paceline.compile.decorators import compiled_inner

NEVER_NS = np.iinfo(np.int64).max


class Queue(NamedTuple):
    """`time_ns[e]` is when entity e acts next; `winner[1]` is the entity that acts first."""

    time_ns: Any
    winner: Any


def new_queue(entities: int) -> Queue:
    """All entities idle."""
    size = 1
    while size < max(entities, 2):
        size *= 2
    winner = np.zeros(2 * size, dtype=np.int32)
    winner[size:] = np.arange(size)
    for node in range(size - 1, 0, -1):
        winner[node] = winner[2 * node]
    return Queue(np.full(size, NEVER_NS, dtype=np.int64), winner)


@compiled_inner
def set_time(queue: Queue, entity: int, time_ns: int) -> None:
    """The entity acts next at `time_ns` (`NEVER_NS`: it is idle)."""
    times = queue.time_ns
    winner = queue.winner
    times[entity] = time_ns
    node = (times.shape[0] + entity) >> 1
    while node >= 1:
        left = winner[2 * node]
        right = winner[2 * node + 1]
        best = left if times[left] <= times[right] else right
        before = winner[node]
        winner[node] = best
        if best == before and best != entity:
            return
        node >>= 1
