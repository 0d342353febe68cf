"""The planner's loop: arrivals, ends, lost servers; plan anew at each of them; start what the plan starts now.

All state is in the store, and each step is there before it takes effect, so a planner that is killed leaves
a run that the next one can go on with. The loop itself reads no clock and never sleeps but through what it is
given. `run` returns the exit code: 0 all done or cancelled, 1 some job failed, 130 interrupted. Commands of other
processes are taken at each turn (`control.py`).
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Protocol

from paceline.errors import EXIT_FAILED, EXIT_OK, UserError
from paceline.launch.attempts import Attempts, Ended, Watched
from paceline.launch.control import CANCELLED, ENDED, Controller
from paceline.launch.jobs import RunJob
from paceline.launch.launchers.protocol import Launcher, UnreachableError
from paceline.launch.learning import Learning, Placed
from paceline.launch.replan import Outlook, Running, latest_ends_s, plan_now
from paceline.launch.store import Row, Store, Tell
from paceline.report.run.logs import last_line
from paceline.schedule.inputs.cluster import Cluster
from paceline.schedule.model import Model
from paceline.schedule.plan import Objective
from paceline.schedule.policies import Policy

EXIT_INTERRUPTED = 130
FINAL = (*ENDED, "stopped")


class Watcher(Protocol):
    """An onlooker: a table, lines on stderr, a test."""

    def event(self, row: Row) -> None:
        """Something happened: a row of the table `events`."""

    def tick(self, store: Store, now: float) -> None:
        """The loop went round."""


class SwitchLink(Protocol):
    """The switch of a run, as the loop needs it."""

    address: str
    token: str

    def poll(self, now: float, tell: Tell) -> None: ...


class RunClock:
    """A run's time: the machine's when the planner began, and from then on what has passed.

    A machine's clock may be set, an hour back or forth. Jobs arrive and end by this one, which never jumps.
    """

    def __init__(self, not_before: float = 0.0) -> None:
        """`not_before`: the last that an earlier planner of the run has written."""
        self._ahead_s = max(time.time(), not_before) - self._passed()

    @staticmethod
    def _passed() -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def __call__(self) -> float:
        return self._ahead_s + self._passed()

    def from_machine(self, when: float) -> float:
        """A time that a process of this machine has noted, by the machine's clock as it is set now."""
        return when + self() - time.time()


@dataclass(frozen=True)
class LoopSettings:
    """How patient the loop is."""

    objective: Objective = "makespan"
    grace_s: float = 5.0
    """Between SIGTERM and SIGKILL, for a job that is stopped."""
    servers_every_s: float = 2.0
    """How often the launcher is asked which servers are up."""
    patience_s: float = 60.0
    """How long jobs that no longer fit wait for servers to come back, once nothing else is left to do."""
    unreachable_limit_s: float = 600.0
    """How long the launcher may give no answer before the planner ends; its jobs go on."""
    losses_max: int = 5
    """So many servers may be lost under one job before it counts as failed."""


DEFAULTS = LoopSettings()


def tell_event(
    store: Store, watcher: Watcher, now: float, kind: str, text: str, *, job: str | None = None, reason: str = "",
    figures: Mapping[str, object] | None = None,
) -> None:  # fmt: skip
    """An event, to disk and to the onlooker."""
    number = store.event(now, kind, text, job=job, reason=reason, figures=figures)
    watcher.event(
        {"id": number, "time": now, "kind": kind, "job": job, "text": text, "reason": reason,
         "figures": dict(figures or {})}
    )  # fmt: skip


def _placed(watched: Watched) -> Placed:
    return Placed(watched.name, watched.task.attempt, watched.gpus, watched.task.servers)


