"""Who leads and who straggles, live: worker 0 asks, judges and tells; everyone answers and takes roles.

Once a window worker 0, the coordinator, sends everyone the present epoch and its leaders, and everyone answers at
once with its own epoch and its progress. So a role that got lost is told again in the next window, and all figures
of a window are of one moment. What they mean is in `judging.py`.

No moment has to be agreed on for a change of roles: it is a new epoch. Whoever has heard of it sends again, in it,
whatever has no result; packets of the epoch before are dropped by whoever is further, and results are results in
every epoch. Until the last worker knows, chunks wait; no sum can be wrong, since each worker contributes the same
in every epoch.
"""

from typing import Any

import numpy as np

from paceline.compile.decorators import compiled_apart, compiled_inner
from paceline.core.bits import NO_BITS, bit
from paceline.core.custodian import program as custody
from paceline.core.sender import program as sending
from paceline.core.sender.program import NEVER_NS
from paceline.core.wire import HEADER_BYTES, REPORT, ROLE, WINDOW_MAX
from paceline.live.agent.backlog import sent_chunks
from paceline.live.agent.judging import judge, next_leaders
from paceline.live.agent.outbox import blank, dispatch, finish, make_room
from paceline.live.agent.state import (
    EVENT_EPOCH,
    NO_FAILURE,
    REPORTS,
    ROLE_CHANGES,
    Loop,
)
from paceline.live.agent.tensors import note

COORDINATOR = 0
_EPOCH_LAST = 65_000
"""Epochs have 16 bits and never go back: after so many changes roles stay as they are."""
_UNANSWERED_MAX = 5
"""A window with a missing answer is not judged; who has missed this many counts as where it was last."""
_QUIET_WINDOWS = 20
_QUIET_FACTOR = 10
"""Where nothing has moved for so many windows, worker 0 asks this much less often."""


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
