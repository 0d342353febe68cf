"""Learning while running: each job's measured iterations beside the prediction for its placement.

From one plan to the next the same jobs run beside each other, so one prediction holds: a stretch. `predict` opens the
stretches of all jobs that run, `note` measures them by the jobs' own progress, `conclude` ends them before the next
plan and takes what each says of the job's computing (`schedule/measured.py`). `corrected` is the job as the next plan
should see it. A job that has not run yet goes by its twins: jobs of the same entry, with the same command.

All of it is on disk (table `predictions`), so a run that is resumed knows what it had learned.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.launch.jobs import RunJob
from paceline.launch.store import Store, Tell
from paceline.schedule.inputs.cluster import Cluster
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.measured import Moment
from paceline.schedule.model import Model

ITERATIONS_MIN = 2.0
"""Fewer say nothing."""
LOOKS_MIN = 10.0
"""A stretch is measured once it is so many looks at the jobs long: progress is seen up to a look late."""
WORTH_TELLING = 0.05
"""A change of the computing factor by this share is an event."""


@dataclass(frozen=True)
class Placed:
    """A job that runs, or is about to."""

    name: str
    attempt: int
    gpus: tuple[int, ...]


@dataclass
class Stretch:
    """A job between two plans."""

    row: int
    """Its number in the table."""
    attempt: int
    place: int
    """Its number in the moment that it was predicted with."""
    first: tuple[float, float] | None = None
    """Time and iteration of the first progress that was seen."""
    measured_s: float | None = None
    """Of an iteration, since then."""


class Learning:
    """What a run knows of its jobs' iterations."""

    def __init__(
        self, store: Store, cluster: Cluster, model: Model, jobs: Mapping[str, RunJob], tell: Tell
    ) -> None:
        self._store, self._cluster, self._model, self._jobs, self._tell = store, cluster, model, jobs, tell
        self.factors: dict[str, float] = {
            row["job"]: row["learned"] for row in store.predictions() if row["learned"] is not None
        }
        """By job: how many times as long as its file says it computes."""
        self._stretches: dict[str, Stretch] = {}
        self._moment: Moment | None = None
        self._heard: set[tuple[str, int]] = set()
        """Attempts that have told progress."""

    def corrected(self, name: str) -> Job:
        """The job as the next plan should see it."""
        return self._jobs[name].job.computing(self._factor(name))

    def _factor(self, name: str) -> float:
        if name in self.factors:
            return self.factors[name]
        mine = _kind(self._jobs[name])
        twins = [factor for other, factor in self.factors.items() if _kind(self._jobs[other]) == mine]
        return statistics.median(twins) if twins else 1.0

    def predict(self, now: float, running: Sequence[Placed]) -> None:
        """A plan was made: what an iteration of each job takes from now on."""
        self._stretches, self._moment = {}, None
        if not running:
            return
        jobs = [self.corrected(each.name) for each in running]
        self._moment = Moment(self._cluster, self._model, jobs, [each.gpus for each in running])
        with self._store.transaction():
            for place, each in enumerate(running):
                row = self._store.insert(
                    "predictions", job=each.name, attempt=each.attempt, since=now, factor=self._factor(each.name),
                    predicted_s=self._moment.iteration_s(place),
                )  # fmt: skip
                self._stretches[each.name] = Stretch(row, each.attempt, place)

    def note(self, name: str, attempt: int, iteration: float, now: float, look_s: float) -> None:
        """A job told its iteration; `look_s` is how often jobs are looked at."""
        if (name, attempt) not in self._heard:
            # From here on it sends as well: what was measured of the others was without it.
            self._heard.add((name, attempt))
            for other in self._stretches.values():
                other.first = other.measured_s = None
                self._store.update_prediction(other.row, measured_s=None, iterations=None)
        stretch = self._stretches.get(name)
        if stretch is None or stretch.attempt != attempt:
            return
        if stretch.first is None or iteration < stretch.first[1]:
            stretch.first = (now, iteration)
            return
        took_s, done = now - stretch.first[0], iteration - stretch.first[1]
        if done >= ITERATIONS_MIN and took_s >= LOOKS_MIN * look_s:
            stretch.measured_s = took_s / done
            self._store.update_prediction(stretch.row, measured_s=stretch.measured_s, iterations=done)

    def conclude(self, now: float) -> None:
        """A plan is due: what the stretches so far say."""
        stretches, self._stretches = self._stretches, {}
        for name, stretch in stretches.items():
            if stretch.measured_s is None or self._moment is None:
                continue
            before = self._factor(name)
            learned = before * self._moment.computing_factor(stretch.place, stretch.measured_s)
            self.factors[name] = learned
            with self._store.transaction():
                self._store.update_prediction(stretch.row, learned=learned)
                if abs(learned / before - 1.0) > WORTH_TELLING:
                    predicted_s = self._moment.iteration_s(stretch.place)
                    self._tell(
                        now, "learn", f"{name} computes {learned:.3g} times as long as its file says", job=name,
                        reason=f"an iteration takes {stretch.measured_s:.4g} s, {predicted_s:.4g} s were expected",
                        figures={"predicted_s": predicted_s, "measured_s": stretch.measured_s, "factor": learned},
                    )  # fmt: skip


def _kind(run_job: RunJob) -> tuple[Any, ...]:
    """Equal for jobs of which one can speak for the other."""
    return replace(run_job.job, name="", arrival_s=0.0, iterations=1.0), run_job.command
