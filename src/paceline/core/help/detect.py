"""Who leads and who straggles, and what follows from it: detection and roles [ours].

SA-ATP lets leading workers help a straggling one. Before any help stands the decision who straggles, a pure
function of what is passed in; the other one, who computes what, is in `takeover.py`.

Each window the caller reports, for every worker, how far its gradients are computed and how far they are delivered,
both in chunks since the start of the job. A worker is behind if it has delivered more than `theta_chunks` less than
the median of the leaders. Behind for `windows` windows in a row, it straggles; after `clean_iterations` whole
iterations without being behind, it leads again. What it is slow at is told apart: if its computation is behind as
well, it is a compute straggler, else a bandwidth straggler. `explain` says in words what was decided, with the figures.

A window of chunks without results couples the workers: nobody can be further ahead of a slow link than that. So a lag
of delivery counts in windows there (`coupled_lag`). Where drivers know no more than that, it is a suspicion only, since
a worker that merely began last looks just so while links are full: `suspect` wants it to last, and `learn` makes the
next suspicion last twice as long if help has not proved it.

**Roles.** `choose_leaders` says who leads in the transport, `choose_owners` whose work others may take. With custody
a change of roles begins an epoch: leaders complete sums at their own fan-in and keep them among themselves,
stragglers' packets never hold an aggregator (`core/sender/roles.py`). Takeover alone changes no role there. With
both, custody is for what takeover does not reach: a slow link.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from paceline.compile.decorators import compiled

LEADING = 0
COMPUTE_STRAGGLER = 1
BANDWIDTH_STRAGGLER = 2
ROLE_NAMES = ("leading", "compute straggler", "bandwidth straggler")

WORKER = np.dtype(
    [
        ("computed", "i8"),  # chunks whose gradients are computed, since the start of the job
        ("delivered", "i8"),  # chunks that were delivered since then
        ("behind_by", "i8"),  # chunks behind the median of the leaders in the last window
        ("behind_windows", "i4"),  # windows in a row in which it was behind
        ("clean_iterations", "i4"),  # iterations in a row in which it was not
        ("behind_in_iteration", "i4"),  # 1: it was behind in some window of the present iteration
        ("role", "i4"),  # one of `ROLE_NAMES`
    ],
    align=True,
)
"""What detection keeps of a worker."""

OPTIONS = np.dtype(
    [
        ("theta_chunks", "i8"),  # a worker is behind by more than so many chunks
        ("windows", "i4"),  # it straggles after so many windows behind
        ("clean_iterations", "i4"),  # it leads again after so many iterations without being behind
    ],
    align=True,
)

COUPLED_SHARE = 0.75
"""So much of a window, queued at a host's own port or without the results that others have, counts as theta."""
DOUBTS_MAX = 8
"""However often a link was suspected wrongly: more than 256 windows need not be waited for."""


class Detection(NamedTuple):
    """`workers[rank]`, the options, and the median that the last window was judged by."""

    workers: Any
    options: Any
    median: Any


def new_detection(workers: int, theta_chunks: int, windows: int = 2, clean_iterations: int = 2) -> Detection:
    """Everyone leads."""
    options = np.zeros(1, dtype=OPTIONS).view(np.recarray)
    options[0].theta_chunks, options[0].windows = theta_chunks, windows
    options[0].clean_iterations = clean_iterations
    records = np.zeros(workers, dtype=WORKER).view(np.recarray)
    return Detection(records, options, np.zeros(2, dtype=np.int64))


@compiled
def end_window(detection: Detection, scratch: Any) -> int:
    """Judge the progress that the caller wrote into `workers`; how many roles changed.

    `scratch` is room for one integer a worker: compiled code creates no array.
    """
    workers = detection.workers
    options = detection.options[0]
    detection.median[0] = _median_of_leaders(workers, scratch, False)
    detection.median[1] = _median_of_leaders(workers, scratch, True)
    changed = 0
    for rank in range(workers.shape[0]):
        worker = workers[rank]
        worker.behind_by = detection.median[0] - worker.delivered
        if worker.behind_by <= options.theta_chunks:
            worker.behind_windows = 0
            continue
        worker.behind_windows += 1
        worker.behind_in_iteration = 1
        if worker.role == LEADING and worker.behind_windows >= options.windows:
            late = detection.median[1] - worker.computed > options.theta_chunks
            worker.role = COMPUTE_STRAGGLER if late else BANDWIDTH_STRAGGLER
            worker.clean_iterations = 0
            changed += 1
    return changed