class PlannerLoop:
    """One run, from its state on disk to the end of its last job."""

    def __init__(
        self, store: Store, launcher: Launcher, cluster: Cluster, model: Model, jobs: Mapping[str, RunJob],
        policy: Policy, watcher: Watcher, settings: LoopSettings = DEFAULTS, switch: SwitchLink | None = None,
        clock: RunClock | None = None,
    ) -> None:  # fmt: skip
        self.store, self.launcher, self.cluster, self.model = store, launcher, cluster, model
        self.jobs, self.policy, self.watcher, self.settings = dict(jobs), policy, watcher, settings
        self.switch, self.clock = switch, clock or RunClock()
        self.tell: Tell = partial(tell_event, store, watcher)
        self.interrupted = Event()
        self.meta = store.meta()
        self.attempts = Attempts(
            store,
            launcher,
            cluster,
            self.jobs,
            self.meta["run_id"],
            self.tell,
            self._handle_end,
            self._handle_progress,
            self.clock.from_machine,
        )
        self.control = Controller(store, self.jobs, cluster.gpus_total, launcher.name, self.tell)
        self.learning = Learning(store, cluster, model, self.jobs, self.tell)
        self.down: dict[str, str] = {
            row["name"]: row["reason"] for row in store.servers() if row["state"] == "down"
        }
        """Servers that cannot be used, and why."""
        self._why = "the run begins" if self.meta["state"] == "new" else "the run goes on"
        """Why a new plan is due; empty: none is."""
        self._servers_at = 0.0
        """When the servers were last looked at."""
        self._lost = False
        """Whether an attempt was lost since."""
        self._unreachable_since: float | None = None
        self._stuck_since: float | None = None

    # The loop --------------------------------------------------------------------------------------------

    def run(self) -> int:
        now = self.clock()
        self.attempts.adopt(now)
        self._take_commands(now)
        past = {row["state"] for row in self.store.jobs()}
        if past <= set(ENDED):
            return EXIT_FAILED if "failed" in past else EXIT_OK
        self.store.set_meta(state="running")
        for row in self.store.jobs():
            if row["state"] == "stopped":
                self.store.update_job(
                    row["name"], state="waiting", ended=None, reason="stopped before, goes on"
                )
        while not self.interrupted.is_set():
            now = self.clock()
            self._take_commands(now)
            self._guarded(now, self._step)
            self.watcher.tick(self.store, now)
            states = [row["state"] for row in self.store.jobs()]
            if all(state in FINAL for state in states):
                return self._finish(EXIT_OK if set(states) <= {"done", CANCELLED} else EXIT_FAILED)
            self.interrupted.wait(self.launcher.poll_s)
        self._stop_all()
        return self._finish(EXIT_INTERRUPTED)

    def _guarded(self, now: float, step: Callable[[float], None]) -> None:
        try:
            step(now)
        except UnreachableError as error:
            if self._unreachable_since is None:
                self._unreachable_since = now
                self.tell(now, "launcher", f"{self.launcher.name} does not answer", reason=str(error))
            if now - self._unreachable_since > self.settings.unreachable_limit_s:
                raise UserError(
                    f"{self.launcher.name} has not answered for {self.settings.unreachable_limit_s:.0f} s ({error});"
                    f" go on later: paceline run --resume {self.store.folder}",
                    place="run",
                ) from None
        else:
            if self._unreachable_since is not None:
                self._unreachable_since = None
                self.tell(now, "launcher", f"{self.launcher.name} answers again")

    def _take_commands(self, now: float) -> None:
        self._why = self.control.take(now) or self._why
        for watched in self.attempts.open.values():
            watched.run_job = self.jobs[watched.name]

    def _stop_cancelled(self) -> None:
        for watched in self.attempts.open.values():
            why = self.control.to_stop(watched.name)
            if why and watched.state == "released" and not watched.stopping:
                self.attempts.stop(watched, why)

    def _step(self, now: float) -> None:
        self._arrivals(now)
        self.attempts.advance(now)
        self._stop_cancelled()
        self.attempts.observe(now)
        if self._lost or now - self._servers_at >= self.settings.servers_every_s:
            self._look_at_servers(now)
        if self._why:
            self._replan(now)
            self.attempts.advance(now)
        self._give_up_stuck(now)
        if self.switch is not None:
            self.switch.poll(now, self.tell)

    def _arrivals(self, now: float) -> None:
        for row in self.store.jobs():
            if row["state"] == "pending" and self.meta["began"] + row["arrival_s"] <= now:
                with self.store.transaction():
                    self.store.update_job(row["name"], state="waiting", reason="arrived")
                    self.tell(
                        now, "arrival", f"{row['name']} arrives, asks for {row['gpus']}", job=row["name"],
                        figures={"gpus": row["gpus"], "iterations": row["iterations"]},
                    )  # fmt: skip
                self._why = f"{row['name']} arrived"

    def _handle_end(self, ended: Ended) -> None:
        now = self.clock()
        name, job = ended.watched.name, ended.watched.run_job
        state, kind, text = ended.outcome, "end", f"{name} {ended.outcome}"
        past = [row for row in self.store.attempts() if row["job"] == name]
        if ended.outcome == "lost":
            if sum(row["outcome"] == "lost" for row in past) > self.settings.losses_max:
                state, text = "failed", f"{name} failed: lost too often"
            else:
                state, kind, text = "waiting", "lost", f"{name} is lost, and waits to be placed anew"
        elif ended.outcome == "failed" and sum(row["outcome"] == "failed" for row in past) <= job.retries:
            state, kind, text = "waiting", "retry", f"{name} failed, and is tried again"
        reason = ended.reason
        if name in self.control.cancelled and ended.outcome != "done":
            state, kind, text, reason = CANCELLED, "end", f"{name} cancelled", self.control.cancelled[name]
        values: dict[str, object] = {"state": state, "reason": reason, "exit_code": ended.exit_code}
        if state in FINAL:
            values["ended"] = ended.at
        figures: dict[str, object] = {
            "exit_code": ended.exit_code,
            "attempt": ended.watched.task.attempt,
            "at": ended.at,
        }
        if ended.outcome == "failed" and (line := last_line(Path(ended.watched.task.folder))) is not None:
            reason = f"{reason}; {line}"
            figures |= {"rank": line.rank, "last_line": line.text, "log": str(line.path)}
        with self.store.transaction():
            self.store.update_job(name, **values)
            self.tell(now, kind, text, job=name, reason=reason, figures=figures)
        self._why = text
        self._lost = self._lost or ended.outcome == "lost"

    def _handle_progress(self, watched: Watched, now: float) -> None:
        if watched.progress is not None and watched.progress.iteration is not None:
            self.learning.note(
                watched.name, watched.task.attempt, watched.progress.iteration, now, self.launcher.poll_s
            )
        paces_s = watched.paces_s(now)
        helped = watched.progress is not None and "taken_over_total" in watched.progress.all
        if paces_s and self.learning.note_ranks(_placed(watched), paces_s, helped, now):
            self._why = self._why or "a server is not as fast as was known"

    # Servers ---------------------------------------------------------------------------------------------

    def _look_at_servers(self, now: float) -> None:
        self._servers_at, self._lost = now, False
        found = self.launcher.servers([server.name for server in self.cluster.servers])
        for name, state in found.items():
            if state.up == (name not in self.down):
                continue
            if state.up:
                del self.down[name]
            else:
                self.down[name] = state.reason
            word = "up" if state.up else "down"
            with self.store.transaction():
                self.store.update_server(name, word, state.reason)
                self.tell(
                    now, "server", f"server {name} is {word}", reason=state.reason, figures={"server": name}
                )
            self._why = f"server {name} is {word}"
        for watched in list(self.attempts.open.values()):
            gone = [server for server in watched.task.servers if server in self.down]
            if gone and watched.state == "released" and watched.seen.state == "queued":
                why = f"server {gone[0]} went down before it ran"
                self.attempts.give_up(watched, why, now)

    # Planning --------------------------------------------------------------------------------------------

    def _replan(self, now: float) -> None:
        why, self._why = self._why, ""
        self.learning.conclude(now)
        waiting = [row["name"] for row in self.store.jobs() if row["state"] == "waiting"]
        running = [
            Running(self.learning.corrected(each.name), each.gpus, each.iterations_left(now))
            for each in self.attempts.open.values()
        ]
        # With none waiting, running jobs still get their new remaining time: an ended job no longer contends with them.
        if not waiting and not running:
            return
        outlook = plan_now(
            self.cluster, self.model, running, [self.learning.corrected(name) for name in waiting], self.down,
            self.policy, self.settings.objective, latest_s=self._latest_s(now), slowness=self.learning.slowness,
        )  # fmt: skip
        self._write_plan(now, why, running, outlook)
        for decision in outlook.decisions:
            if decision.now and not self.control.paused:
                address, token = (self.switch.address, self.switch.token) if self.switch else ("", "")
                self.attempts.start(decision, now, address, token, self.settings.grace_s)
        self.learning.predict(
            now,
            [_placed(each) for each in self.attempts.open.values()],
        )

    def _latest_s(self, now: float) -> dict[str, float]:
        """In seconds from now, when each job should have ended, where the policy heeds that."""
        arrived = [
            replace(self.learning.corrected(row["name"]), arrival_s=float(row["arrival_s"]))
            for row in self.store.jobs()
            if row["state"] not in ("pending", "failed", CANCELLED)
        ]
        ends_s = latest_ends_s(
            self.cluster, self.model, arrived, self.policy, self.settings.objective, self.learning.slowness
        )
        return {name: self.meta["began"] + end_s - now for name, end_s in ends_s.items()}

    def _write_plan(self, now: float, why: str, running: list[Running], outlook: Outlook) -> None:
        decisions = [
            {
                "job": each.job,
                "servers": self.cluster.by_server(each.gpus),
                "start_s": each.start_s,
                "end_s": each.end_s,
                "reason": each.reason,
                "now": each.now,
            }
            for each in outlook.decisions
        ]
        starts = [each.job for each in outlook.decisions if each.now and not self.control.paused]
        with self.store.transaction():
            self.store.insert(
                "plans", time=now, policy=self.policy.name, trigger=why,
                running={each.job.name: each.iterations_left for each in running}, decisions=decisions,
                settings=dict(outlook.settings), took_s=outlook.took_s,
            )  # fmt: skip
            for each in outlook.decisions:
                self.store.update_job(each.job, expected_end=now + each.end_s)
            told = f"starts {', '.join(starts)}" if starts else "starts nothing now"
            told += " (the queue is paused)" if self.control.paused else ""
            self.tell(
                now, "plan", f"{self.policy.name}: {told}", reason=why,
                figures={"running": len(running), "waiting": len(outlook.decisions) - len(running),
                         "too_large": list(outlook.too_large), "took_s": outlook.took_s},
            )  # fmt: skip
        by_name = {each.job: each for each in outlook.decisions}
        for watched in self.attempts.open.values():
            if watched.name in by_name:
                watched.tell_remaining(by_name[watched.name].end_s, now)

    def _give_up_stuck(self, now: float) -> None:
        # Nothing runs, nothing will arrive, and what waits does not fit the servers that are left.
        rows = self.store.jobs()
        waiting = [row for row in rows if row["state"] == "waiting"]
        if (
            self.attempts.open
            or self.control.paused
            or not waiting
            or any(row["state"] == "pending" for row in rows)
        ):
            self._stuck_since = None
            return
        self._stuck_since = self._stuck_since or now
        if now - self._stuck_since < self.settings.patience_s:
            return
        left = sum(server.gpus for server in self.cluster.servers if server.name not in self.down)
        if any(row["gpus"] <= left for row in waiting):
            self._why = self._why or "jobs wait and nothing runs"
        for row in (row for row in waiting if row["gpus"] > left):
            reason = f"asks for {row['gpus']}, the servers that are up have {left}"
            with self.store.transaction():
                self.store.update_job(row["name"], state="failed", ended=now, reason=reason)
                self.tell(now, "end", f"{row['name']} failed: no room", job=row["name"], reason=reason)

    # The end ---------------------------------------------------------------------------------------------

    def _stop_all(self) -> None:
        now = self.clock()
        self.tell(now, "stop", f"stopping {len(self.attempts.open)} jobs", reason="interrupted")
        self.attempts.drop_unprepared(now)
        asked: set[str] = set()
        deadline = now + 2 * self.settings.grace_s + 20.0
        while self.attempts.open and self.clock() < deadline:
            self._guarded(self.clock(), lambda now: self._ask_to_stop(asked, now))
            self.watcher.tick(self.store, self.clock())
            time.sleep(min(self.launcher.poll_s, 0.2))
        for watched in self.attempts.open.values():
            self.tell(self.clock(), "stop", f"{watched.name} did not end in time", job=watched.name)
        for row in self.store.jobs():
            if row["state"] in ("pending", "waiting"):
                self.store.update_job(row["name"], reason="not started when the run was stopped")

    def _ask_to_stop(self, asked: set[str], now: float) -> None:
        for token, watched in list(self.attempts.open.items()):
            if token not in asked:
                self.attempts.stop(watched, "interrupted")
                watched.state = "released"
                asked.add(token)
        self.attempts.observe(now)

    def _finish(self, code: int) -> int:
        now = self.clock()
        state = {EXIT_OK: "done", EXIT_FAILED: "failed"}.get(code, "stopped")
        self.store.set_meta(ended=now, state=state)
        counts: dict[str, int] = {}
        for row in self.store.jobs():
            counts[row["state"]] = counts.get(row["state"], 0) + 1
        told = ", ".join(f"{count} {state}" for state, count in counts.items())
        self.tell(now, "run", f"the run ends: {told}", figures=counts)
        self.watcher.tick(self.store, now)
        return code
