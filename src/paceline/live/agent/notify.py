"""What an agent tells: callbacks of reductions that have ended, events, its figures, and who or what was missing.

The loop raises an eventfd; the notifying thread is the only one of an agent that needs the GIL, and the loop never
waits for it.
"""

import contextlib
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.core.custodian.state import COUNTER_NAMES as CUSTODIAN_COUNTERS
from paceline.core.custodian.state import OPEN
from paceline.core.help.detect import ROLE_NAMES, Detection, explain
from paceline.core.progress import CAUSE_NAMES
from paceline.core.sender.congestion import window_of
from paceline.live.agent.config import AgentConfig
from paceline.live.agent.state import (
    CLOSED,
    COUNTER_NAMES,
    DISAGREED,
    EVENT_EPOCH,
    EVENT_LEADS_AGAIN,
    EVENT_PATH,
    EVENT_SLOW,
    EVENT_STRAGGLES,
    EVENTS_KEPT,
    NO_FAILURE,
    PATH_NAMES,
    REASONS,
    REASONS_OF_OTHERS,
    SWITCH_SILENT,
    TIMED_OUT,
    Loop,
)

log = logging.getLogger("paceline.agent")
FAILURE_NAMES = {
    TIMED_OUT: "timed out",
    SWITCH_SILENT: "switch silent",
    DISAGREED: "tensors differ",
    CLOSED: "closed",
}
_POLL_MS = 500
"""At most this long passes unnoticed, whatever happens to a wake-up."""


class Notifier:
    """Callbacks and events of one agent."""

    def __init__(
        self, loop: Loop, name: str, is_done: Callable[[int], bool], explain: Callable[[], str]
    ) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        self._loop = loop
        self._written = loop.control.view(np.ndarray)["events"]
        self._name = name
        self._is_done = is_done
        self._explain = explain
        self._seen = 0
        self._stop = False
        self._lock = threading.Lock()
        self._pending: dict[int, list[Callable[[], None]]] = {}
        self._listeners: list[Callable[[dict[str, Any]], None]] = []
        self._thread = threading.Thread(target=self._run, name="paceline-notify", daemon=True)
        self._thread.start()

    def when_done(self, ticket: int, call: Callable[[], None]) -> None:
        """Call it when the reduction has ended; at once if it has."""
        with self._lock:
            if not self._stop and not self._is_done(ticket):
                # The loop's own wake-up comes after this, or `deliver`, which waits for the lock, sees it.
                self._pending.setdefault(ticket, []).append(call)
                return
        call()

    def listen(self, listener: Callable[[dict[str, Any]], None]) -> None:
        with self._lock:
            self._listeners.append(listener)

    def close(self) -> None:
        """Deliver what there is, then end."""
        self._stop = True
        os.eventfd_write(self.fd, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)
        if not self._thread.is_alive():
            os.close(self.fd)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        while not self._stop:
            poll.poll(_POLL_MS)
            self._drain()
            self.deliver()
        self.deliver()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def deliver(self) -> None:
        """Run what is due; an exception in a callback is logged and ends nothing."""
        with self._lock:
            done = [ticket for ticket in self._pending if self._is_done(ticket)]
            calls = [call for ticket in sorted(done) for call in self._pending.pop(ticket)]
            events = self._take_events()
            listeners = list(self._listeners)
        for event in events:
            for listener in listeners:
                _run_safely(lambda listener=listener, event=event: listener(event))  # type: ignore[misc]
        for call in calls:
            _run_safely(call)

    def _take_events(self) -> list[dict[str, Any]]:
        news: list[dict[str, Any]] = []
        if self._seen == self._written[0]:
            return news
        self._seen = max(self._seen, int(self._written[0]) - EVENTS_KEPT)
        while self._seen < int(self._written[0]):
            event = self._describe(self._seen % EVENTS_KEPT)
            self._seen += 1
            self.events.append(event)
            news.append(event)
            log.warning("%s", event["text"])
        return news

    def _describe(self, at: int) -> dict[str, Any]:
        event = self._loop.events[at]
        moment = time.time() - (time.monotonic_ns() - int(event.time_ns)) / 1e9
        if int(event.code) == EVENT_PATH:
            path, worker = PATH_NAMES[int(event.value)], int(event.worker)
            reason = REASONS[int(event.reason)]
            if worker >= 0:
                reason = REASONS_OF_OTHERS[int(event.reason)].format(worker)
            text = f"{self._name}: contributions now go by the {path}: {reason}"
            return {"time": moment, "event": "path", "path": path, "reason": reason, "text": text}
        if int(event.code) == EVENT_SLOW:
            cause = CAUSE_NAMES[int(event.value)]
            text = (
                f"{self._name}: hardly any progress for more than a second: {describe_standstill(self._loop)}"
            )
            return {"time": moment, "event": "slow", "reason": cause, "text": text}
        if int(event.code) in (EVENT_STRAGGLES, EVENT_LEADS_AGAIN, EVENT_EPOCH):
            return {"time": moment, **self._describe_role(int(event.code), int(event.value), at)}
        reason = FAILURE_NAMES.get(int(event.value), "failed")
        return {"time": moment, "event": "failed", "reason": reason, "text": self._explain()}

    def _describe_role(self, code: int, value: int, at: int) -> dict[str, Any]:
        """In the simulator's words: who straggles or leads again and why; who completes sums in an epoch."""
        said = self._loop.roles.said[at]
        if code == EVENT_EPOCH:
            leaders = workers_in(int(said.leaders))
            what = "all workers complete sums"
            if leaders:
                what = f"workers {', '.join(map(str, leaders))} complete sums without the others"
            reason = f"epoch {value}: {what}"
            return {"event": "epoch", "epoch": value, "reason": reason, "text": f"{self._name}: {reason}"}
        figures = (int(said.median), int(said.median_computed))
        reason = explain(Detection({value: said}, self._loop.roles.detection.options, figures), value)
        kind = "leads again" if code == EVENT_LEADS_AGAIN else ROLE_NAMES[int(said.role)]
        return {"event": kind, "worker": value, "reason": reason, "text": f"{self._name}: {reason}"}


def workers_in(mask: int) -> list[int]:
    """The workers of a mask."""
    return [worker for worker in range(mask.bit_length()) if mask >> worker & 1]


def _run_safely(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        log.exception("a callback failed")


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
        "job": int(control.job),
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
