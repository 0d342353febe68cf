"""The coordinators: one for each job whose `straggler` is not `off`, deciding who helps whom, in plain Python.

The event loop stops when a worker asks something or when a coordinator wanted to be woken, `attend` answers, and the
loop goes on. Decisions are rare (a few hundred an iteration), so they need not be compiled; what they decide by is the
core's: `straggler.py` and `ledger.py`. A message to a coordinator takes `straggler.latency`, and so does its answer;
workers ask ahead, so that they seldom wait for it.

Every decision is kept with its reason, up to `EVENTS_MAX` a job.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from paceline.sim import world as w
from paceline.sim.build import Setup
from paceline.sim.leaving_out import LeavingOut
from paceline.sim.queue import set_time
from paceline.sim.standing_in import StandingIn
from paceline.sim.watching import Decision, Watching

__all__ = ["Coordinators", "Decision"]


@dataclass
class _Due:
    """Actions to come, in the order of their times; those of one time in the order in which they were planned."""

    heap: list[tuple[int, int, Callable[[int], None]]]
    count: int = 0

    def plan(self, time_ns: int, action: Callable[[int], None]) -> None:
        self.count += 1
        heapq.heappush(self.heap, (time_ns, self.count, action))


class Coordinators:
    """Those of a run; does nothing if no job wants any."""

    def __init__(self, setup: Setup) -> None:
        self._world = setup.world
        self._due = _Due([])
        self.jobs: dict[int, Watching] = {}
        for j, job in enumerate(setup.jobs):
            if job.straggler == "off":
                continue
            kind = LeavingOut if job.straggler in ("backup", "timeout") else StandingIn
            self.jobs[j] = kind(setup, j, self._due.plan)
            self._due.plan(job.arrival, self.jobs[j].tick)
        self._wake()

    def attend(self, setup: Setup) -> None:
        """Answer what was asked and do what is due, at the time of the event that stopped the loop."""
        # The pool of packets may have been replaced by a larger one.
        self._world = setup.world
        control = self._world.control
        now_ns = int(control[w.NOW_NS])
        asked = [(int(kind), int(worker)) for kind, worker in self._world.mail[: control[w.MAIL]]]
        control[w.MAIL] = 0
        for kind, worker in asked:
            coordinator = self.jobs[int(self._world.workers[worker].job)]
            coordinator.asked(kind, worker - coordinator.first, now_ns)
        while self._due.heap and self._due.heap[0][0] <= now_ns:
            heapq.heappop(self._due.heap)[2](now_ns)
        self._wake()

    def _wake(self) -> None:
        if self._due.heap:
            control = self._world.control
            set_time(self._world.queue, int(control[w.COORDINATOR]), self._due.heap[0][0])

    def decisions(self) -> list[Decision]:
        """All that was decided, in the order of time."""
        everything = [decision for watching in self.jobs.values() for decision in watching.decisions]
        return sorted(everything, key=lambda decision: decision.time_s)
