"""The coordinators, in plain Python: one for each job whose `straggler` is not `off`; it decides who helps whom.

The event loop stops when a worker asks something or when a coordinator wanted to be woken, `attend` answers, and the
loop goes on. Decisions are rare (a few hundred an iteration), so they need not be compiled; what they decide by is the
core's (`core/help`). A message to a coordinator takes `straggler.latency`, and so does its answer;
workers ask ahead, so that they seldom wait for it.

Every decision is kept with its reason, up to `EVENTS_MAX` a job.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.core.help.detect import COMPUTE_STRAGGLER
from paceline.core.help.ledger import Ledgers
from paceline.core.help.takeover import Paces, TakeoverPolicy
from paceline.sim.build.arrays import Setup
from paceline.sim.engine import world as w
from paceline.sim.engine.event_queue import set_time
from paceline.sim.help.claims import Claims
from paceline.sim.help.leave_out import LeaveOut
from paceline.sim.help.micro_batching import MicroBatching
from paceline.sim.help.packets import Epochs, PacketContents, Racks
from paceline.sim.help.passes import Passes
from paceline.sim.help.recovery import Recovery
from paceline.sim.help.watch import CallAt, HelpDecision, HelpedJob, ProgressWatch


class Coordinator:
    """That of a job with `custody`, `takeover` or `both`."""

    def __init__(self, setup: Setup, j: int, plan: CallAt) -> None:
        self.job = job = HelpedJob(setup, j, plan)
        self._ledgers = Ledgers(round(job.options.lease * job.unit_ns))
        self._policy = TakeoverPolicy(self._ledgers, Paces(typical_ns=job.unit_ns))
        self.watch = ProgressWatch(job, self._given_ns)
        self._cutting = MicroBatching(setup, job, self.watch, self._ledgers)
        racks = Racks(job.racks)
        self._epochs = Epochs(setup, job, self.watch, racks)
        self.claims = claims = Claims(job, self.watch, self._cutting, self._policy)
        contents = PacketContents(job, claims, racks)
        self._passes = Passes(job, claims, contents, self._cutting)
        self._recovery = Recovery(job, self._cutting, racks, self._epochs, claims, contents, self._passes)

    def asked(self, kind: int, rank: int, now_ns: int) -> None:
        """A worker has ended a pass and wants to know what comes next."""
        self._passes.asked(kind, rank, now_ns)

    def tick(self, now_ns: int) -> None:
        """A window ends."""
        self.watch.end_window(now_ns, self.tick, self)
        self._cutting.end_window(now_ns)
        self._passes.end_window(now_ns)
        self._recovery.end_window(now_ns)

    def died(self, rank: int, now_ns: int) -> None:
        self._recovery.died(rank, now_ns)

    def consider(self, now_ns: int) -> bool:
        return self._cutting.consider(now_ns)

    def roles_changed(self, now_ns: int) -> None:
        for rank, role in self.watch.roles().items():
            if role != COMPUTE_STRAGGLER:
                self._policy.paces.forget(rank)
        self._epochs.roles_changed(now_ns)
        self._passes.roles_changed(now_ns)

    def _given_ns(self) -> Any:
        """What others have taken of each worker's computation: it is not behind by that."""
        job = self.job
        given = [self._ledgers.given_in(rank, job.iteration_of(rank)) for rank in range(job.n)]
        return np.array(given, dtype=np.int64) * job.unit_ns


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
        self.jobs: dict[int, Coordinator | LeaveOut] = {}
        for j, job in enumerate(setup.jobs):
            if job.straggler == "off":
                continue
            leaves_out = job.straggler in ("backup", "timeout")
            self.jobs[j] = (LeaveOut if leaves_out else Coordinator)(setup, j, self._due.plan)
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
            coordinator.asked(kind, worker - coordinator.job.first, now_ns)
        while self._due.heap and self._due.heap[0][0] <= now_ns:
            heapq.heappop(self._due.heap)[2](now_ns)
        self._wake()

    def _wake(self) -> None:
        if self._due.heap:
            control = self._world.control
            set_time(self._world.queue, int(control[w.COORDINATOR]), self._due.heap[0][0])

    def decisions(self) -> list[HelpDecision]:
        """All that was decided, in the order of time."""
        everything = [
            decision for coordinator in self.jobs.values() for decision in coordinator.job.decisions
        ]
        return sorted(everything, key=lambda decision: decision.time_s)
