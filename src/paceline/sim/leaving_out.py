"""Two ways to be quick without the slowest, for comparison: the sums are INEXACT, and the job is marked so.

`backup`: an iteration does without the slowest k of its workers (backup workers). `timeout`: who has not begun to
send so long after the first one is left out (after Trio-ML, whose switch sends partial sums on when a timer runs out;
there block by block, here for the whole iteration, which is kinder to it).

Who is left out stops computing and contributes zeros: on the wire it is as if the switch filled them in.
"""

import numpy as np

from paceline.sim import world as w
from paceline.sim.build import Setup
from paceline.sim.orders import LAST, NOT_LAST, SEND
from paceline.sim.watching import Plan, Watching


class LeavingOut(Watching):
    """The coordinator of a job with `backup` or `timeout`."""

    def __init__(self, setup: Setup, j: int, plan: Plan) -> None:
        super().__init__(setup, j, plan)
        self.record.helping = 1
        self.present: set[int] = set()
        self.running = -1
        if self.job.straggler == "backup" and self.help.backup >= self.n:
            self.help = self.help.model_copy(update={"backup": self.n - 1})

    def asked(self, kind: int, rank: int, now_ns: int) -> None:
        worker = self.workers[rank]
        if int(worker.iteration) > self.running:
            self.running = int(worker.iteration)
            self.present = set()
            self.world.left_out[self.j, self.running & 1] = np.uint64(0)
        if kind == w.WHOLE_DONE:
            self.tell(rank, 0, now_ns)
        elif worker.micro + 1 < self.job.parts:
            self.tell(rank, NOT_LAST, now_ns)
        else:
            worker.helped = 0
            self.present.add(rank)
            self.tell(rank, LAST, now_ns)
            self._consider(now_ns)

    def _consider(self, now_ns: int) -> None:
        iteration = self.running
        if self.job.straggler == "backup":
            if len(self.present) == self.n - self.help.backup:
                self.plan(now_ns + self.help.latency, lambda then_ns: self._leave_out(iteration, then_ns))
        elif len(self.present) == 1:
            self.plan(now_ns + self.help.timeout, lambda then_ns: self._leave_out(iteration, then_ns))

    def _leave_out(self, iteration: int, now_ns: int) -> None:
        if iteration != self.running or self.record.failed_ns != 0:
            return
        for rank in range(self.n):
            worker = self.workers[rank]
            if rank in self.present or worker.dead != 0:
                continue
            if int(worker.iteration) != iteration or not self._has_all_results(rank):
                self.plan(now_ns + self.help.latency, lambda then_ns: self._leave_out(iteration, then_ns))
                continue
            self.present.add(rank)
            self.left_out += 1
            worker.helped, worker.carries = 1, np.uint64(0)
            self.world.left_out[self.j, iteration & 1] |= np.uint64(1 << rank)
            self.say(now_ns, "left out", rank, f"not ready in iteration {iteration}: the sums are without it")
            self.tell(rank, SEND, now_ns)

    def _has_all_results(self, rank: int) -> bool:
        """Nothing of the iteration before is missing: then this one's gradients can be sent."""
        worker = self.workers[rank]
        if worker.phase == w.BLOCKED:
            return False
        return worker.phase != w.FORWARD or not (self.world.pending[self.first + rank] > 0).any()
