"""The agent's notifying thread: runs callbacks of reductions that have ended, logs and passes on events.

The loop raises an eventfd; this thread is the only one of an agent that needs the GIL, and the loop never waits for it.
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

from paceline.core.help.detect import ROLE_NAMES, Detection, explain
from paceline.core.progress import CAUSE_NAMES
from paceline.live.agent.report import describe_standstill
from paceline.live.agent.state import (
    CLOSED,
    DISAGREED,
    EVENT_EPOCH,
    EVENT_LEADS_AGAIN,
    EVENT_PATH,
    EVENT_SLOW,
    EVENT_STRAGGLES,
    EVENTS_KEPT,
    PATH_NAMES,
    REASONS,
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
_POLL_MS = 100
"""Where callbacks are pending, at most this long passes unnoticed, whatever happens to a wake-up."""


class Notifier:
    """Callbacks and events of one agent."""

    def __init__(
        self, loop: Loop, name: str, is_done: Callable[[int], bool], explain: Callable[[], str]
    ) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        self._loop = loop
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
                self._pending.setdefault(ticket, []).append(call)
                os.eventfd_write(self.fd, 1)
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
            poll.poll(_POLL_MS if self._pending else None)
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
        news = []
        control = self._loop.control[0]
        self._seen = max(self._seen, int(control.events) - EVENTS_KEPT)
        while self._seen < int(control.events):
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
            path, reason = PATH_NAMES[int(event.value)], REASONS[int(event.reason)]
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
