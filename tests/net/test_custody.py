"""A worker whose link is slow, live: it is noticed as such, the others run ahead, and every sum is exact."""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from paceline.core import wire
from paceline.emulation.namespaces import Star, limit_worker, star
from tests.live.agents import WAIT_S, Job, job_of, switch_in

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

ELEMENTS = 352
CHUNK_BYTES = wire.HEADER_BYTES + 4 * ELEMENTS
CHUNKS = 500
WINDOW = 64
BUDGET = 1000
FAST_BPS, SLOW_BPS = 200e6, 8e6
CUSTODY: dict[str, Any] = {
    "straggler": "custody",
    "straggler_theta_bytes": 100 * CHUNK_BYTES,
    "window_bytes": WINDOW * CHUNK_BYTES,
    "budget_bytes": BUDGET * CHUNK_BYTES,
    "silence_s": 60.0,
}


class Reduction:
    """The same tensor of every worker, under way; checked when it has ended."""

    def __init__(self, job: Job, chunks: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        shape = (len(job.agents), chunks * ELEMENTS)
        self.arrays = rng.integers(-(1 << 31), 1 << 31, shape, dtype=np.int32)
        self.expected = self.arrays.astype(np.int64).sum(axis=0).astype(np.int32)
        self.handles = [agent.submit(row) for agent, row in zip(job.agents, self.arrays, strict=True)]

    def finish(self) -> None:
        for handle in self.handles:
            handle.wait(WAIT_S)
        assert all(row.tobytes() == self.expected.tobytes() for row in self.arrays)


def _until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def _events(job: Job, kind: str) -> list[dict[str, Any]]:
    return [event for event in job.agents[0].status()["events"] if event["event"] == kind]


def _ahead(job: Job, worker: int) -> int:
    """How many chunks a worker has sent that have no result."""
    sender = job.agents[worker]._loop.senders.state[0]
    oldest = int(sender.oldest)
    return int(sender.next) - oldest


@pytest.fixture(params=[3, 2], ids=["three workers", "two workers"])
def links(request: pytest.FixtureRequest) -> Iterator[Star]:
    with star(request.param, FAST_BPS) as made:
        yield made


@pytest.mark.parametrize("policy", ["esa", "atp"])
def test_a_slow_link_is_noticed_and_the_others_run_ahead(links: Star, policy: str) -> None:
    workers = len(links.workers)
    slow = workers - 1
    limit_worker(links, slow, SLOW_BPS)
    with switch_in(links, policy=policy) as switch, job_of(workers, switch, star=links, **CUSTODY) as job:
        reductions = [Reduction(job, CHUNKS, seed) for seed in range(6)]
        _until(lambda: bool(_events(job, "bandwidth straggler")), "the slow link is noticed")
        furthest = 0

        def far_ahead() -> bool:
            nonlocal furthest
            furthest = max(furthest, _ahead(job, 0))
            return furthest >= BUDGET

        _until(far_ahead, "the leaders run ahead as far as their budget")
        assert job.agents[0].status()["straggler"]["stragglers"] == [slow]
        for reduction in reductions:
            reduction.finish()
        assert furthest == BUDGET
        assert [event["worker"] for event in _events(job, "bandwidth straggler")] == [slow]
        assert _events(job, "compute straggler") == []
        limit_worker(links, slow, FAST_BPS)
        _lead_again(job)


def _lead_again(job: Job) -> None:
    """Iterations so small that nobody can be behind in them."""
    end = time.monotonic() + 120
    while any(agent.status()["straggler"]["helping"] for agent in job.agents):
        assert time.monotonic() < end, "everyone leads again"
        Reduction(job, 20, 100).finish()
        time.sleep(0.02)
    assert _events(job, "leads again")
