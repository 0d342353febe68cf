"""The life of attempts: intent, prepared, released, ended; each step on disk before the next is taken.

A planner that starts again calls `adopt`: every attempt that had not ended is watched again, and the steps
that may have been cut off are taken once more, which the launcher's two calls allow (`launch/launchers/protocol.py`).
"""

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from paceline.launch.jobs import Progress, ProgressTail, RunJob
from paceline.launch.launchers.protocol import (
    HANDED_ON,
    EngineHandle,
    GoneError,
    Launcher,
    Observation,
    OpenAttempt,
    RefusedError,
    Share,
    Task,
    job_environment,
)
from paceline.launch.replan import JobDecision
from paceline.launch.store import Store, Tell
from paceline.schedule.inputs.cluster import Cluster

PACES_EVERY_S = 1.0
"""How often the files of a job's ranks are read for how long they compute."""
RENEW_S = 2.0
"""How often a job's own progress renews the time that it is expected to need, between two plans."""


@dataclass
class Watched(OpenAttempt):
    """An attempt that has not ended, as the planner remembers it."""

    run_job: RunJob = field(kw_only=True)
    state: str = field(kw_only=True)
    """As in the table `attempts`."""
    since: float = field(kw_only=True)
    """When it was released, or began to run after a time in the engine's queue."""
    expected_s: float = field(kw_only=True)
    """The time that the plan gave it."""
    tail: ProgressTail = field(kw_only=True)
    progress: Progress | None = None
    """The last that it told."""
    stopping: str = ""
    """Why it was asked to stop; empty if it was not."""
    renewed: float = 0.0
    """When its remaining time was last written."""
    paces_asked: float = 0.0
    """When its ranks' files were last read."""

    @property
    def name(self) -> str:
        return self.task.job

    @property
    def gpus(self) -> tuple[int, ...]:
        return tuple(gpu for share in self.task.shares for gpu in share.gpus)

    def iterations_left(self, now: float) -> float:
        """By its own progress; else by the time that the plan gave it. Never nothing: it still runs."""
        total = self.run_job.job.iterations
        if self.progress is not None and self.progress.iteration is not None:
            left = total - self.progress.iteration
        else:
            left = total * (1.0 - (now - self.since) / max(self.expected_s, 1e-9))
        return max(left, 0.02 * total)

    def paces_s(self, now: float) -> dict[str, float]:
        """How long a rank computes by itself, by server, as far as ranks tell it; nothing if just asked for."""
        if now - self.paces_asked < PACES_EVERY_S:
            return {}
        self.paces_asked = now
        by_rank = self.tail.paces_s(len(self.gpus))
        paces_s: dict[str, list[float]] = {}
        ranks = (share.server for share in self.task.shares for _ in share.gpus)
        for rank, server in enumerate(ranks):
            if rank in by_rank:
                paces_s.setdefault(server, []).append(by_rank[rank])
        return {server: median(found) for server, found in paces_s.items()}

    def tell_remaining(self, remaining_s: float, now: float) -> None:
        """Hand the job its expected remaining time; its agents take their priority from it."""
        self.renewed = now
        write_remaining(Path(self.task.folder), remaining_s)


@dataclass(frozen=True)
class Ended:
    """An attempt that is over."""

    watched: Watched
    outcome: str
    exit_code: int | None
    reason: str
    at: float


