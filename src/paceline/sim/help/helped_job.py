"""One job as its coordinator sees it: workers and senders, what can be told to them, and the log of decisions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.sim.build.arrays import Setup
from paceline.sim.engine import world as w
from paceline.sim.help.orders import tell_job, tell_worker

EVENTS_MAX = 2000

Plan = Callable[[int, Callable[[int], None]], None]
"""Have an action called at a time."""


@dataclass(frozen=True)
class Decision:
    """What a coordinator decided, when, about whom and why."""

    time_s: float
    job: str
    kind: str
    worker: int | None
    reason: str


class HelpedJob:
    """What all kinds of help have in common."""

    def __init__(self, setup: Setup, j: int, plan: Plan) -> None:
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
        self.dead: set[int] = set()
        self.decisions: list[Decision] = []
        self.left_unsaid = 0
        self.claims = {"first": 0, "second": 0, "fenced": 0}
        self.failure: str | None = None
        self.left_out = 0

    def say(self, now_ns: int, kind: str, rank: int | None, reason: str) -> None:
        """Keep a decision with its reason."""
        if len(self.decisions) < EVENTS_MAX:
            self.decisions.append(Decision(now_ns * 1e-9, self.spec.name, kind, rank, reason))
        else:
            self.left_unsaid += 1

    def tell(self, rank: int, what: int, now_ns: int) -> None:
        tell_worker(self.world, self.first + rank, what, now_ns)

    def fail(self, now_ns: int, reason: str) -> None:
        """End the job with a reason that names who is missing."""
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
        """The first iteration of which somebody lacks results: until then its ledgers are needed."""
        return min(int(self.senders[rank].oldest) for rank in self.alive()) // self.chunks

    def dead_custodians(self) -> list[int]:
        """Hosts of dedicated custodians that are dead."""
        at = int(self.world.control[w.WORKERS] + self.record.first_custodian)
        at += self.n * int(self.record.on_workers)
        hosts: Any = self.world.endpoints.host[at : at + int(self.record.custodians)]
        return [int(host) for host in hosts if self.world.host_dead[host]]
