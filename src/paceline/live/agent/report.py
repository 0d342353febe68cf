"""What an agent tells about itself: its figures, and, when a reduction fails, who or what was missing."""

import time
from typing import Any

from paceline.core.custodian.state import COUNTER_NAMES as CUSTODIAN_COUNTERS
from paceline.core.custodian.state import OPEN
from paceline.core.progress import CAUSE_NAMES
from paceline.core.sender.congestion import window_of
from paceline.live.agent.config import AgentConfig
from paceline.live.agent.state import (
    COUNTER_NAMES,
    DISAGREED,
    NO_FAILURE,
    PATH_NAMES,
    SWITCH_SILENT,
    TIMED_OUT,
    Loop,
)


def describe_status(config: AgentConfig, loop: Loop, events: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything a user may want to see of an agent, as plain values."""
    control, sender = loop.control[0], loop.senders.state[0]
    counters = {name: int(value) for name, value in zip(COUNTER_NAMES, loop.counters, strict=True)}
    for name in (
        "sent",
        "resent",
        "timeouts",
        "credits",
        "queries",
        "nacks",
        "losses",
        "fallbacks",
        "rounds",
    ):
        counters[name] = int(sender[name])
    custodian = dict(zip(CUSTODIAN_COUNTERS, (int(x) for x in loop.custodians.counters[0]), strict=True))
    return {
        "path": PATH_NAMES[int(control.path)],
        "failed": int(control.failed) != NO_FAILURE,
        "worker": config.worker,
        "workers": config.workers,
        "job": config.job,
        "under_way": int(control.head) - int(control.tail),
        "window": float(window_of(sender)),
        "window_own": float(sender.window),
        "rtt_us": float(sender.srtt_ns) / 1e3,
        "rtt_variation_us": float(sender.rttvar_ns) / 1e3,
        "epoch": int(sender.epoch),
        "straggler": _describe_roles(config, loop),
        "counters": counters,
        "custodian": custodian,
        "packets": {
            "received": int(loop.inbox.cells[0].packets),
            "received_calls": int(loop.inbox.cells[0].calls),
            "sent": int(loop.outbox.cells[0].packets),
            "sent_calls": int(loop.outbox.cells[0].calls),
            "send_errors": int(loop.outbox.cells[0].errors),
        },
        "events": events,
    }


def describe_standstill(loop: Loop) -> str:
    """The figures of the last standstill, the cause first."""
    progress, sender = loop.progress[0], loop.senders.state[0]
    cause = CAUSE_NAMES[int(progress.cause)] or "over"
    return (
        f"{cause} (in the last second {float(progress.done):.0f} results, {float(progress.lost):.0f} packets lost, "
        f"{float(progress.again):.0f} sent again, {float(progress.fallen_back):.0f} sums without an aggregator; a "
        f"window of {float(window_of(sender)):.0f} of {float(sender.window_max):.0f} chunks, by the "
        f"{PATH_NAMES[int(loop.control[0].path)]})"
    )


def _describe_roles(config: AgentConfig, loop: Loop) -> dict[str, Any]:
    """Who leads and who straggles, as far as this worker has been told."""
    leaders = int(loop.senders.state[0].leaders)
    every = range(config.workers)
    return {
        "mode": config.straggler,
        "helping": leaders != 0,
        "leaders": [worker for worker in every if leaders == 0 or leaders >> worker & 1],
        "stragglers": [worker for worker in every if leaders != 0 and not leaders >> worker & 1],
    }


def describe_failure(config: AgentConfig, loop: Loop) -> str:
    """One line: what ended the reductions, and what was missing."""
    control = loop.control[0]
    failed = int(control.failed)
    chunk = int(control.failed_chunk)
    if failed == SWITCH_SILENT:
        silence = config.silence_s
        return f"the switch has not answered for {silence} s, and SwitchML has no custodians to go on with"
    if failed == DISAGREED:
        return (
            f"the workers reduce different tensors as their reduction number {int(control.failed_ticket)}: "
            "size, dtype or op differ"
        )
    if failed == TIMED_OUT:
        return (
            f"no result for chunk {chunk} of reduction {int(control.failed_ticket)} within {config.timeout_s} s: "
            f"{_who_is_missing(config, loop, chunk)}"
        )
    return "closed"


def _who_is_missing(config: AgentConfig, loop: Loop, chunk: int) -> str:
    control = loop.control[0]
    custodian = int(control.failed_custodian)
    mask = None
    if custodian == config.worker and not control.pool:
        at = chunk % loop.custodians.chunks.shape[1]
        if int(loop.custodians.chunks[0, at].chunk) == chunk and loop.custodians.chunks[0, at].state == OPEN:
            mask = int(control.all_workers) & ~int(loop.custodians.masks[0, at, 0])
    elif control.missing_ns and (time.monotonic_ns() - int(control.missing_ns)) < 5e9:
        mask = int(control.missing)
    if mask:
        names = ", ".join(str(worker) for worker in range(config.workers) if mask >> worker & 1)
        return f"no contribution from worker {names}"
    if control.pool:
        return "some worker has not contributed, or the switch is gone"
    return f"worker {custodian}, its custodian, does not answer"
