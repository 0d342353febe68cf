"""Who leads and who straggles, live: worker 0 asks, judges and tells; everyone answers and takes roles.

Once a window worker 0, the coordinator, sends everyone the present epoch and its leaders, and everyone answers at
once with its own epoch and its progress. So a role that got lost is told again in the next window, and all figures
of a window are of one moment.

No moment has to be agreed on for a change of roles: it is a new epoch. A worker that has heard of it sends again, in
it, whatever has no result; workers that are further drop packets of the epoch before, and results are results in
every epoch. Until the last worker knows, chunks wait; no sum can be wrong, since each worker contributes the same in
every epoch.

**Judging.** The rules are the core's (`core/help/detect.py`); `judge` gives them everyone's progress. `computed` is
what was submitted. As the figures of two workers are never of quite the same moment, what counts is who has not even
now reached what the first of all had submitted a window ago.

A slow link shows in what has left the host: a window is full as soon as its packets are with the kernel, however slow
the link, so `sent_chunks` asks the kernel for the memory of packets that have not left yet. But the window couples
the workers: those that wait have filled theirs, the slow one has not got its own out. That is a suspicion only, since
a worker that merely began last looks just so while links are full. In help mode nobody is held back, and a lag shows
as it is: it proves the suspicion, or the worker leads again, and the next suspicion has to last twice as long.

An agent does not know iterations. What stands for one: everybody has finished what anybody had submitted when it began.
"""

from typing import Any

import numpy as np

from paceline.compile.decorators import compiled_apart, compiled_inner
from paceline.core.bits import NO_BITS, bit
from paceline.core.custodian import program as custody
from paceline.core.help.detect import LEADING, end_iteration, end_window, learn, suspect
from paceline.core.sender import program as sending
from paceline.core.sender.program import NEVER_NS
from paceline.core.wire import HEADER_BYTES, REPORT, ROLE, WINDOW_MAX
from paceline.live.agent.send import blank, dispatch, finish, make_room
from paceline.live.agent.state import (
    EVENT_EPOCH,
    EVENT_LEADS_AGAIN,
    EVENT_STRAGGLES,
    NO_FAILURE,
    REPORTS,
    ROLE_CHANGES,
    Loop,
)
from paceline.live.agent.tensors import note
from paceline.live.net.syscalls import getsockopt

COORDINATOR = 0
_EPOCH_LAST = 65_000
"""Epochs have 16 bits and never go back: after so many changes roles stay as they are."""
_UNANSWERED_MAX = 5
"""A window with a missing answer is not judged; a worker that has missed this many counts as where it was last."""
_QUIET_WINDOWS = 20
_QUIET_FACTOR = 10
"""Where nothing has moved for so many windows, worker 0 asks this much less often."""

_SOL_SOCKET = 1
_SO_MEMINFO = 55
_MEMINFO_BYTES = 36
_WRITE_ALLOCATED = 2
"""Place in the kernel's answer: bytes of packets to be sent, with what it needs to keep them."""
_LENGTH = 12


@compiled_apart
def watch_workers(loop: Loop, now_ns: int) -> int:
    """The coordinator's timer: judge what was answered, and ask again; when to come back."""
    watch = loop.roles.watch[0]
    if watch.watches == 0 or loop.control[0].failed != NO_FAILURE or loop.control[0].closing != 0:
        return int(NEVER_NS)
    if now_ns < watch.due_ns:
        return int(watch.due_ns)
    epoch = loop.senders.state[0].epoch
    if watch.asked != 0 and _all_answered(loop) and judge(loop, now_ns) and epoch < _EPOCH_LAST:
        _take_role(loop, epoch + 1, next_leaders(loop), now_ns)
    _ask(loop)
    watch.asked = 1
    wait_ns = watch.window_ns
    if _is_quiet(loop):
        wait_ns *= _QUIET_FACTOR
    watch.due_ns = now_ns + wait_ns
    return int(watch.due_ns)


@compiled_inner
def _all_answered(loop: Loop) -> bool:
    answered = True
    for rank in range(loop.roles.reports.shape[0]):
        report = loop.roles.reports[rank]
        here = report.unanswered == 0 or report.unanswered > _UNANSWERED_MAX
        answered = answered and here and report.epoch >= 0
    return answered


@compiled_inner
def _is_quiet(loop: Loop) -> bool:
    """Has nothing moved for long, and does nobody wait?"""
    watch = loop.roles.watch[0]
    progress = 0
    waits = False
    for rank in range(loop.roles.reports.shape[0]):
        report = loop.roles.reports[rank]
        progress += report.computed + report.finished
        waits = waits or report.finished < report.computed or report.epoch < loop.senders.state[0].epoch
    watch.quiet = 0 if waits or progress != watch.progress else watch.quiet + 1
    watch.progress = progress
    return bool(watch.quiet > _QUIET_WINDOWS)


