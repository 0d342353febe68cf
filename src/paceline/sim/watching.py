"""Watching a job's workers: progress by windows, who straggles, who is dead, and whether anything moves at all.

Progress is what detection wants (`dataplane/straggler.py`): chunks computed and chunks delivered. A pass that was
computed counts for as many chunks as its part of the iteration's computation, so a slow worker shows long before it
should have sent; what others have taken of it counts as well. Delivered is that, less what waits to be sent, as far as
others have sent it: who is ready before them has to wait, and is not slow. A window of chunks without results couples
the workers: nobody can be further ahead of a slow link than that. So a lag there counts in windows: `COUPLED_SHARE` of
one is as much as theta.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.dataplane.sender import NEVER_NS
from paceline.dataplane.straggler import (
    BANDWIDTH_STRAGGLER,
    COMPUTE_STRAGGLER,
    LEADING,
    end_iteration,
    end_window,
    explain,
    new_detection,
)
from paceline.sim import world as w
from paceline.sim.build import Setup
from paceline.sim.orders import STOP, tell_job, tell_worker

EVENTS_MAX = 2000
COUPLED_SHARE = 0.75
"""So much of a window, queued at a host's own port or without the results that others have, counts as theta."""

Plan = Callable[[int, Callable[[int], None]], None]


@dataclass(frozen=True)
class Decision:
    """What a coordinator decided, when, about whom and why."""

    time_s: float
    job: str
    kind: str
    worker: int | None
    reason: str


