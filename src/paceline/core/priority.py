"""A packet's priority under ESA, from what the host knows of its job [ours]; for the simulator and the backend.

Higher for a job with less time left, for a higher ratio of communication to computation, and for layers
nearer the model's input, whose results are needed first in the next forward pass. The product is quantised on
a logarithmic scale into 1..255; 0 is reserved for packets that never preempt. The function is meant to be
replaced: pass another with the same signature to `simulate`.
"""

import math
from collections.abc import Callable

STEPS_PER_OCTAVE = 8
MIDDLE = 128

PriorityRule = Callable[[float, float, int, int], int]


def priority(remaining_s: float, comm_over_comp: float, layer: int, layers: int) -> int:
    """1..255 for a tensor: time the job has left, its ratio, and the layer's place from the input."""
    product = (1.0 / max(remaining_s, 1e-9)) * max(comm_over_comp, 1e-9) * (1.0 / (1.0 + layer / layers))
    return min(255, max(1, round(MIDDLE + STEPS_PER_OCTAVE * math.log2(product))))
