"""Who is slow: scores of 0 to 1 from what the switch sees, and the GPU time that others lose by waiting.

The switch tells how long after the first contribution to a chunk each worker's came, at worst in each round (what it
sends between two pauses, mostly an iteration): its *lag*. All wait for the last:
in an iteration of `T` seconds a worker with a lag of `l`, where the last has `L`, is busy for `T - (L - l)` seconds and
waits for the rest. From that two scores [ours, after the two of NVIDIA's resiliency extension]:

* against the median: the median worker's busy time (of two in the middle, the quicker) over its own;
* against its own best: its least busy time until now over that of now.

Both are 1 at best. A worker is a straggler while one of them is under its threshold and it lags by more than `lag_min`
and a twentieth of the iteration: who comes with the first keeps nobody waiting, whatever its scores. The least busy
time is the least median of three looks, since rate and lags are not of quite the same time: one odd look is no best.
Of the time lost, a straggler is charged what it lags behind the median, times the GPUs that wait for it.
"""

import importlib
import logging
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from paceline import toml
from paceline.dashboard.views import StragglerView
from paceline.errors import UserError

LOG = logging.getLogger("paceline.dashboard")
BEST_AFTER = 3
"""Looks at a worker before its best is taken for one: the first iterations load and compile."""
BEST_OF = 3
"""The median of so many looks can be a best."""
LAG_OF = 3
"""The lag of late is the median of so many looks."""
LONGER = 1.05
"""So many times the largest lag an iteration has to be."""
BUSY_MIN_PART = 0.1
"""Of an iteration: less is what is left of two larger times that differ in when they were measured, and no best."""
LAG_MIN_PART = 0.05
"""Of an iteration."""


class StragglerRules(toml.Section):
    """When a worker counts as a straggler; the table `[stragglers]` of a file."""

    median: Annotated[float, Field(ge=0.0, le=1.0)] = 0.75
    """Score against the median under which a worker is slow."""
    best: Annotated[float, Field(ge=0.0, le=1.0)] = 0.75
    """Score against its own best under which it is slow."""
    lag_min_ms: Annotated[float, Field(ge=0.0)] = 1.0
    """A worker that lags by less is not slow, whatever its scores."""
    callback: str = ""
    """`module:function`, called with a `StragglerView` whenever a worker becomes slow, and when it no longer is."""


class StragglerFile(toml.Section):
    """A file with the table `[stragglers]`."""

    stragglers: StragglerRules = StragglerRules()


Callback = Callable[[StragglerView], object]


def load_rules(path: Path) -> StragglerRules:
    """The rules of a TOML file, or one line that names the mistake."""
    return toml.load(path, StragglerFile).stragglers


def callback_of(rules: StragglerRules) -> Callback | None:
    """The function that the rules name."""
    if not rules.callback:
        return None
    module, colon, name = rules.callback.partition(":")
    try:
        found = getattr(importlib.import_module(module), name) if colon and name else None
    except (ImportError, AttributeError) as error:
        raise UserError(f"{rules.callback!r}: {error}", place="stragglers.callback") from None
    if not callable(found):
        raise UserError(f"{rules.callback!r} is not module:function", place="stragglers.callback")
    return found  # type: ignore[no-any-return]


@dataclass
class _Worker:
    """What is remembered of one worker."""

    count: float = 0.0
    """Rounds at the last look,"""
    total_s: float = 0.0
    """and their lags together."""
    lags_s: deque[float] = field(default_factory=lambda: deque(maxlen=LAG_OF))
    """Of the last looks."""
    best_s: float | None = None
    """Its least busy time."""
    busy: deque[float] = field(default_factory=lambda: deque(maxlen=BEST_OF))
    """Its busy times of late."""
    looks: int = 0
    """So often it was scored."""
    lost_gpu_s: float = 0.0
    slow: bool = False
    told_slow: bool = False
    """What the callback has heard last."""

    @property
    def lag_s(self) -> float:
        """Of late."""
        return statistics.median_low(self.lags_s) if self.lags_s else 0.0

    def scores(self, busy_s: float, median_busy_s: float, iteration_s: float) -> tuple[float, float]:
        """Against the median and against its own best, which this may be."""
        self.looks += 1
        if self.looks > BEST_AFTER and busy_s > BUSY_MIN_PART * iteration_s:
            self.busy.append(busy_s)
        if len(self.busy) == BEST_OF:
            usual_s = statistics.median(self.busy)
            self.best_s = usual_s if self.best_s is None else min(self.best_s, usual_s)
        return min(1.0, median_busy_s / busy_s), min(1.0, (self.best_s or busy_s) / busy_s)


