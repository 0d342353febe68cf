"""The event queue: a tournament over entities, each with the time of its next event.

Links are FIFO and their delay is constant, so a link needs one entry: the arrival of its oldest packet. The
same holds for a host's timers. A tournament tree keeps the earliest of them at its root; setting a time
replays the matches on one path. Ties go to the lower number, so a run is the same every time.
"""

from typing import Any, NamedTuple

import numpy as np

from paceline.compile.decorators import compiled_inner
from paceline.sim.engine.records import aligned_records

NEVER_NS = np.iinfo(np.int64).max


NODE = np.dtype([("time_ns", "i8"), ("entity", "i4")], align=True)
"""A match: who acts first of those below, and when. A pair of them, which one match compares, is in one cache line."""


class Queue(NamedTuple):
    """`nodes[1]` is who acts first of all; the matches below `nodes[n]` are `nodes[2 * n]` and the one after it."""

    nodes: Any
    """`NODE` records; in the second half those of the entities themselves."""


def new_queue(entities: int) -> Queue:
    """All entities idle."""
    size = 1
    while size < max(entities, 2):
        size *= 2
    nodes = aligned_records(2 * size, NODE)
    nodes.time_ns = NEVER_NS
    nodes.entity[size:] = np.arange(size)
    for node in range(size - 1, 0, -1):
        nodes.entity[node] = nodes.entity[2 * node]
    return Queue(nodes)


@compiled_inner
def time_of(queue: Queue, entity: int) -> int:
    """When the entity acts next."""
    return int(queue.nodes[(queue.nodes.shape[0] >> 1) + entity].time_ns)


@compiled_inner
def set_time(queue: Queue, entity: int, time_ns: int) -> None:
    """The entity acts next at `time_ns` (`NEVER_NS`: it is idle)."""
    nodes = queue.nodes
    at = (nodes.shape[0] >> 1) + entity
    nodes[at].time_ns = time_ns
    first_ns = np.int64(time_ns)
    first = np.int64(entity)
    while at > 1:
        other = nodes[at ^ 1]
        # An odd one is the right one of its match.
        if other.time_ns < first_ns or (other.time_ns == first_ns and at & 1 != 0):
            first_ns = other.time_ns
            first = np.int64(other.entity)
        at >>= 1
        match = nodes[at]
        if match.entity == first and match.time_ns == first_ns:
            return
        match.time_ns = first_ns
        match.entity = first
