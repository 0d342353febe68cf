"""One job over several switches, in one process: sums, handles, events and figures of all agents together."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.live.agent.agent import ReductionError, ReductionTimeoutError
from paceline.live.spread import SpreadAgent, SpreadHandle, path_name
from tests.live.agents import WAIT_S, Job, job_of, running_switch, tensors_of


@contextmanager
def spread_job(
    workers: int, weights: tuple[int, ...], **more: Any
) -> Iterator[tuple[list[SpreadAgent], list[Job]]]:
    """A job over as many switches as there are weights: one `SpreadAgent` a worker."""
    with ExitStack() as stack:
        jobs = []
        for _ in weights:
            switch = stack.enter_context(running_switch())
            jobs.append(stack.enter_context(job_of(workers, switch, **more)))
        names = [f"s{k}" for k in range(len(weights))]
        yield [SpreadAgent([job.agents[w] for job in jobs], names, weights) for w in range(workers)], jobs


def _reduce(agents: list[SpreadAgent], arrays: list[Any], **options: Any) -> list[Any]:
    results = [array.copy() for array in arrays]
    handles = [agent.submit(x, **options) for agent, x in zip(agents, results, strict=True)]
    for handle in handles:
        handle.wait(WAIT_S)
        assert handle.done()
        assert handle.error() is None
    return results


def test_sums_have_the_bits_of_one_agent_and_each_switch_its_share() -> None:
    large, small = tensors_of(2, 200_000, 1), tensors_of(2, 700, 2)
    with running_switch() as switch, job_of(2, switch) as job:
        wanted = [job.reduce(large), job.reduce(small), job.reduce(large, op="avg")]
    with spread_job(2, (2, 1)) as (agents, jobs):
        found = [_reduce(agents, large), _reduce(agents, small), _reduce(agents, large, op="avg")]
        results = [job.agents[0].status()["counters"]["results"] for job in jobs]
        status = agents[0].status()
    for ours, theirs in zip(found, wanted, strict=True):
        assert [x.tobytes() for x in ours] == [x.tobytes() for x in theirs]
    assert 1.5 < results[0] / results[1] < 2.5
    assert status["path"] == "switch x2"
    assert status["counters"]["results"] == sum(results)
    assert [(one["switch"], one["weight"]) for one in status["switches"]] == [("s0", 2), ("s1", 1)]


def test_callbacks_come_once_when_all_parts_have_ended() -> None:
    tensors = tensors_of(2, 200_000, 3)
    with spread_job(2, (1, 1)) as (agents, _):
        first = agents[0].submit(tensors[0])
        assert isinstance(first, SpreadHandle)
        with pytest.raises(ReductionTimeoutError):
            first.wait(0.05)
        first.wait_here(0.05)
        assert not first.done()
        told: list[bool] = []
        over = threading.Event()

        def ended(handle: SpreadHandle) -> None:
            told.append(handle.done())
            over.set()

        first.add_done_callback(ended)
        agents[1].submit(tensors[1]).wait(WAIT_S)
        first.wait_here(WAIT_S)
        assert over.wait(WAIT_S)
        time.sleep(0.05)
        assert told == [True]


def test_a_part_that_fails_ends_the_whole_at_once() -> None:
    tensors = tensors_of(2, 200_000, 4)
    with spread_job(2, (1, 1)) as (agents, jobs):
        handle = agents[0].submit(tensors[0])
        assert isinstance(handle, SpreadHandle)
        told: list[Any] = []
        handle.add_done_callback(lambda ended: told.append(ended.error()))
        jobs[1].agents[0].close(0.0)
        until = time.monotonic() + 20
        while not told and time.monotonic() < until:
            time.sleep(0.01)
        assert not handle.done(), "the other part still waits for worker 1"
        assert len(told) == 1
        assert isinstance(told[0], ReductionError)
        with pytest.raises(ReductionError):
            agents[0].submit(tensors[0])


def test_a_change_of_path_names_the_switch() -> None:
    with spread_job(2, (1, 1)) as (agents, _):
        heard: list[dict[str, Any]] = []
        agents[0].on_event(heard.append)
        for agent in agents:
            agent.agents[1].without_switch("test")
        until = time.monotonic() + 20
        while not heard and time.monotonic() < until:
            time.sleep(0.01)
        assert heard[0]["path"] == agents[0].path == "switch, custodian"
        assert heard[0]["switch"] == "s1"
        assert heard[0]["reason"].endswith("(s1)")
        assert agents[0].switches_used == 1
        tensors = tensors_of(2, 100_000, 5)
        total = np.sum(tensors, axis=0, dtype=np.float64)
        for result in _reduce(agents, tensors):
            assert np.allclose(result, total, atol=1e-5)
        assert [event["switch"] for event in agents[0].status()["events"]] == ["s1"]


def test_mistakes() -> None:
    with spread_job(1, (1,)) as (agents, jobs):
        with pytest.raises(UserError, match="for each switch"):
            SpreadAgent(jobs[0].agents, ["a", "b"], [1])
        with pytest.raises(UserError, match="2 dimensions"):
            agents[0].submit(np.zeros((2, 2), np.float32))
        with pytest.raises(UserError, match="float64"):
            agents[0].submit(np.zeros(2))


def test_path_names() -> None:
    shown = [path_name(*ways) for ways in ((0, 2), (1, 0), (2, 0), (1, 1), (2, 1))]
    assert shown == ["custodian", "switch", "switch x2", "switch, custodian", "switch x2, custodian"]