class Attempts:
    """All attempts of a run that have not ended."""

    def __init__(
        self,
        store: Store,
        launcher: Launcher,
        cluster: Cluster,
        jobs: Mapping[str, RunJob],
        run_id: str,
        tell: Tell,
        on_end: "Callable[[Ended], None]",
        on_progress: "Callable[[Watched, float], None]",
        from_machine: Callable[[float], float],
    ) -> None:
        self.from_machine = from_machine
        """The run's time of what an engine tells."""
        self.store, self.launcher, self.cluster, self.jobs = store, launcher, cluster, jobs
        self.run_id, self.tell, self.on_end, self.on_progress = run_id, tell, on_end, on_progress
        self.open: dict[str, Watched] = {}
        """By token."""

    def start(
        self, decision: JobDecision, now: float, switch: str, switch_token: str, grace_s: float
    ) -> None:
        """Write the intent; `advance` does the rest."""
        run_job = self.jobs[decision.job]
        attempt = int(self.store.job(decision.job)["attempt"]) + 1
        token = f"{self.run_id}-{attempt}-{secrets.token_hex(8)}"
        shares = self.shares(decision.gpus)
        folder = (self.store.folder / "attempts" / f"{decision.job}.{attempt}").resolve()
        remaining_s = max(decision.end_s - decision.start_s, 0.0)
        handed_on = {name: os.environ[name] for name in HANDED_ON if name in os.environ}
        env = job_environment(
            {**handed_on, **run_job.env}, run_id=self.run_id, job=decision.job, token=token, shares=shares,
            remaining_s=remaining_s,
            iterations=run_job.job.iterations, folder=str(folder), switch=switch, switch_token=switch_token,
            backend=os.environ.get("PACELINE_BACKEND", "auto"),
        )  # fmt: skip
        task = Task(
            self.run_id, decision.job, attempt, token, run_job.command, env, run_job.workdir, shares, str(folder),
            grace_s,
        )  # fmt: skip
        where = ", ".join(f"{share.server} ({share.slots})" for share in shares)
        with self.store.transaction():
            self.store.insert(
                "attempts", job=decision.job, attempt=attempt, token=token, state="intent", task=task.as_json(),
                intended=now, reason=decision.reason,
            )  # fmt: skip
            for share in shares:
                self.store.insert(
                    "placements", job=decision.job, attempt=attempt, server=share.server, slots=share.slots,
                    gpus=list(share.gpus), start=now, reason=decision.reason,
                )  # fmt: skip
            self.store.update_job(
                decision.job, state="starting", attempt=attempt, reason=decision.reason, iteration=None, rate=None,
                path=None, progress=None, expected_end=now + remaining_s,
            )  # fmt: skip
            self.tell(
                now, "start", f"{decision.job} starts on {where}", job=decision.job, reason=decision.reason,
                figures={"attempt": attempt, "remaining_s": remaining_s, "gpus": list(decision.gpus)},
            )  # fmt: skip
        self.open[token] = self._watched(task, "intent", now, remaining_s, {})
        write_remaining(folder, remaining_s)

    def shares(self, gpus: tuple[int, ...]) -> tuple[Share, ...]:
        found: dict[int, list[int]] = {}
        for gpu in sorted(gpus):
            found.setdefault(int(self.cluster.server_of[gpu]), []).append(gpu)
        first = self.cluster.first_gpu
        return tuple(
            Share(self.cluster.servers[s].name, tuple(own), tuple(gpu - int(first[s]) for gpu in own))
            for s, own in found.items()
        )

    def _watched(
        self, task: Task, state: str, since: float, expected_s: float, handle: EngineHandle
    ) -> Watched:
        tail = ProgressTail(Path(task.folder))
        return Watched(
            task,
            handle,
            run_job=self.jobs[task.job],
            state=state,
            since=since,
            expected_s=expected_s,
            tail=tail,
        )

    def adopt(self, now: float) -> None:
        """Watch again whatever a planner before us left open."""
        for row in self.store.attempts():
            task = Task.from_json(row["task"])
            if row["state"] == "ended":
                if row["handle"]:
                    self.launcher.forget(task, row["handle"])
                continue
            expected_s = float(task.env["PACELINE_REMAINING_S"])
            since = float(row["released"] or row["intended"])
            self.open[task.token] = self._watched(task, row["state"], since, expected_s, row["handle"] or {})
            self.tell(
                now, "resume", f"{task.job} is watched again", job=task.job,
                reason=f"attempt {task.attempt} was {row['state']} when the planner ended",
            )  # fmt: skip

    def advance(self, now: float) -> None:
        """Take the next steps of attempts that are not released yet, in the order of the plan."""
        for watched in [each for each in self.open.values() if each.state in ("intent", "prepared")]:
            task = watched.task
            try:
                if watched.state == "intent":
                    watched.handle = self.launcher.prepare(task)
                    watched.state = "prepared"
                    self.store.update_attempt(task.job, task.attempt, state="prepared", handle=watched.handle)
                self.launcher.release(task, watched.handle)
            except RefusedError as refusal:
                self._end(watched, "failed", None, str(refusal), now)
                continue
            except GoneError as gone:
                self._end(watched, "lost", None, str(gone), now)
                continue
            watched.state, watched.since = "released", now
            self.store.update_attempt(task.job, task.attempt, state="released", released=now)

    def observe(self, now: float) -> None:
        """Ask the launcher, note what is new and what has ended."""
        released = [each for each in self.open.values() if each.state == "released"]
        if not released:
            return
        observations = self.launcher.poll(released)
        for watched in released:
            seen = observations.get(watched.task.token)
            if seen is None:
                continue
            before, watched.seen = watched.seen, seen
            if seen.state != "queued" and before.state == "queued":
                self._runs(watched, seen, now)
            self.note_progress(watched, now)
            if seen.state == "ended":
                self._ended(watched, seen, now)
            elif seen.state == "lost":
                self._end(watched, "stopped" if watched.stopping else "lost", None, seen.reason, now)

    def _runs(self, watched: Watched, seen: Observation, now: float) -> None:
        if seen.state == "running":
            # Time in the engine's queue was no progress; the time between two looks is no queue.
            if now - watched.since > 3 * self.launcher.poll_s:
                watched.since = now
            self.tell(now, "running", f"{watched.name} runs", job=watched.name)
        if seen.state in ("running", "ended"):
            values: dict[str, object] = {"state": "running"}
            if self.store.job(watched.name)["started"] is None:
                values["started"] = watched.since
            self.store.update_job(watched.name, **values)

    def _ended(self, watched: Watched, seen: Observation, now: float) -> None:
        outcome = "done" if seen.exit_code == 0 else "failed"
        reason = seen.reason or f"exit code {seen.exit_code}"
        if watched.stopping:
            outcome, reason = "stopped", watched.stopping
        # An engine's clock may be another's, or count whole seconds.
        at = min(max(self.from_machine(seen.at) if seen.at else now, watched.since), now)
        self._end(watched, outcome, seen.exit_code, reason, at)

    def note_progress(self, watched: Watched, now: float) -> None:
        found = watched.tail.read()
        if watched.tail.backend is not None:
            backend, watched.tail.backend = watched.tail.backend, None
            self.tell(
                now, "backend", f"{watched.name} uses the backend {backend['used']}", job=watched.name,
                reason=f"asked for {backend['asked']}: {backend['reason']}",
            )  # fmt: skip
        if found is None:
            return
        before, watched.progress = watched.progress, found
        if found.iteration is not None and found.rate and now - watched.renewed >= RENEW_S:
            # A plan's figure is the model's; between two plans the job's own pace is nearer the truth.
            remaining_s = watched.iterations_left(now) / found.rate
            watched.tell_remaining(remaining_s, now)
            self.store.update_job(watched.name, expected_end=now + remaining_s)
        with self.store.transaction():
            self.store.update_job(
                watched.name, iteration=found.iteration, rate=found.rate, path=found.path, progress=found.all
            )
            self.store.insert(
                "samples", time=now, job=watched.name, attempt=watched.task.attempt, iteration=found.iteration,
                rate=found.rate, path=found.path, figures=found.rest,
            )  # fmt: skip
            self.on_progress(watched, now)
            if found.path and before and before.path and found.path != before.path:
                self.tell(
                    now, "path", f"{watched.name} goes from {before.path} to {found.path}", job=watched.name,
                    reason=str(found.all.get("reason", "told by the job")), figures=found.rest,
                )  # fmt: skip

    def stop(self, watched: Watched, why: str) -> None:
        """Ask an attempt to end; one that was never released ends at once on the next look."""
        if watched.handle:
            self.launcher.stop(watched.task, watched.handle)
        watched.stopping = why  # Not before: a launcher that does not answer is asked again.

    def drop_unprepared(self, now: float) -> None:
        """End attempts that the launcher has never heard of."""
        for watched in [each for each in self.open.values() if each.state == "intent"]:
            self._end(watched, "stopped", None, "never given to the launcher", now)

    def give_up(self, watched: Watched, why: str, now: float) -> None:
        """A queued attempt whose server went down: take it back before it runs."""
        watched.stopping = why
        self.launcher.stop(watched.task, watched.handle)
        self._end(watched, "lost", None, why, now)

    def _end(self, watched: Watched, outcome: str, exit_code: int | None, reason: str, at: float) -> None:
        task = watched.task
        # The attempt's end and what follows for the job are one step: a crash leaves both or neither.
        with self.store.transaction():
            self.store.update_attempt(
                task.job,
                task.attempt,
                state="ended",
                outcome=outcome,
                exit_code=exit_code,
                reason=reason,
                ended=at,
            )
            self.store.end_placements(task.job, task.attempt, at)
            self.on_end(Ended(watched, outcome, exit_code, reason, at))
        del self.open[task.token]
        if watched.handle:
            self.launcher.forget(task, watched.handle)


def write_remaining(folder: Path, remaining_s: float) -> None:
    """Tell a job how long it is expected to take from now on; it may read the file whenever it likes."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / ".remaining_s"
    temporary.write_text(f"{remaining_s:.3f}\n", encoding="utf-8")
    temporary.replace(folder / "remaining_s")