@compiled_inner
def _ask(loop: Loop) -> None:
    """Tell everyone the roles; the answer is a report. The own one needs no packet."""
    control = loop.control[0]
    sender = loop.senders.state[0]
    own = loop.roles.reports[control.worker]
    own.computed = control.next_chunk
    own.sent = max(own.sent, sent_chunks(loop))
    own.finished = sender.oldest
    own.window = int(sender.window)
    own.epoch = sender.epoch
    for peer in range(control.workers):
        if peer != control.worker:
            loop.roles.reports[peer].unanswered += 1
            _tell(loop, peer, ROLE)


@compiled_apart
def _tell(loop: Loop, peer: int, kind: int) -> None:
    """A packet without payload, straight to another worker."""
    start = make_room(loop.out, HEADER_BYTES)
    if start < 0:
        return
    packet = loop.packets[2]
    sender = loop.senders.state[0]
    blank(loop, packet, kind, 0)
    packet.custodian = peer
    if kind == ROLE:
        packet.mask = loop.roles.watch[0].leaders
    else:
        packet.chunk = loop.control[0].next_chunk
        packet.window = min(int(sender.window), WINDOW_MAX)
        packet.mask = np.uint64(sent_chunks(loop))
        packet.share = np.uint64(sender.oldest)
    dispatch(loop.out, start, finish(loop.out, packet, start), loop.peers[peer])


@compiled_apart
def take_report(loop: Loop, packet: Any, peer: int) -> None:
    """The coordinator hears how far a worker is; what is older than what it knows changes nothing."""
    report = loop.roles.reports[peer]
    loop.counters[REPORTS] += 1
    report.unanswered = 0
    report.computed = max(report.computed, packet.chunk)
    report.sent = max(report.sent, np.int64(packet.mask))
    report.finished = max(report.finished, np.int64(packet.share))
    report.window = packet.window
    report.epoch = max(report.epoch, packet.epoch)


@compiled_apart
def hear_role(loop: Loop, packet: Any, now_ns: int) -> None:
    """The coordinator says which epoch it is, and who leads in it."""
    if packet.epoch > loop.senders.state[0].epoch:
        _take_role(loop, packet.epoch, packet.mask & loop.control[0].all_workers, now_ns)
    _tell(loop, COORDINATOR, REPORT)


@compiled_apart
def _take_role(loop: Loop, epoch: int, leaders: Any, now_ns: int) -> None:
    """From now on in this epoch: among `leaders`, or as their straggler; 0 is everyone, without help."""
    control = loop.control[0]
    watch = loop.roles.watch[0]
    racks = loop.roles.racks
    helps = leaders != NO_BITS
    fan_in = 0
    for rank in range(control.workers):
        leads = not helps or (leaders & bit(rank)) != NO_BITS
        if racks[rank] == racks[control.worker] and leads:
            fan_in += 1
    lags = helps and (leaders & bit(control.worker)) == NO_BITS
    again = sending.take_role(
        loop.senders, 0, epoch, 1 if helps else 0, 1 if lags else 0, leaders, max(1, fan_in)
    )
    # What goes again was not lost: the window need not shrink.
    loop.senders.state[0].round_resent += again
    custodian = loop.custodians.state[0]
    if custodian.epoch < epoch:
        custody.begin_epoch(loop.custodians, 0, epoch)
    custodian.patience_helping_ns = watch.patience_ns if helps else 0
    custodian.patience_ns = max(custodian.patience_ns, custodian.patience_helping_ns)
    watch.leaders = leaders
    loop.counters[ROLE_CHANGES] += 1
    loop.roles.said[control.events % loop.roles.said.shape[0]].leaders = leaders
    note(loop, EVENT_EPOCH, epoch, 0, now_ns)


@compiled_apart
def sent_chunks(loop: Loop) -> int:
    """Up to which chunk contributions have left this host; never less than what is finished."""
    sender = loop.senders.state[0]
    words = loop.roles.memory
    outbox = loop.outbox
    waiting = np.int64(0)
    for at in range(outbox.cells[0].flushed, outbox.cells[0].trains):
        waiting += outbox.trains[at].bytes
    words[_LENGTH] = np.uint32(_MEMINFO_BYTES)
    address = loop.roles.watch[0].memory_at
    if getsockopt(loop.control[0].fd, _SOL_SOCKET, _SO_MEMINFO, address, address + 4 * _LENGTH) == 0:
        waiting += np.int64(words[_WRITE_ALLOCATED])
    chunks = waiting // (HEADER_BYTES + 4 * loop.control[0].elements)
    return int(max(sender.oldest, sender.next - chunks))


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