@compiled
def end_iteration(detection: Detection) -> int:
    """An iteration is over: stragglers that were never behind in it come nearer to leading; how many do now."""
    changed = 0
    for rank in range(detection.workers.shape[0]):
        worker = detection.workers[rank]
        worker.clean_iterations = 0 if worker.behind_in_iteration != 0 else worker.clean_iterations + 1
        worker.behind_in_iteration = 0
        if worker.role != LEADING and worker.clean_iterations >= detection.options[0].clean_iterations:
            worker.role = LEADING
            worker.behind_windows = 0
            changed += 1
    return changed


@compiled
def _median_of_leaders(workers: Any, scratch: Any, computed: bool) -> int:
    """The median over those who lead; over all if nobody does. Insertion sort: there are few.

    The upper one where there are two: of two workers the slower one is then behind the other, not behind itself.
    """
    leaders = 0
    for rank in range(workers.shape[0]):
        leaders += workers[rank].role == LEADING
    count = 0
    for rank in range(workers.shape[0]):
        if leaders > 0 and workers[rank].role != LEADING:
            continue
        value = workers[rank].computed if computed else workers[rank].delivered
        place = count
        while place > 0 and scratch[place - 1] > value:
            scratch[place] = scratch[place - 1]
            place -= 1
        scratch[place] = value
        count += 1
    return int(scratch[count // 2])


@compiled
def coupled_lag(theta_chunks: int, lag_chunks: int, window_chunks: float) -> int:
    """A lag under a window that couples the workers, in chunks as `theta_chunks` counts them."""
    return int(theta_chunks * (lag_chunks / max(1.0, window_chunks)) / COUPLED_SHARE)


@compiled
def suspect(report: Any, theta_chunks: int, fullest: int) -> int:
    """The lag of a worker that has not got its window out, in chunks; 0 until that has lasted for long enough.

    `fullest` is the most that any worker has out.
    """
    missing = max(0, fullest - (report.sent - report.finished))
    lag = coupled_lag(theta_chunks, missing, float(report.window))
    report.suspected = report.suspected + 1 if lag > theta_chunks else 0
    return int(lag) if report.suspected >= 1 << min(report.doubts, DOUBTS_MAX) else 0


@compiled
def learn(report: Any, worker: Any) -> None:
    """Was it right to take this worker for a straggler? By what a window of help has shown."""
    if worker.behind_windows > 0:
        report.confirmed = 1
    if worker.role == LEADING:
        report.doubts = 0 if report.confirmed != 0 else report.doubts + 1
        report.confirmed = report.suspected = 0


def explain(detection: Detection, rank: int) -> str:
    """In words: what this worker is taken for, and the figures behind it."""
    worker, options = detection.workers[rank], detection.options[0]
    figures = (
        f"delivered {int(worker.delivered)} chunks, {int(worker.behind_by)} behind the leaders' median of "
        f"{int(detection.median[0])}; computed {int(worker.computed)} against a median of {int(detection.median[1])}"
    )
    if worker.role == LEADING:
        return (
            f"worker {rank} leads: {figures}; behind for {int(worker.behind_windows)} of "
            f"{int(options.windows)} windows, theta {int(options.theta_chunks)} chunks"
        )
    return (
        f"worker {rank} is a {ROLE_NAMES[int(worker.role)]}: {figures}; theta {int(options.theta_chunks)} chunks; "
        f"{int(worker.clean_iterations)} of {int(options.clean_iterations)} clean iterations so far"
    )


@dataclass(frozen=True)
class Leaders:
    """Who completes sums, and whether that is without the others."""

    ranks: frozenset[int]
    without_others: bool


def choose_leaders(roles: Mapping[int, int], has_custody: bool, takes_over: bool) -> Leaders:
    """From the roles of the living; without custody, or without leaders, everyone is equal."""
    leading = frozenset(rank for rank, role in roles.items() if role == LEADING)
    held_up = BANDWIDTH_STRAGGLER in roles.values()
    # Custodians need not wait for a straggler that takeover is there for.
    needs_custody = has_custody and (held_up or not takes_over)
    if needs_custody and leading and len(leading) < len(roles):
        return Leaders(leading, True)
    return Leaders(frozenset(roles), False)


def choose_owners(roles: Mapping[int, int], dead: set[int], pays: bool) -> list[int]:
    """Whose work others may take: the dead, and compute stragglers while somebody leads and it is worth it."""
    slow = [rank for rank, role in roles.items() if role == COMPUTE_STRAGGLER]
    leads = LEADING in roles.values()
    return sorted(dead) + (slow if pays and leads else [])
