"""A packet's priority under ESA, from what the host knows of its job [ours]; for the simulator and the backend.

Higher for a job with less time left, for a higher ratio of communication to computation, and for layers
nearer the model's input, whose results are needed first in the next forward pass. The product is quantised on
a logarithmic scale into 1..255; 0 is reserved for packets that never preempt. The function is meant to be
replaced: pass another with the same signature to `simulate`.
"""

import math
from collections.abc import Callable, Sequence

from paceline.compile.decorators import compiled

STEPS_PER_OCTAVE = 8
MIDDLE = 128

URGENT_FROM = 64
"""Of a job with about four minutes left, or less."""
BULK_TO = 32
"""Of a job with more than an hour left."""
SERVICE_URGENT = 0x90
"""The byte in IP's header that says how urgent a packet is, with DSCP AF42; Linux: the first of three bands."""
SERVICE_BULK = 0x28
"""DSCP AF11, the last of three bands."""

PriorityRule = Callable[[float, float, int, int], int]


def priority(remaining_s: float, comm_over_comp: float, layer: int, layers: int) -> int:
    """1..255 for a tensor: time the job has left, its ratio, and the layer's place from the input."""
    product = (1.0 / max(remaining_s, 1e-9)) * max(comm_over_comp, 1e-9) * (1.0 / (1.0 + layer / layers))
    return min(255, max(1, round(MIDDLE + STEPS_PER_OCTAVE * math.log2(product))))


def sending_order(chunks: Sequence[int], ready_ns: Sequence[float], chunk_ns: float) -> list[int]:
    """The layer of each chunk of an iteration, as they are to be sent: always the most urgent of what is ready.

    The most urgent layer is the one nearest the input, whose result the next forward pass needs first. Layer i has
    `chunks[i]` chunks and is ready at `ready_ns[i]`; a chunk takes `chunk_ns`. All workers of a job must send in one
    order, since a chunk's number says what is summed with it: so the order follows the job's profile, and not
    what a worker happens to have ready.
    """
    left = list(chunks)
    total = sum(chunks)
    order: list[int] = []
    now_ns = min(ready_ns)
    while len(order) < total:
        ready = [layer for layer, count in enumerate(left) if count > 0 and ready_ns[layer] <= now_ns]
        if not ready:
            now_ns = min(ready_ns[layer] for layer, count in enumerate(left) if count > 0)
            continue
        left[ready[0]] -= 1
        order.append(ready[0])
        now_ns += chunk_ns
    return order


@compiled
def service_of(priority: int) -> int:
    """How urgent a packet of this priority is to the network, as the byte in IP's header; 0: as any other.

    `MIDDLE` is the priority of a job of which nothing is known.
    """
    if priority == MIDDLE:
        return 0
    if priority >= URGENT_FROM:
        return SERVICE_URGENT
    return SERVICE_BULK if priority <= BULK_TO else 0