@dataclass
class StragglerScores:
    """Scores of every job's workers, from one look at the switch to the next."""

    rules: StragglerRules = field(default_factory=StragglerRules)
    callback: Callback | None = None
    _workers: dict[str, dict[int, _Worker]] = field(default_factory=dict)
    _views: dict[str, dict[str, StragglerView]] = field(default_factory=dict)
    _looked: dict[str, float] = field(default_factory=dict)
    """When each job was last looked at."""

    def look(
        self,
        now: float,
        job: str,
        lags: Mapping[int, tuple[float, float]],
        rate: float | None,
        names: Sequence[str],
        gpus: Sequence[int],
        news: bool = True,
    ) -> None:
        """A job's counters at a time: worker -> (rounds, seconds of lag together), since its admission.

        `rate`: iterations a second, if known. `names`, `gpus`: of the workers. What was long ago is no `news`, of
        which the callback hears.
        """
        workers = self._workers.setdefault(job, {})
        moved = False
        passed_s, self._looked[job] = now - self._looked.get(job, now), now
        for worker, (count, total_s) in lags.items():
            kept = workers.setdefault(worker, _Worker())
            if count < kept.count:  # the job was admitted anew
                kept.count, kept.total_s = 0.0, 0.0
                kept.lags_s.clear()
            if count > kept.count:
                moved = True
                kept.lags_s.append(max(0.0, (total_s - kept.total_s) / (count - kept.count)))
                kept.count, kept.total_s = count, total_s
        if not moved or len(workers) < 2:
            return
        lags_s = {worker: kept.lag_s for worker, kept in workers.items()}
        last_s, median_s = max(lags_s.values()), statistics.median_low(lags_s.values())
        # Without a rate nobody knows how long an iteration is, and one that is shorter than the wait in it is none
        # (the rate counts other things, or the first seconds hold what they had to load): lags, and no scores.
        iteration_s = 1.0 / rate if rate and 1.0 / rate > LONGER * last_s else None
        steps = (rate or 0.0) * passed_s
        busy = {worker: max((iteration_s or 0.0) - (last_s - lag), 1e-9) for worker, lag in lags_s.items()}
        median_busy_s = statistics.median_low(busy.values())
        found: dict[str, StragglerView] = {}
        for worker, kept in sorted(workers.items()):
            score_median = score_best = None
            if iteration_s is not None:
                score_median, score_best = kept.scores(busy[worker], median_busy_s, iteration_s)
            slow = kept.slow
            if iteration_s is not None or not rate:
                slow = self._is_slow(kept.lag_s, iteration_s, score_median, score_best)
            if slow:
                waiting = sum(gpus) - (gpus[worker] if worker < len(gpus) else 0)
                kept.lost_gpu_s += max(0.0, kept.lag_s - median_s) * steps * waiting
            name = names[worker] if worker < len(names) else f"worker {worker}"
            view = StragglerView(
                job, worker, name, kept.lag_s, score_median, score_best, kept.lost_gpu_s, slow
            )
            found[f"{job}/{worker}"] = view
            kept.slow = slow
            if news and slow != kept.told_slow:
                kept.told_slow = slow
                self._call(view)
        self._views[job] = found

    def _is_slow(
        self,
        lag_s: float,
        iteration_s: float | None,
        against_median: float | None,
        against_best: float | None,
    ) -> bool:
        rules = self.rules
        if iteration_s is None or against_median is None or against_best is None:
            return False
        if lag_s <= max(rules.lag_min_ms / 1e3, LAG_MIN_PART * iteration_s):
            return False
        return against_median < rules.median or against_best < rules.best

    def _call(self, view: StragglerView) -> None:
        if self.callback is None:
            return
        try:
            self.callback(view)
        except Exception:
            # The user's own code: what goes wrong there must not stop what others look at.
            LOG.exception("the callback for stragglers failed")

    def forget(self, job: str) -> None:
        """The job is over: its workers are slow no longer; what they cost stays."""
        views = self._views.get(job, {})
        self._views[job] = {key: _ended(view) for key, view in views.items()}

    def views(self) -> dict[str, StragglerView]:
        """Every worker of every job."""
        return {key: view for views in self._views.values() for key, view in views.items()}

    def lost_gpu_s(self) -> float:
        """Of all jobs together."""
        return sum(kept.lost_gpu_s for workers in self._workers.values() for kept in workers.values())


def _ended(view: StragglerView) -> StragglerView:
    return StragglerView(
        view.job,
        view.worker,
        view.name,
        view.lag_s,
        view.score_median,
        view.score_best,
        view.lost_gpu_s,
        False,
    )
