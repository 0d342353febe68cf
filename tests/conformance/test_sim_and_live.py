"""One scenario, twice: in the simulator, and by agents and a switch over loopback. Results and end state are the same.

Without faults the core makes the same decisions in virtual and in real time: each aggregator ends with the same chunk
and the same sum in it, and the switch has counted the same completions. (Times differ, of course.) The simulator
carries the first few integers of each chunk; these are compared.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from paceline.core.bits import mix
from paceline.core.priority import priority
from paceline.core.switch.memory import ANSWERED, EMPTY
from paceline.core.switch.program import COMPLETIONS, FALLBACKS, FLUSHES, PREEMPTIONS
from paceline.core.wire import HEADER_BYTES
from paceline.sim.build.arrays import CHECK_LANES, build
from paceline.sim.engine.loop import ENDED, run
from paceline.sim.hosts.values import contribution
from paceline.sim.scenario import Scenario
from tests.live.agents import Job, RunningSwitch, job_of, running_switch

WORKERS = 3
ELEMENTS = 96
WINDOW = 32
SLOTS = 64
CHUNKS = 3 * WINDOW + 5
_PATIENT_NS = 60_000_000_000


def _simulated(policy: str) -> Any:
    """The world at the end of a simulated run."""
    scenario = Scenario.model_validate(
        {
            "network": {"elements": ELEMENTS},
            "switch": {"slots": SLOTS},
            "transport": {"window": WINDOW if policy == "switchml" else WINDOW // 2},
            "job": [{"workers": WORKERS, "iterations": 1, "layers": 1, "size": CHUNKS * ELEMENTS * 4}],
        }
    )
    setup = build(scenario, policy, 1, True, priority)
    assert run(setup.world, 1 << 40, setup.room, scenario.horizon) == ENDED
    assert setup.world.jobs[0].wrong == 0
    return setup.world


@contextmanager
def _live(policy: str) -> Iterator[tuple[RunningSwitch, Job, list[Any]]]:
    """A switch, a job and its results, with the job still admitted."""
    tensors = [
        np.array(
            [
                contribution(0, worker, chunk, lane) if lane < CHECK_LANES else lane
                for chunk in range(CHUNKS)
                for lane in range(ELEMENTS)
            ],
            dtype=np.int32,
        )
        for worker in range(WORKERS)
    ]
    row_bytes = 56 + 4 * ELEMENTS
    options: dict[str, Any] = {"policy": policy, "elements": ELEMENTS, "memory_bytes": SLOTS * 2 * row_bytes}
    with running_switch(**options) as switch:
        # Places in the span, which is four windows, decide which slot a chunk uses.
        window_bytes = WINDOW // 2 * (HEADER_BYTES + 4 * ELEMENTS)
        admission = {"slots_max": WINDOW} if policy == "switchml" else {}
        with job_of(WORKERS, switch, admission=admission, window_bytes=window_bytes) as job:
            for agent in job.agents:
                # A loaded machine must not look like a lossy network here.
                sender = agent._loop.senders.state[0]
                sender.rto_ns = sender.rto_min_ns = sender.rto_max_ns = _PATIENT_NS
                sender.reorder_chunks = CHUNKS
            yield switch, job, job.reduce(tensors)


def _slot_of(sender: Any, chunk: int, job: int, slots: int) -> int:
    """Senders that mind memory go along it in a row; with others a place in the span has its aggregator."""
    place = chunk if sender.minds_memory != 0 else chunk % sender.span
    return int((mix(job + 1, 0) + place) % slots)


@pytest.mark.parametrize("policy", ["esa-plus", "never", "esa", "atp", "always-preempt"])
def test_a_stream_ends_alike(policy: str) -> None:
    simulated = _simulated(policy)
    with _live(policy) as (switch, job, results):
        live = switch.switch.threads[0].shard.switch
        number = job.agents[0].config.job
        span = int(job.agents[0]._loop.senders.state[0].span)
        slots = int(live.config[0].slots)
        _same_results(simulated, results)
        # What counts apart from time: sums completed, nothing evicted, flushed or left over.
        counted = [simulated.switch.counters[0, 0], live.counters[0, number]]
        for counter in (COMPLETIONS, PREEMPTIONS, FLUSHES, FALLBACKS):
            assert counted[0][counter] == counted[1][counter]
        assert counted[1][COMPLETIONS] == CHUNKS
        assert live.jobs[0, number].used == simulated.switch.jobs[0, 0].used == 0
        assert simulated.senders.state[0].span == span
        # The last chunks of a span are still to be seen, each in its own aggregator.
        for chunk in range(CHUNKS - span, CHUNKS):
            theirs = _slot_of(simulated.senders.state[0], chunk, 0, SLOTS)
            ours = _slot_of(job.agents[0]._loop.senders.state[0], chunk, number, slots)
            one, other = simulated.switch.memory.slots[theirs], live.memory.slots[ours]
            assert one.state == other.state == EMPTY
            assert one.chunk == chunk
            assert (one.chunk, one.mask, one.job) == (other.chunk, other.mask, other.job)
            sums = simulated.switch.memory.values[theirs]
            assert (sums == live.memory.values[ours, :CHECK_LANES]).all()


def test_a_pool_ends_alike() -> None:
    simulated = _simulated("switchml")
    with _live("switchml") as (switch, job, results):
        live = switch.switch.threads[0].shard.switch
        number = job.agents[0].config.job
        _same_results(simulated, results)
        counted = [simulated.switch.counters[0, 0], live.counters[0, number]]
        assert counted[0][COMPLETIONS] == counted[1][COMPLETIONS] == CHUNKS
        pool = int(simulated.senders.state[0].span)
        assert pool == int(job.agents[0]._loop.senders.state[0].span) == WINDOW
        first = 2 * int(live.jobs[0, number].pool_base)
        for place in range(2 * pool):
            one, other = simulated.switch.memory.slots[place], live.memory.slots[first + place]
            # The simulated job has left, and its slots are marked free; what they held is still there.
            assert other.state == ANSWERED
            assert one.chunk == other.chunk
            sums = simulated.switch.memory.values[place]
            assert (sums == live.memory.values[first + place, :CHECK_LANES]).all()


def _same_results(simulated: Any, results: list[Any]) -> None:
    held = simulated.held.shape[1]
    kept = min(CHUNKS, held)
    for worker, result in enumerate(results):
        rows = result.reshape(CHUNKS, ELEMENTS)[:, :CHECK_LANES]
        for chunk in range(CHUNKS - kept, CHUNKS):
            assert (simulated.held[worker, chunk % held] == rows[chunk]).all()
