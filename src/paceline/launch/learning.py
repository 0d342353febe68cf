"""Learning while running: each job's measured iterations beside the prediction for its placement.

From one plan to the next the same jobs run beside each other, so one prediction holds: a stretch. `predict` opens the
stretches of all jobs that run, `note` measures them by the jobs' own progress, `conclude` ends them before the next
plan and takes what each says of the job's computing (`schedule/measured.py`). `corrected` is the job as the next plan
should see it. A job that has not run yet goes by its twins: jobs of the same entry, with the same command.

Servers are told apart from jobs (`slowness.py`): a job on a slow server computes longer there, and not elsewhere. What
is left of its factor is its own. A server is called slow as soon as its ranks say so; what jobs say of it, at plans.

All of it is on disk (tables `predictions` and `slowness`), so a run that is resumed knows what it had learned.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.launch.jobs import RunJob
from paceline.launch.slowness import JobOnServers, ServerSlowness, verdicts
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
WORTH_TELLING_OF_A_SERVER = 0.2
"""A change of a server's slowness by this share is news: plans are made anew for it."""


@dataclass(frozen=True)
class Placed:
    """A job that runs, or is about to."""

    name: str
    attempt: int
    gpus: tuple[int, ...]
    servers: tuple[str, ...] = ()


@dataclass
class Stretch:
    """A job between two plans."""

    row: int
    """Its number in the table."""
    attempt: int
    place: int
    """Its number in the moment that it was predicted with."""
    servers: tuple[str, ...] = ()
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
        self._helped: set[str] = set()
        """Jobs whose ranks compute for slow ones."""
        self._observations: dict[tuple[str, int], JobOnServers] = {}
        """By job and attempt."""
        self._verdicts = {
            row["server"]: ServerSlowness(row["factor"], row["reason"]) for row in store.slow_servers()
        }

    @property
    def slowness(self) -> dict[str, float]:
        """How many times as long devices take, of servers that are slow, by name."""
        return {server: verdict.factor for server, verdict in self._verdicts.items() if verdict.factor > 1.0}

    def corrected(self, name: str) -> Job:
        """The job as the next plan should see it."""
        job = self._jobs[name].job.computing(self._factor(name))
        return replace(job, helped=name in self._helped)

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
        gpus = [each.gpus for each in running]
        self._moment = Moment(self._cluster, self._model, jobs, gpus, self.slowness)
        with self._store.transaction():
            for place, each in enumerate(running):
                row = self._store.insert(
                    "predictions", job=each.name, attempt=each.attempt, since=now, factor=self._factor(each.name),
                    predicted_s=self._moment.iteration_s(place),
                )  # fmt: skip
                self._stretches[each.name] = Stretch(row, each.attempt, place, each.servers)

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

    def note_ranks(
        self,
        placed: Placed,
        paces_s: Mapping[str, float],
        helped: bool,
        now: float,
    ) -> bool:
        """How long ranks compute by themselves, by server, and whether they help each other; True for news of servers.

        What is no news of servers changes no plan.
        """
        if helped:
            self._helped.add(placed.name)
        key = (placed.name, placed.attempt)
        seen = self._observations.get(key) or JobOnServers(
            placed.name, self._kind_of(placed.name), placed.servers
        )
        self._observations[key] = replace(seen, paces_s=dict(paces_s))
        return self._judge(now)

    def conclude(self, now: float) -> None:
        """A plan is due: what the stretches so far say."""
        stretches, self._stretches = self._stretches, {}
        concluded: list[tuple[str, Stretch, float, float]] = []
        for name, stretch in stretches.items():
            if stretch.measured_s is None or self._moment is None:
                continue
            before = self._factor(name)
            factor = before * self._moment.computing_factor(stretch.place, stretch.measured_s)
            on_servers = self._moment.slowness(stretch.place)
            concluded.append((name, stretch, before, factor * on_servers))
            key = (name, stretch.attempt)
            seen = self._observations.get(key) or JobOnServers(name, self._kind_of(name), stretch.servers)
            self._observations[key] = replace(seen, factor=factor * on_servers)
        self._judge(now)
        for name, stretch, before, whole in concluded:
            learned = whole / self._slowness_of(name, stretch)
            self.factors[name] = learned
            with self._store.transaction():
                self._store.update_prediction(stretch.row, learned=learned)
                if abs(learned / before - 1.0) > WORTH_TELLING and self._moment is not None:
                    predicted_s = self._moment.iteration_s(stretch.place)
                    self._tell(
                        now, "learn", f"{name} computes {learned:.3g} times as long as its file says", job=name,
                        reason=f"an iteration takes {stretch.measured_s:.4g} s, {predicted_s:.4g} s were expected",
                        figures={"predicted_s": predicted_s, "measured_s": stretch.measured_s, "factor": learned},
                    )  # fmt: skip

    def _judge(self, now: float) -> bool:
        """Which servers are slow, by all that was seen; True if that has changed."""
        changed = False
        for server, verdict in verdicts(list(self._observations.values())).items():
            before = self.slowness.get(server, 1.0)
            if abs(verdict.factor / before - 1.0) <= WORTH_TELLING_OF_A_SERVER:
                continue
            changed = True
            self._verdicts[server] = verdict
            slow = (
                f"takes {verdict.factor:.3g} times as long as others"
                if verdict.factor > 1.0
                else "is not slow"
            )
            with self._store.transaction():
                self._store.insert(
                    "slowness", time=now, server=server, factor=verdict.factor, reason=verdict.reason
                )
                self._tell(
                    now, "slow", f"server {server} {slow}", reason=verdict.reason,
                    figures={"server": server, "factor": verdict.factor},
                )  # fmt: skip
        return changed

    def _slowness_of(self, name: str, stretch: Stretch) -> float:
        """How many times as long the job computes on its servers, by what is known of them now."""
        if self._moment is None:
            return 1.0
        moment = self._moment.problem
        known = Moment(
            moment.cluster, moment.model, [replace(moment.jobs[stretch.place], helped=name in self._helped)],
            [self._moment.gpus_of(stretch.place)], self.slowness,
        )  # fmt: skip
        return known.slowness(0)

    def _kind_of(self, name: str) -> tuple[Any, ...]:
        return _kind(self._jobs[name])


def _kind(run_job: RunJob) -> tuple[Any, ...]:
    """Equal for jobs of which one can speak for the other."""
    return replace(run_job.job, name="", arrival_s=0.0, iterations=1.0), run_job.command
