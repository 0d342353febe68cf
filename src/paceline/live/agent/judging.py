"""What the coordinator makes of everyone's progress: who straggles, by computing or by its link, and who leads again.

The rules are the core's (`core/help/detect.py`). Here is what they are given. `computed` is what was submitted. As
the figures of two workers are never of quite the same moment, what counts is who has not even now reached what the
first of all had submitted a window ago.

A slow link shows in what has left the host (`backlog.py`). But the window couples the workers: those that wait
have filled theirs, the slow one has not got its own out. That is a suspicion only, since who merely began last looks
just so while links are full. In help mode nobody is held back, and a lag shows as it is: it proves the suspicion, or
the worker leads again, and the next suspicion has to last twice as long.

An agent does not know iterations. What stands for one: everybody has finished what anybody had submitted when it
began.
"""

from typing import Any

from paceline.compile.decorators import compiled_apart, compiled_inner
from paceline.core.bits import NO_BITS, bit
from paceline.core.help.detect import LEADING, end_iteration, end_window, learn, suspect
from paceline.core.sender.program import NEVER_NS
from paceline.live.agent.state import EVENT_LEADS_AGAIN, EVENT_STRAGGLES, Loop
from paceline.live.agent.tensors import note


@compiled_apart
def judge(loop: Loop, now_ns: int) -> bool:
    """A window ends: who is behind, who straggles, who leads again. True if others lead from now on."""
    detection = loop.roles.detection
    epoch = loop.senders.state[0].epoch
    for rank in range(loop.control[0].workers):
        if loop.roles.reports[rank].epoch != epoch and loop.roles.reports[rank].unanswered == 0:
            # Figures of different roles do not compare.
            return False
    _write_progress(loop)
    before = _leading(loop)
    changed = end_window(detection, loop.roles.scratch)
    _say(loop, before, EVENT_STRAGGLES, now_ns)
    if _ends_iteration(loop):
        before = _leading(loop)
        changed += end_iteration(detection)
        _say(loop, before, EVENT_LEADS_AGAIN, now_ns)
    for rank in range(loop.control[0].workers):
        if loop.roles.watch[0].leaders != NO_BITS and not loop.roles.watch[0].leaders & bit(rank):
            learn(loop.roles.reports[rank], detection.workers[rank])
    return bool(changed > 0 and next_leaders(loop) != loop.roles.watch[0].leaders)


@compiled_inner
def next_leaders(loop: Loop) -> Any:
    """Who leads by what is known now; 0 is everyone: where all lead, and where nobody does."""
    leaders = _leading(loop)
    return NO_BITS if leaders == loop.control[0].all_workers else leaders


@compiled_inner
def _write_progress(loop: Loop) -> None:
    """Everyone's progress as detection wants it, in chunks."""
    watch = loop.roles.watch[0]
    reports = loop.roles.reports
    theta = loop.roles.detection.options[0].theta_chunks
    fullest = 0
    highest = 0
    highest_sent = 0
    for rank in range(reports.shape[0]):
        report = reports[rank]
        fullest = max(fullest, report.sent - report.finished)
        highest = max(highest, report.computed)
        highest_sent = max(highest_sent, report.sent)
    for rank in range(reports.shape[0]):
        report = reports[rank]
        lag = 0
        if report.sent < report.computed:
            if watch.leaders != NO_BITS:
                lag = max(0, watch.highest_sent - report.sent)
            else:
                lag = suspect(report, theta, fullest)
        worker = loop.roles.detection.workers[rank]
        worker.computed = min(report.computed, watch.highest)
        worker.delivered = worker.computed - lag
    watch.highest = highest
    watch.highest_sent = highest_sent


@compiled_inner
def _ends_iteration(loop: Loop) -> bool:
    """Has everybody finished what anybody had submitted when the iteration began, and has another begun?"""
    watch = loop.roles.watch[0]
    finished = NEVER_NS
    for rank in range(loop.roles.reports.shape[0]):
        finished = min(finished, loop.roles.reports[rank].finished)
    watch.iteration_windows += 1
    if (
        finished < watch.goal
        or watch.highest <= watch.goal
        or watch.iteration_windows < loop.roles.detection.options[0].windows
    ):
        return False
    watch.goal = watch.highest
    watch.iteration_windows = 0
    return True


@compiled_inner
def _leading(loop: Loop) -> Any:
    leaders = NO_BITS
    for rank in range(loop.control[0].workers):
        if loop.roles.detection.workers[rank].role == LEADING:
            leaders |= bit(rank)
    return leaders


@compiled_apart
def _say(loop: Loop, before: Any, code: int, now_ns: int) -> None:
    """An event for each worker whose role has changed, with the figures that decided it."""
    detection = loop.roles.detection
    changed = before ^ _leading(loop)
    for rank in range(loop.control[0].workers):
        if not changed & bit(rank):
            continue
        worker = detection.workers[rank]
        said = loop.roles.said[loop.control[0].events % loop.roles.said.shape[0]]
        said.worker = rank
        said.computed = worker.computed
        said.delivered = worker.delivered
        said.behind_by = worker.behind_by
        said.behind_windows = worker.behind_windows
        said.clean_iterations = worker.clean_iterations
        said.role = worker.role
        said.median = detection.median[0]
        said.median_computed = detection.median[1]
        note(loop, code, rank, 0, now_ns)
