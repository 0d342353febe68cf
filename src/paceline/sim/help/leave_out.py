"""Two ways to be quick without the slowest, for comparison: the sums are INEXACT, and the job is marked so.

`backup`: an iteration does without the slowest k of its workers (backup workers). `timeout`: a worker that has not
begun to send a given time after the first one is left out (after Trio-ML, whose switch sends partial sums on when a
timer runs out; there block by block, here for the whole iteration, which is kinder to it).

A worker that is left out stops computing and contributes zeros, as if the switch filled them in.
"""

from typing import Any

import numpy as np

from paceline.sim.build.arrays import Setup
from paceline.sim.engine import world as w
from paceline.sim.help.watch import CallAt, HelpedJob, ProgressWatch
from paceline.sim.hosts.compute import LAST, NOT_LAST, SEND


class LeaveOut:
    """The coordinator of a job with `backup` or `timeout`."""

    def __init__(self, setup: Setup, j: int, plan: CallAt) -> None:
        self.job = self._job = HelpedJob(setup, j, plan)
        self._watch = ProgressWatch(self._job, self._nothing_given)
        self._job.record.helping = 1
        self._present: set[int] = set()
        self._running = -1
        self._backup = min(self._job.options.backup, self._job.n - 1)

    def tick(self, now_ns: int) -> None:
        self._watch.end_window(now_ns, self.tick, self)

    def died(self, rank: int, now_ns: int) -> None:
        """Without takeover no worker can stand in for it."""
        self._job.fail(now_ns, f"worker {rank} died")

    def consider(self, now_ns: int) -> bool:
        """Nothing to consider: there is no help here."""
        return False

    def roles_changed(self, now_ns: int) -> None:
        """Roles mean nothing here."""

    def _nothing_given(self) -> Any:
        return np.zeros(self._job.n, dtype=np.int64)

    def asked(self, kind: int, rank: int, now_ns: int) -> None:
        worker = self._job.workers[rank]
        if int(worker.iteration) > self._running:
            self._running = int(worker.iteration)
            self._present = set()
            self._job.world.left_out[self._job.j, self._running & 1] = np.uint64(0)
        if kind == w.MICRO_BATCH_DONE:
            self._job.tell(rank, 0, now_ns)
        elif worker.micro + 1 < self._job.spec.parts:
            self._job.tell(rank, NOT_LAST, now_ns)
        else:
            worker.helped = 0
            self._present.add(rank)
            self._job.tell(rank, LAST, now_ns)
            self._consider(now_ns)

    def _consider(self, now_ns: int) -> None:
        iteration = self._running
        if self._job.spec.straggler == "backup":
            if len(self._present) == self._job.n - self._backup:
                self._job.plan(
                    now_ns + self._job.options.latency, lambda then_ns: self._leave_out(iteration, then_ns)
                )
        elif len(self._present) == 1:
            self._job.plan(
                now_ns + self._job.options.timeout, lambda then_ns: self._leave_out(iteration, then_ns)
            )

    def _leave_out(self, iteration: int, now_ns: int) -> None:
        if iteration != self._running or self._job.record.failed_ns != 0:
            return
        for rank in range(self._job.n):
            worker = self._job.workers[rank]
            if rank in self._present or worker.dead != 0:
                continue
            if int(worker.iteration) != iteration or not self._has_all_results(rank):
                self._job.plan(
                    now_ns + self._job.options.latency, lambda then_ns: self._leave_out(iteration, then_ns)
                )
                continue
            self._present.add(rank)
            self._job.left_out += 1
            worker.helped, worker.carries = 1, np.uint64(0)
            self._job.world.left_out[self._job.j, iteration & 1] |= np.uint64(1 << rank)
            self._job.say(
                now_ns, "left out", rank, f"not ready in iteration {iteration}: the sums are without it"
            )
            self._job.tell(rank, SEND, now_ns)

    def _has_all_results(self, rank: int) -> bool:
        """Nothing of the iteration before is missing: then this one's gradients can be sent."""
        worker = self._job.workers[rank]
        if worker.phase == w.BLOCKED:
            return False
        return worker.phase != w.FORWARD or not (self._job.world.pending[self._job.first + rank] > 0).any()
