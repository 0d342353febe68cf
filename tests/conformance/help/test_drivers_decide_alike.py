"""One policy, two drivers: a recorded sequence of events gets the same decisions from the simulator and from PyTorch.

Workers that are done ask, end what they were given, and ask again; one or two of them are slow. The sequence is
recorded while the keeper is driven by messages in virtual time. Then the simulator's coordinator is given the same
events, and every decision is compared: owner, micro-batch, claim number, reason; and whether what has ended counts.
"""

import heapq
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from paceline.core.help.detect import COMPUTE_STRAGGLER
from paceline.core.help.ledger import Claim
from paceline.core.help.takeover import Paces
from paceline.core.priority import priority
from paceline.sim.build.arrays import build
from paceline.sim.help.coordinator import Coordinator
from paceline.torch.takeover.keeper import Keeper
from tests.sim.help.scenes import helped

WORKERS = 5
MICRO_BATCHES = 8
UNIT_NS = 4_000
"""A micro-batch of the simulated job: 32 us in 8 of them."""
LEASE_NS = 64 * UNIT_NS

Event = tuple[str, int, int, Claim | None]
"""Kind, worker, time, and the claim that has ended."""


class InTorch:
    """The keeper, spoken to by messages; leaders have computed what is their own."""

    def __init__(self, slow: tuple[int, ...]) -> None:
        self._keeper = Keeper(WORKERS, LEASE_NS, Paces(typical_ns=UNIT_NS))
        self._request = 0
        for rank in range(WORKERS):
            self._keeper.join(rank)
            count = MICRO_BATCHES if rank in slow else 1
            self._keeper.handle(rank, {"kind": "begin", "step": 1, "micro_batches": list(range(count))}, 0)
        for rank in slow:
            self._keeper.paces.guess(rank, 2.0 * UNIT_NS)
        for rank in set(range(WORKERS)) - set(slow):
            claim, _ = self.claim(rank, 0)
            assert claim is not None
            assert claim[:2] == (rank, 0)
            self.finish(rank, claim, None, 0)

    def _ask(self, rank: int, now_ns: int, **message: Any) -> dict[str, Any]:
        self._request += 1
        out = self._keeper.handle(rank, {"step": 1, "id": self._request, **message}, now_ns)
        answers = [answer for to, answer in out if to == rank and answer.get("id") == self._request]
        return answers[0] if answers else {}

    def claim(self, rank: int, now_ns: int) -> tuple[Claim | None, str]:
        answer = self._ask(rank, now_ns, kind="claim", ahead=False)
        if "claim" not in answer:
            # It need not be kept waiting: it asks again after the next event.
            self._keeper._peers[rank].asks = None
            return None, ""
        owner, m, number = answer["claim"]
        return (owner, m, number), answer["reason"]

    def finish(self, rank: int, claim: Claim, took_ns: int | None, now_ns: int) -> bool:
        return bool(self._ask(rank, now_ns, kind="finish", claim=list(claim), took_ns=took_ns)["kept"])


class InSimulator:
    """A coordinator of the simulator whose leaders have computed what is their own."""

    def __init__(self, slow: tuple[int, ...]) -> None:
        setup = build(
            helped("takeover", workers=WORKERS, micro_batches=MICRO_BATCHES), "esa", 1, False, priority
        )
        coordinator = Coordinator(setup, 0, lambda time_ns, action: None)
        self._claims, self._job = coordinator.claims, coordinator.job
        assert self._job.unit_ns == UNIT_NS
        self._job.workers.cut = MICRO_BATCHES
        self._job.workers.micro = MICRO_BATCHES
        self._claims.ledgers.begin(0)
        for rank in slow:
            self._job.workers[rank].micro = 0
            coordinator.watch.detection.workers[rank].role = COMPUTE_STRAGGLER

    def claim(self, rank: int, now_ns: int) -> tuple[Claim | None, str]:
        claims, plan = self._claims, self._claims.plan_of(rank)
        before = len(self._job.decisions)
        if rank in claims.owners() and rank not in claims.ledgers.open:
            assert claims.open_ledger(rank, now_ns)
            return plan.held, ""
        own = rank in claims.ledgers.open
        got = claims.take_own(rank, now_ns) if own and claims.ledgers.free(rank) else None
        if got is None and not (own and claims.ledgers.free(rank)):
            got = next(iter(claims.choose(rank, now_ns, now_ns)), None)
            if got is not None:
                claims.policy.start(got, now_ns)
        reasons = [decision.reason.split(": ", 1)[1] for decision in self._job.decisions[before:]]
        return got, reasons[0] if reasons else ""

    def finish(self, rank: int, claim: Claim, took_ns: int | None, now_ns: int) -> bool:
        return self._claims.policy.finish(rank, claim, took_ns)[0]


@dataclass
class Recording:
    """Events in the order of time, and what a driver decided."""

    events: list[Event] = field(default_factory=list)
    decisions: list[Any] = field(default_factory=list)


def record(slow: tuple[int, ...], factors: dict[int, float], seed: int) -> Recording:
    """Every worker asks, computes for its time, and asks again, until nobody gets anything."""
    rnd = random.Random(seed)
    driver, made = InTorch(slow), Recording()
    due: list[tuple[int, int, int, Claim | None]] = []
    for order, rank in enumerate([*slow, *(set(range(WORKERS)) - set(slow))]):
        heapq.heappush(due, (0 if rank in slow else UNIT_NS, order, rank, None))
    idle: set[int] = set()
    while due:
        now_ns, _, rank, ended = heapq.heappop(due)
        if ended is not None:
            made.events.append(("finish", rank, now_ns, ended))
            made.decisions.append(driver.finish(rank, ended, _took_ns(rank, slow, factors), now_ns))
        for asker in (rank, *sorted(idle)):
            made.events.append(("claim", asker, now_ns, None))
            decision = driver.claim(asker, now_ns)
            made.decisions.append(decision)
            idle.discard(asker)
            if decision[0] is None:
                idle.add(asker)
            else:
                jitter = rnd.randrange(UNIT_NS // 10)
                end_ns = now_ns + round(UNIT_NS * factors.get(asker, 1.0)) + jitter
                heapq.heappush(due, (end_ns, len(made.events) + WORKERS, asker, decision[0]))
    return made


def _took_ns(rank: int, slow: tuple[int, ...], factors: dict[int, float]) -> int | None:
    return round(UNIT_NS * factors[rank]) if rank in slow else None


@pytest.mark.parametrize(
    ("slow", "factors"),
    [
        ((2,), {2: 1.5}),
        ((2,), {2: 2.5}),
        ((2,), {2: 6.0}),
        ((1, 3), {1: 2.0, 3: 4.0}),
    ],
)
def test_every_decision_is_the_same(slow: tuple[int, ...], factors: dict[int, float]) -> None:
    for seed in range(5):
        made = record(slow, factors, seed)
        granted = [got for kind, got in zip(made.events, made.decisions, strict=True) if kind[0] == "claim"]
        assert sum(claim is not None for claim, _ in granted) >= MICRO_BATCHES * len(slow)
        assert any(reason for _, reason in granted)
        driver = InSimulator(slow)
        for at, (kind, rank, now_ns, ended) in enumerate(made.events):
            if kind == "claim":
                decided: Any = driver.claim(rank, now_ns)
            else:
                assert ended is not None
                decided = driver.finish(rank, ended, _took_ns(rank, slow, factors), now_ns)
            assert decided == made.decisions[at], f"seed {seed}, event {at}: {made.events[at]}"