class Watching:
    """One job's coordinator: what all kinds of help have in common."""

    def __init__(self, setup: Setup, j: int, plan: Plan) -> None:
        self.world, self.j, self.plan = setup.world, j, plan
        self.job, self.record = setup.jobs[j], setup.world.jobs[j]
        self.help = setup.scenario.straggler
        self.policy = setup.policy
        self.first, self.n = int(self.record.first_worker), self.job.workers
        self.workers = setup.world.workers[self.first : self.first + self.n]
        self.senders = setup.world.senders.state[self.first : self.first + self.n]
        self.compute_ns = int(self.record.forward_ns + self.record.backward_ns)
        self.unit_ns = self.compute_ns // self.job.parts
        self.chunks = int(self.record.chunks)
        self.window_ns = max(1000, round(self.help.window * self.compute_ns))
        theta = max(1, round(self.help.theta * self.chunks))
        self.detection = new_detection(self.n, theta, self.help.windows, self.help.clean_iterations)
        self.scratch = np.zeros(self.n, dtype=np.int64)
        self.iteration = 0
        self.dead: set[int] = set()
        self.silent_since: dict[int, int] = {}
        self.moved_ns = 0
        self.signature: Any = None
        self.decisions: list[Decision] = []
        self.left_unsaid = 0
        self.claims = {"first": 0, "second": 0, "fenced": 0}
        self.failure: str | None = None
        self.left_out = 0
        self.judged = np.zeros(self.n, dtype=np.int64)
        self.unchanged = 0

    def say(self, now_ns: int, kind: str, rank: int | None, reason: str) -> None:
        """Keep a decision with its reason."""
        if len(self.decisions) < EVENTS_MAX:
            self.decisions.append(Decision(now_ns * 1e-9, self.job.name, kind, rank, reason))
        else:
            self.left_unsaid += 1

    def asked(self, kind: int, rank: int, now_ns: int) -> None:
        """A worker has ended a pass and wants to know what comes next."""
        raise NotImplementedError

    def roles_changed(self, now_ns: int) -> None:
        """Some worker straggles now, or leads again."""

    def consider(self, now_ns: int) -> bool:
        """An iteration has ended, or roles have changed: is help still worth it? True if the answer is a new one."""
        return False

    def died(self, rank: int, now_ns: int) -> None:
        """A worker is known to be dead; without takeover nobody can stand in for it."""
        self.fail(now_ns, f"worker {rank} died")

    def alive(self) -> list[int]:
        return [rank for rank in range(self.n) if rank not in self.dead]

    def role(self, rank: int) -> int:
        return int(self.detection.workers[rank].role)

    def fail(self, now_ns: int, reason: str) -> None:
        """End the job with a reason that names who is missing."""
        if self.record.done_ns == 0 and self.record.failed_ns == 0:
            self.failure = reason
            self.say(now_ns, "failure", None, reason)
            tell_job(self.world, self.j, True, now_ns)

    def tell(self, rank: int, what: int, now_ns: int) -> None:
        tell_worker(self.world, self.first + rank, what, now_ns)

    def tick(self, now_ns: int) -> None:
        """A window ends: judge progress, look for the dead, and see that something moves."""
        if self.record.done_ns != 0 or self.record.failed_ns != 0:
            return
        self.plan(now_ns + self.window_ns, self.tick)
        if self.record.started == 0:
            return
        self._look_for_dead(now_ns)
        if self.record.failed_ns != 0:
            return
        self._report()
        changed = end_window(self.detection, self.scratch) if self._has_news() else 0
        if changed:
            self._say_roles(now_ns)
        counted = self.iteration
        iteration = min((int(self.workers[rank].iteration) for rank in self.alive()), default=0)
        while self.iteration < iteration:
            self.iteration += 1
            before = [self.role(rank) for rank in range(self.n)]
            if end_iteration(self.detection):
                changed += 1
                for rank in range(self.n):
                    if before[rank] != LEADING and self.role(rank) == LEADING:
                        self.say(now_ns, "leads again", rank, explain(self.detection, rank))
        if (changed or self.iteration > counted) and self.consider(now_ns):
            changed += 1
        if changed:
            self.roles_changed(now_ns)
        self._see_that_it_moves(now_ns)

    def _report(self) -> None:
        """Write everyone's progress, in chunks, into the detection's records."""
        done = np.minimum(self.workers.work_ns + self.given_ns(), self.compute_ns)
        computed = self.workers.iteration * self.chunks + self.chunks * done // self.compute_ns
        window = np.maximum(np.maximum(1.0, self.senders.window), self.senders.window_max / 2)
        behind = np.maximum(0, self.senders.oldest.max() - self.senders.oldest)
        queued = self.world.links.state.length[self.world.endpoints.host[self.first : self.first + self.n]]
        unsent = np.maximum(0, self.senders.released - self.senders.next)
        # What all who have computed as much could not send, they wait to send: for parts of somebody who has not.
        ahead = (computed >= np.sort(computed)[self.n // 2]) & (self.workers.hold == 0)
        common = unsent[ahead].min() if ahead.any() else 0
        # Nor is it a lag of who is the first to be ready: nobody has sent more.
        first = self.senders.next.max() - self.senders.next
        # Who was told to hold its packets is not slow.
        own = np.where(self.workers.hold != 0, 0, np.maximum(0, np.minimum(unsent - common, first)))
        # In help mode nobody is held back by a window, and a lag shows as it is.
        lag = np.where(self.senders.leaders == 0, np.maximum(behind, queued) / window, 0.0)
        coupled = np.where(
            (unsent > 0) & (self.workers.hold == 0),
            self.detection.options[0].theta_chunks * lag / COUPLED_SHARE,
            0,
        )
        records = self.detection.workers
        records.computed[:] = computed
        records.delivered[:] = computed - own - coupled.astype(np.int64)
        for rank in self.dead:
            records[rank].computed = records[rank].delivered = int(computed.max())

    def given_ns(self) -> Any:
        """What others have taken of each worker's computation: it is not behind by that."""
        return np.zeros(self.n, dtype=np.int64)

    def _has_news(self) -> bool:
        """Is there anything to judge? Most windows of a wait are like the one before, and judging takes its time."""
        delivered = self.detection.workers.delivered.copy()
        self.unchanged = self.unchanged + 1 if np.array_equal(delivered, self.judged) else 0
        self.judged = delivered
        if self.unchanged > self.help.windows:
            return False
        lag = int(delivered.max() - delivered.min())
        return bool(
            lag > self.detection.options[0].theta_chunks or self.detection.workers.behind_windows.any()
        )

    def _say_roles(self, now_ns: int) -> None:
        for rank in range(self.n):
            record = self.detection.workers[rank]
            if record.role != LEADING and record.behind_windows == self.help.windows:
                kind = {COMPUTE_STRAGGLER: "compute straggler", BANDWIDTH_STRAGGLER: "bandwidth straggler"}
                self.say(now_ns, kind[int(record.role)], rank, explain(self.detection, rank))

    def _look_for_dead(self, now_ns: int) -> None:
        for rank in range(self.n):
            if self.workers[rank].dead == 0 or rank in self.dead:
                continue
            since_ns = self.silent_since.setdefault(rank, now_ns)
            if now_ns - since_ns >= self.help.dead_after and self.workers[rank].phase != w.FINISHED:
                self.dead.add(rank)
                self.tell(rank, STOP, now_ns)
                self.say(now_ns, "death", rank, f"silent for {(now_ns - since_ns) * 1e-6:g} ms")
                if not self.alive():
                    self.fail(now_ns, f"no worker is left: {', '.join(map(str, sorted(self.dead)))} died")
                    return
                self.died(rank, now_ns)

    def dead_custodians(self) -> list[int]:
        """Hosts of dedicated custodians that are dead."""
        at = int(self.world.control[w.WORKERS] + self.record.first_custodian)
        at += self.n * int(self.record.on_workers)
        hosts = self.world.endpoints.host[at : at + int(self.record.custodians)]
        return [int(host) for host in hosts if self.world.host_dead[host]]

    def _see_that_it_moves(self, now_ns: int) -> None:
        signature = (
            int(self.workers.work_ns.sum()),
            int(self.workers.iteration.sum()),
            int(self.workers.micro.sum()),
            int(self.senders.oldest.sum()),
            int(self.senders.next.sum()),
            int((self.workers.due_ns < NEVER_NS).sum()) > 0,
        )
        if signature != self.signature or signature[-1]:
            self.signature, self.moved_ns = signature, now_ns
        elif now_ns - self.moved_ns >= self.help.stall:
            low = int(self.senders.oldest[self.alive()].min())
            late = [str(rank) for rank in self.alive() if int(self.senders[rank].next) <= low]
            silent = [str(rank) for rank in range(self.n) if self.workers[rank].dead != 0]
            if gone := self.dead_custodians():
                self.fail(now_ns, f"host {', '.join(map(str, gone))} with its custodian died")
                return
            missing = ", ".join(silent + [rank for rank in late if rank not in silent]) or "a custodian"
            self.fail(now_ns, f"nothing moved for {self.help.stall * 1e-9:g} s; missing: worker {missing}")
