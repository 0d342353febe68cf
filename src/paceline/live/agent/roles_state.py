"""What an agent keeps about who leads and who straggles: everyone's progress, and what was decided by it."""

from typing import Any, NamedTuple

import numpy as np

from paceline.core.help.detect import Detection, new_detection
from paceline.live.net.libc import address_of

REPORT = np.dtype(
    [
        ("computed", "i8"),
        ("sent", "i8"),
        ("finished", "i8"),
        ("window", "i8"),
        ("epoch", "i8"),
        ("unanswered", "i8"),
        ("suspected", "i8"),
        ("doubts", "i8"),
        ("confirmed", "i8"),
    ],
    align=True,
)
"""What a worker last said of itself: chunks submitted, sent and finished, its window, its epoch (-1: it has said
nothing yet); and how often it has been asked since. For how many windows a slow link is suspected, how many such
suspicions in a row were wrong, and whether the present one has proved right."""

WATCH = np.dtype(
    [
        ("window_ns", "i8"),
        ("due_ns", "i8"),
        ("highest", "i8"),
        ("highest_sent", "i8"),
        ("goal", "i8"),
        ("iteration_windows", "i8"),
        ("quiet", "i8"),
        ("progress", "i8"),
        ("patience_ns", "i8"),
        ("memory_at", "i8"),
        ("leaders", "u8"),
        ("helps", "i4"),
        ("watches", "i4"),
        ("asked", "i4"),
    ],
    align=True,
)
"""The coordinator's own: when a window ends, and what it compares with. `leaders` (0: all) is every worker's role."""

SAID = np.dtype(
    [
        ("computed", "i8"),
        ("delivered", "i8"),
        ("behind_by", "i8"),
        ("median", "i8"),
        ("median_computed", "i8"),
        ("leaders", "u8"),
        ("worker", "i4"),
        ("behind_windows", "i4"),
        ("clean_iterations", "i4"),
        ("role", "i4"),
    ],
    align=True,
)
"""The figures behind an event about a role, as they were then."""


class Roles(NamedTuple):
    """`racks` is every worker's rack; `said[i]` belongs to `events[i]`; `memory` is for a question to the kernel."""

    watch: Any
    reports: Any
    racks: Any
    detection: Detection
    scratch: Any
    said: Any
    memory: Any


def new_roles(workers: int, events: int, theta_chunks: int, windows: int, clean_iterations: int) -> Roles:
    """Everyone leads, and nobody is watched."""
    reports = np.zeros(workers, dtype=REPORT).view(np.recarray)
    reports.epoch = -1
    watch = np.zeros(1, dtype=WATCH).view(np.recarray)
    memory = np.zeros(16, dtype=np.uint32)
    watch[0].memory_at = address_of(memory)
    return Roles(
        watch=watch,
        reports=reports,
        racks=np.zeros(workers, dtype=np.int64),
        detection=new_detection(workers, theta_chunks, windows, clean_iterations),
        scratch=np.zeros(workers, dtype=np.int64),
        said=np.zeros(events, dtype=SAID).view(np.recarray),
        memory=memory,
    )
