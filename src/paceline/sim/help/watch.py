"""One job as its coordinator sees it: its workers, who straggles, who is dead, whether anything moves; decisions, kept.

Progress is what detection wants (`core/help/detect.py`): chunks computed and chunks delivered. A pass that was
computed counts for as many chunks as its part of the iteration's computation, so a slow worker shows long before it
should have sent; what others have taken of it counts as well. Delivered is that, less what waits to be sent, as far as
others have sent it: a worker that is ready before them has to wait, and is not slow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from paceline.core.help.detect import (
    LEADING,
    ROLE_NAMES,
    coupled_lag,
    end_iteration,
    end_window,
    explain,
    new_detection,
)
from paceline.core.sender.program import NEVER_NS
from paceline.sim.build.arrays import Setup
from paceline.sim.engine import world as w
from paceline.sim.hosts.compute import STOP, tell_job, tell_worker

EVENTS_MAX = 2000

CallAt = Callable[[int, Callable[[int], None]], None]
"""Has an action called at a time, in nanoseconds."""


@dataclass(frozen=True)
class HelpDecision:
    """What a coordinator decided, when, about which worker and why."""

    time_s: float
    job: str
    kind: str
    worker: int | None
    reason: str


class HelpedJob:
    """What all kinds of help have in common."""

    def __init__(self, setup: Setup, j: int, plan: CallAt) -> None:
        self.world, self.j, self.plan = setup.world, j, plan
        self.spec, self.record = setup.jobs[j], setup.world.jobs[j]
        self.options = setup.scenario.straggler
        self.policy = setup.policy
        self.first, self.n = int(self.record.first_worker), self.spec.workers
        self.workers = setup.world.workers[self.first : self.first + self.n]
        self.senders = setup.world.senders.state[self.first : self.first + self.n]
        self.compute_ns = int(self.record.forward_ns + self.record.backward_ns)
        self.unit_ns = self.compute_ns // self.spec.parts
        """A micro-batch's computation on a worker that is not slow."""
        self.chunks = int(self.record.chunks)
        self.racks = [setup.topology.leaf_of_host[host] for host in setup.topology.worker_hosts[j]]
        self.spans_racks = len(set(self.racks)) > 1
        self.dead: set[int] = set()
        self.decisions: list[HelpDecision] = []
        self.left_unsaid = 0
        self.claims = {"first": 0, "second": 0, "fenced": 0}
        self.failure: str | None = None
        self.left_out = 0

    def say(self, now_ns: int, kind: str, rank: int | None, reason: str) -> None:
        """Keep a decision with its reason."""
        if len(self.decisions) < EVENTS_MAX:
            self.decisions.append(HelpDecision(now_ns * 1e-9, self.spec.name, kind, rank, reason))
        else:
            self.left_unsaid += 1

    def tell(self, rank: int, what: int, now_ns: int) -> None:
        tell_worker(self.world, self.first + rank, what, now_ns)

    def fail(self, now_ns: int, reason: str) -> None:
        """End the job with a reason that names the workers that are missing."""
        if self.is_running():
            self.failure = reason
            self.say(now_ns, "failure", None, reason)
            tell_job(self.world, self.j, True, now_ns)

    def is_running(self) -> bool:
        """Has the job neither ended nor failed?"""
        return bool(self.record.done_ns == 0 and self.record.failed_ns == 0)

    def alive(self) -> list[int]:
        return [rank for rank in range(self.n) if rank not in self.dead]

    def iteration_of(self, rank: int) -> int:
        return int(self.workers[rank].iteration)

    def is_cut(self, rank: int) -> bool:
        """Is this worker's present iteration cut into micro-batches?"""
        return bool(self.workers[rank].cut == self.spec.parts)

    def sends(self, rank: int) -> bool:
        """Has it begun its last backward pass, or ended it?"""
        return bool(self.workers[rank].phase in (w.BACKWARD, w.DRAINING, w.FINISHED))

    def unfinished(self) -> int:
        """The first iteration of which some worker lacks results: until then its ledgers are needed."""
        return min(int(self.senders[rank].oldest) for rank in self.alive()) // self.chunks

    def dead_custodians(self) -> list[int]:
        """Hosts of dedicated custodians that are dead."""
        at = int(self.world.control[w.WORKERS] + self.record.first_custodian)
        at += self.n * int(self.record.on_workers)
        hosts: Any = self.world.endpoints.host[at : at + int(self.record.custodians)]
        return [int(host) for host in hosts if self.world.host_dead[host]]


