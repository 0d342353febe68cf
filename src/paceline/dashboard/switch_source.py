"""A switch as the dashboard sees it: asked over HTTP, again and again, also while it does not answer.

`/healthz` and `/metrics` need no token. What is counted becomes rates here, from one look to the next.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from paceline.dashboard.stragglers import StragglerScores
from paceline.dashboard.views import MemoryView, SwitchView
from paceline.launch.switches import samples_of
from paceline.live.switch_client import ControlError, ControlPlane
from paceline.live.switch_tls import trust_in
from paceline.report.run.read import lags_of

ANSWER_S = 0.8
"""A switch that takes longer is silent; with the time between two looks it is seen within two seconds."""
HISTORY = 600
"""Looks that are kept for the page's chart."""
Figures = dict[str, float]
COUNTERS = ("completions", "preemptions", "fallbacks")


@dataclass(frozen=True)
class Health:
    """What a switch says of itself."""

    state: str
    reason: str = ""


def health_of(address: str, timeout_s: float = ANSWER_S) -> Health:
    """Ask a switch how it is."""
    try:
        ControlPlane.parse(address, timeout_s=timeout_s, trust=trust_in()).text("/healthz")
    except ControlError as error:
        if error.status != 503:
            return Health("silent", error.reason)
        said = _said(str(error.reason))
        return Health("draining" if said in ("", "Service Unavailable") else "failed", said)
    return Health("ok")


def _said(text: str) -> str:
    try:
        return str(json.loads(text).get("error", ""))
    except (ValueError, AttributeError):
        return text


def total(figures: Mapping[str, float], metric: str, **labels: str) -> float | None:
    """A metric over its other labels; None if it is not told."""
    wanted = [f"{key}={value}" for key, value in labels.items()]
    found = [
        value
        for key, value in figures.items()
        if key.partition(",")[0] == metric and all(part in key.split(",") for part in wanted)
    ]
    return sum(found) if found else None


@dataclass
class SwitchSource:
    """One switch, watched."""

    address: str
    scores: StragglerScores = field(default_factory=StragglerScores)
    clock: Callable[[], float] = time.time
    history: deque[MemoryView] = field(default_factory=lambda: deque(maxlen=HISTORY))
    """For the page's chart, the oldest first."""
    _first: float | None = None
    """When it was first asked."""
    _state: str = ""
    _since: float = 0.0
    """When it came into this state."""
    _before: dict[str, tuple[float, Figures]] = field(default_factory=dict)
    """By job: when it was looked at, and what it had counted."""
    _view: SwitchView | None = None

    def poll(self) -> SwitchView:
        """Ask, and show what it said; if it says nothing, what it said last."""
        now = self.clock()
        self._first = now if self._first is None else self._first
        health = health_of(self.address)
        if health.state != self._state:
            self._state, self._since = health.state, now
        figures: dict[str | None, Figures] | None = None
        if health.state != "silent":
            try:
                figures = samples_of(
                    ControlPlane.parse(self.address, timeout_s=ANSWER_S, trust=trust_in()).text("/metrics")
                )
            except ControlError as error:
                health = Health("silent", error.reason)
        old = self._view
        at_s, since_s = now - self._first, self._since - self._first
        if figures is None:
            memory, jobs = (old.memory, old.jobs) if old is not None else (None, {})
        else:
            memory, jobs = self._read(now, at_s, figures)
        self._view = SwitchView(
            self.address, health.state, since_s, health.reason, memory, jobs, self.scores.views(), at_s
        )
        return self._view

    def _read(
        self, now: float, at_s: float, figures: dict[str | None, Figures]
    ) -> tuple[MemoryView, dict[str, Figures]]:
        whole = figures.get(None, {})
        slots = total(whole, "paceline_slots")
        jobs = {name: self._job(now, name, own) for name, own in figures.items() if name is not None}
        for gone in set(self._before) - set(jobs):
            del self._before[gone]
            self.scores.forget(gone)
        held = {name: job["held"] for name, job in jobs.items()}
        memory = MemoryView(at_s, None if slots is None else round(slots), held)
        self.history.append(memory)
        return memory, jobs

    def _job(self, now: float, name: str, figures: Figures) -> Figures:
        then, before = self._before.get(name, (now, figures))
        self._before[name] = (now, figures)
        passed_s = now - then

        def rate(metric: str, **labels: str) -> float:
            new, old = total(figures, metric, **labels) or 0.0, total(before, metric, **labels) or 0.0
            return max(0.0, new - old) / passed_s if passed_s > 0 else 0.0

        held = rate("paceline_slot_seconds_total") or total(figures, "paceline_slots_used") or 0.0
        lags = lags_of(figures)
        names = [f"worker {worker}" for worker in range(max(lags, default=-1) + 1)]
        self.scores.look(now, name, lags, None, names, [1] * len(names))
        return {
            "held": held,
            "bytes_in_s": rate("paceline_bytes_total", direction="in"),
            "bytes_out_s": rate("paceline_bytes_total", direction="out"),
            **{what: total(figures, f"paceline_{what}_total") or 0.0 for what in COUNTERS},
        }