class Listener(Protocol):
    """What a watch tells its coordinator."""

    def died(self, rank: int, now_ns: int) -> None:
        """A worker is known to be dead."""

    def consider(self, now_ns: int) -> bool:
        """An iteration has ended, or roles have changed: is help still worth it? True if the answer is a new one."""

    def roles_changed(self, now_ns: int) -> None:
        """Some worker straggles now, or leads again."""


class ProgressWatch:
    """The watch over one job; `given_ns` is what others have taken of each worker's computation."""

    def __init__(self, job: HelpedJob, given_ns: Callable[[], Any]) -> None:
        self._job, self._given_ns = job, given_ns
        options = job.options
        self._window_ns = max(1000, round(options.window * job.compute_ns))
        theta = max(1, round(options.theta * job.chunks))
        self.detection = new_detection(job.n, theta, options.windows, options.clean_iterations)
        self.iteration = 0
        """The first iteration that some worker has not ended."""
        self._scratch = np.zeros(job.n, dtype=np.int64)
        self._silent_since: dict[int, int] = {}
        self._judged = np.zeros(job.n, dtype=np.int64)
        self._unchanged = 0
        self._moved_ns = 0
        self._signature: Any = None

    def role(self, rank: int) -> int:
        return int(self.detection.workers[rank].role)

    def roles(self) -> dict[int, int]:
        """Of the living."""
        return {rank: self.role(rank) for rank in self._job.alive()}

    def end_window(self, now_ns: int, again: Callable[[int], None], listener: Listener) -> None:
        """Judge progress, look for the dead, and see that something moves; `again` is planned for the next end."""
        job = self._job
        if not job.is_running():
            return
        job.plan(now_ns + self._window_ns, again)
        if job.record.started == 0:
            return
        self._look_for_dead(now_ns, listener)
        if job.record.failed_ns != 0:
            return
        self._report()
        changed = end_window(self.detection, self._scratch) if self._has_news() else 0
        if changed:
            self._say_stragglers(now_ns)
        counted = self.iteration
        changed += self._end_iterations(now_ns)
        if (changed or self.iteration > counted) and listener.consider(now_ns):
            changed += 1
        if changed:
            listener.roles_changed(now_ns)
        self._check_movement(now_ns)

    def _end_iterations(self, now_ns: int) -> int:
        """How many lead again."""
        changed = 0
        iteration = min((self._job.iteration_of(rank) for rank in self._job.alive()), default=0)
        while self.iteration < iteration:
            self.iteration += 1
            before = [self.role(rank) for rank in range(self._job.n)]
            if end_iteration(self.detection):
                changed += 1
                for rank in range(self._job.n):
                    if before[rank] != LEADING and self.role(rank) == LEADING:
                        self._job.say(now_ns, "leads again", rank, explain(self.detection, rank))
        return changed

    def _report(self) -> None:
        """Write everyone's progress, in chunks, into the detection's records."""
        job = self._job
        workers, senders = job.workers, job.senders
        done = np.minimum(workers.work_ns + self._given_ns(), job.compute_ns)
        computed = workers.iteration * job.chunks + job.chunks * done // job.compute_ns
        window = np.maximum(np.maximum(1.0, senders.window), senders.window_max / 2)
        behind = np.maximum(0, senders.oldest.max() - senders.oldest)
        queued = job.world.links.state.length[job.world.endpoints.host[job.first : job.first + job.n]]
        unsent = np.maximum(0, senders.released - senders.next)
        # What none of the workers ahead could send waits for a worker behind, and is no lag of theirs.
        ahead = (computed >= np.sort(computed)[job.n // 2]) & (workers.hold == 0)
        common = unsent[ahead].min() if ahead.any() else 0
        # Nor is it a lag of the first worker to be ready: no worker has sent more.
        first = senders.next.max() - senders.next
        # A worker that was told to hold its packets is not slow.
        own = np.where(workers.hold != 0, 0, np.maximum(0, np.minimum(unsent - common, first)))
        records = self.detection.workers
        records.computed[:] = computed
        records.delivered[:] = computed - own
        theta = self.detection.options[0].theta_chunks
        lag = np.maximum(behind, queued)
        for rank in range(job.n):
            # In help mode no worker is held back by a window, and a lag shows as it is.
            if unsent[rank] > 0 and workers[rank].hold == 0 and senders[rank].leaders == 0:
                records[rank].delivered -= coupled_lag(theta, int(lag[rank]), float(window[rank]))
        for rank in job.dead:
            records[rank].computed = records[rank].delivered = int(computed.max())

    def _has_news(self) -> bool:
        """Is there anything to judge? Most windows of a wait are like the one before, and judging takes its time."""
        delivered = self.detection.workers.delivered.copy()
        self._unchanged = self._unchanged + 1 if np.array_equal(delivered, self._judged) else 0
        self._judged = delivered
        if self._unchanged > self._job.options.windows:
            return False
        lag = int(delivered.max() - delivered.min())
        return bool(
            lag > self.detection.options[0].theta_chunks or self.detection.workers.behind_windows.any()
        )

    def _say_stragglers(self, now_ns: int) -> None:
        for rank in range(self._job.n):
            record = self.detection.workers[rank]
            if record.role != LEADING and record.behind_windows == self._job.options.windows:
                self._job.say(now_ns, ROLE_NAMES[int(record.role)], rank, explain(self.detection, rank))

    def _look_for_dead(self, now_ns: int, listener: Listener) -> None:
        job = self._job
        for rank in range(job.n):
            if job.workers[rank].dead == 0 or rank in job.dead:
                continue
            since_ns = self._silent_since.setdefault(rank, now_ns)
            if now_ns - since_ns >= job.options.dead_after and job.workers[rank].phase != w.FINISHED:
                job.dead.add(rank)
                job.tell(rank, STOP, now_ns)
                job.say(now_ns, "death", rank, f"silent for {(now_ns - since_ns) * 1e-6:g} ms")
                if not job.alive():
                    job.fail(now_ns, f"no worker is left: {', '.join(map(str, sorted(job.dead)))} died")
                    return
                listener.died(rank, now_ns)

    def _check_movement(self, now_ns: int) -> None:
        job = self._job
        workers, senders = job.workers, job.senders
        signature = (
            int(workers.work_ns.sum()),
            int(workers.iteration.sum()),
            int(workers.micro.sum()),
            int(senders.oldest.sum()),
            int(senders.next.sum()),
            int((workers.due_ns < NEVER_NS).sum()) > 0,
        )
        if signature != self._signature or signature[-1]:
            self._signature, self._moved_ns = signature, now_ns
        elif now_ns - self._moved_ns >= job.options.stall:
            low = int(senders.oldest[job.alive()].min())
            late = [str(rank) for rank in job.alive() if int(senders[rank].next) <= low]
            silent = [str(rank) for rank in range(job.n) if workers[rank].dead != 0]
            if gone := job.dead_custodians():
                job.fail(now_ns, f"host {', '.join(map(str, gone))} with its custodian died")
                return
            missing = ", ".join(silent + [rank for rank in late if rank not in silent]) or "a custodian"
            job.fail(now_ns, f"nothing moved for {job.options.stall * 1e-9:g} s; missing: worker {missing}")
