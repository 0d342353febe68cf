"""Agents of one job over loopback, by a real switch and without one: right sums, whatever happens on the way."""

import threading
import time
from typing import Any

import numpy as np
import pytest

from paceline.core.bits import threshold_of
from paceline.core.numbers import blocks as tensors
from paceline.errors import UserError
from paceline.live.agent.agent import Agent, Handle, ReductionError, ReductionTimeoutError, open_socket
from paceline.live.agent.config import AgentConfig
from paceline.live.switch.daemon import LIVE_POLICIES
from tests.core.numbers.reduction import reduce_all, to_bfloat16
from tests.live.agents import KEY, WAIT_S, Job, job_of, running_switch, tensors_of

WORKERS = 3


def _check(job: Job, numbers: int, seed: int, workers: int = WORKERS) -> bytes:
    """Reduce a tensor; every worker has the same bytes, within the stated bound of the true sum."""
    arrays = tensors_of(workers, numbers, seed)
    results = job.reduce(arrays)
    true = np.sum([array.astype(np.float64) for array in arrays], axis=0)
    peak = max(float(np.abs(array).max()) for array in arrays)
    bound = tensors.error_bound(peak, workers) + np.abs(true) * 2.0**-24
    assert (np.abs(results[0] - true) <= bound).all()
    for result in results[1:]:
        assert result.tobytes() == results[0].tobytes()
    return bytes(results[0].tobytes())


@pytest.mark.parametrize("policy", LIVE_POLICIES)
def test_every_policy_gives_the_sum(policy: str) -> None:
    with running_switch(policy=policy) as switch, job_of(WORKERS, switch) as job:
        for seed, numbers in enumerate((1, 27, 28, 1000, 30_000)):
            _check(job, numbers, seed)
        status = job.agents[0].status()
        assert status["counters"]["tensors"] == 5
        assert not status["failed"]


def test_without_a_switch_custodians_give_the_same_bytes() -> None:
    with running_switch() as switch, job_of(WORKERS, switch) as job:
        by_switch = [_check(job, numbers, numbers) for numbers in (5, 5000)]
    with job_of(WORKERS, None) as job:
        assert [_check(job, numbers, numbers) for numbers in (5, 5000)] == by_switch
        assert job.agents[0].status()["path"] == "custodian"


@pytest.mark.parametrize("policy", LIVE_POLICIES)
def test_the_bytes_are_the_same_whatever_the_network_does(policy: str) -> None:
    """The short form of `python -m benchmarks.exactness_live`."""
    with job_of(WORKERS, None) as job:
        expected = _check(job, 12_000, 7)
    faults = {"drop": 0.02, "duplicate": 0.02, "reorder": 0.02}
    # Few aggregators: chunks collide, and are preempted.
    for seed in (1, 2):
        with (
            running_switch(policy=policy, memory_bytes=200_000, seed=seed, **faults) as switch,
            job_of(WORKERS, switch, silence_s=10.0) as job,
        ):
            assert _check(job, 12_000, 7) == expected


def _halves(numbers: int, seed: int) -> list[Any]:
    return [to_bfloat16(array) for array in tensors_of(WORKERS, numbers, seed)]


@pytest.mark.parametrize("policy", LIVE_POLICIES)
def test_the_16_bit_form_gives_the_same_bytes_whatever_the_network_does(policy: str) -> None:
    options: dict[str, Any] = {"dtype": "bfloat16", "wire": 16}
    arrays = _halves(40_000, 5)
    arrays[1][[7, 20_000]] = 0x7F80
    expected = reduce_all(arrays, "bfloat16", elements=352, wire=16).tobytes()
    faults = {"drop": 0.02, "duplicate": 0.02, "reorder": 0.02}
    with (
        running_switch(policy=policy, memory_bytes=200_000, seed=3, **faults) as switch,
        job_of(WORKERS, switch, silence_s=10.0) as job,
    ):
        for result in job.reduce(arrays, **options):
            assert result.tobytes() == expected


def test_without_a_switch_the_16_bit_form_gives_the_same_bytes() -> None:
    with job_of(WORKERS, None) as job:
        for numbers, dtype in ((16_384, "bfloat16"), (16_385, "bfloat16"), (700_001, "float16")):
            arrays = [array & np.uint16(0xBFFF) for array in _halves(numbers, numbers)]
            expected = reduce_all(arrays, dtype, "avg", elements=352, wire=16).tobytes()
            for result in job.reduce(arrays, dtype=dtype, op="avg", wire=16):
                assert result.tobytes() == expected


def test_workers_that_use_different_wires_are_told() -> None:
    with job_of(2, None, timeout_s=60.0, linger_s=0.0) as job:
        arrays = _halves(20_000, 1)
        handles = [job.agents[w].submit(arrays[w], dtype="bfloat16", wire=(16, 32)[w]) for w in range(2)]
        for handle in handles:
            with pytest.raises(ReductionError, match="different tensors"):
                handle.wait(60)


def test_several_tensors_are_under_way_at_once() -> None:
    with running_switch() as switch, job_of(2, switch) as job:
        many = [tensors_of(2, 10 + 400 * i, i) for i in range(20)]
        sums = [arrays[0] + arrays[1] for arrays in many]
        handles = []
        for i, arrays in enumerate(many):
            for worker in range(2):
                handles.append(job.agents[worker].submit(arrays[worker], priority=i * 10))
        for handle in handles:
            handle.wait(WAIT_S)
        for arrays, total in zip(many, sums, strict=True):
            np.testing.assert_allclose(arrays[0], total, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_types_and_averages(dtype: str, op: str) -> None:
    with job_of(2, None) as job:
        for numbers in (3, 3000):
            plain = [np.full(numbers, value) for value in (1, 3)]
            if dtype == "bfloat16":
                arrays = [(a.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for a in plain]
            else:
                arrays = [a.astype(dtype) for a in plain]
            result = job.reduce(arrays, op=op, dtype=dtype)[1]
            if dtype == "bfloat16":
                result = (result.astype(np.uint32) << 16).view(np.float32)
            assert (result == (4 if op == "sum" else 2)).all()


def test_callbacks_and_waiting() -> None:
    with job_of(2, None) as job:
        called: list[Handle] = []
        done = threading.Event()
        first = job.agents[0].submit(np.ones(5, dtype=np.float32))
        first.add_done_callback(lambda handle: (called.append(handle), done.set())[0])
        with pytest.raises(ReductionTimeoutError):
            first.wait(0.05)
        assert not first.done()
        assert not called
        job.agents[1].submit(np.ones(5, dtype=np.float32)).wait(WAIT_S)
        first.wait(WAIT_S)
        assert done.wait(10)
        assert called == [first]
        first.add_done_callback(called.append)
        assert called == [first, first]
        assert first.error() is None


def test_who_waits_here_runs_the_callbacks_and_misses_no_end() -> None:
    with job_of(2, None) as job:
        first = job.agents[0].submit(np.ones(5, dtype=np.float32))
        threads: list[int] = []
        first.add_done_callback(lambda _handle: threads.append(threading.get_ident()))
        first.wait_here(0.05)
        assert not first.done()
        other = threading.Timer(0.2, lambda: job.agents[1].submit(np.ones(5, dtype=np.float32)))
        other.start()
        first.wait_here(WAIT_S)
        assert first.done()
        assert threads == [threading.get_ident()]
        other.join()
        # Ended while nobody waited: told by the notifying thread, whoever comes late.
        pair = [agent.submit(np.ones(5, dtype=np.float32)) for agent in job.agents]
        told = threading.Event()
        pair[0].add_done_callback(lambda _handle: told.set())
        assert told.wait(WAIT_S)
        pair[0].wait_here(WAIT_S)
        first.wait_here(WAIT_S)
        assert first.array.tolist() == pair[0].array.tolist() == [2.0] * 5
        pair[1].wait(WAIT_S)


def test_a_missing_worker_is_named() -> None:
    with job_of(WORKERS, None, timeout_s=3.0, linger_s=0.0) as job:
        handles = [agent.submit(np.ones(5, dtype=np.float32)) for agent in job.agents[:2]]
        for handle in handles:
            with pytest.raises(ReductionError, match="worker 2"):
                handle.wait(60)
        # Everything later fails at once, with the same reason.
        with pytest.raises(ReductionError, match="worker 2"):
            job.agents[0].submit(np.ones(5, dtype=np.float32)).wait(60)
        # Events come by a thread of their own.
        until = time.monotonic() + 30
        while not (events := job.agents[0].status()["events"]) and time.monotonic() < until:
            time.sleep(0.01)
        assert [event["event"] for event in events] == ["failed"]


def test_different_tensors_are_told() -> None:
    with job_of(2, None, timeout_s=60.0, linger_s=0.0) as job:
        one = job.agents[0].submit(np.ones(5, dtype=np.float32))
        other = job.agents[1].submit(np.ones(5, dtype=np.float32), op="avg")
        for handle in (one, other):
            with pytest.raises(ReductionError, match="different tensors"):
                handle.wait(60)


def test_a_switch_that_dies_is_left_and_one_that_comes_back_is_used() -> None:
    seen: list[dict[str, Any]] = []
    with running_switch(lease_s=5.0) as switch, job_of(2, switch, member=True, silence_s=0.3) as job:
        job.agents[0].on_event(seen.append)
        _check(job, 3000, 1, workers=2)
        assert job.agents[0].status()["path"] == "switch"
        port = switch.server.port
        switch.close()
        began = time.monotonic()
        _check(job, 3000, 2, workers=2)
        assert time.monotonic() - began < 20
        assert job.agents[0].status()["path"] == "custodian"
        with running_switch(lease_s=5.0, port=port):
            end = time.monotonic() + 60
            while time.monotonic() < end and any(a.status()["path"] != "switch" for a in job.agents):
                time.sleep(0.05)
            assert [agent.status()["path"] for agent in job.agents] == ["switch", "switch"]
            _check(job, 3000, 3, workers=2)
        assert [event["path"] for event in seen if event["event"] == "path"] == ["custodian", "switch"]


def test_a_job_whose_number_a_newcomer_took_after_a_restart_uses_the_switch_under_another() -> None:
    with running_switch(lease_s=5.0) as switch, job_of(2, switch, member=True, silence_s=0.3) as job:
        _check(job, 3000, 1, workers=2)
        assert job.admission is not None
        port, number = switch.server.port, job.admission.job
        switch.close()
        # The first restart knows nobody but the newcomer; the job finds it where the old one was.
        with running_switch(lease_s=60.0) as anew:
            newcomer = anew.control.admit("newcomer", 1)
            assert newcomer.job == number
            for member in job.members:
                member.control = anew.control
            _until_on_switch(job)
            numbers = {agent.status()["job"] for agent in job.agents}
            assert len(numbers) == 1
            assert number not in numbers
            results = job.agents[0].status()["counters"]["results"]
            _check(job, 3000, 3, workers=2)
            assert job.agents[0].status()["counters"]["results"] > results
            assert [agent.status()["path"] for agent in job.agents] == ["switch", "switch"]
            assert anew.switch.threads[0].shard.jobs[numbers.pop()].packets_in > 0
        assert port > 0


def _until_on_switch(job: Job) -> None:
    end = time.monotonic() + 60
    while not all(_is_back(agent, member) for agent, member in _pairs(job)):
        assert time.monotonic() < end
        time.sleep(0.02)


def _is_back(agent: Agent, member: Any) -> bool:
    """Admitted again, and the loop has taken up what the admission gave: it does so a moment later."""
    status = agent.status()
    return bool(status["path"] == "switch" and member.readmissions and status["job"] == member.admission.job)


def _pairs(job: Job) -> list[tuple[Agent, Any]]:
    return list(zip(job.agents, job.members, strict=True))


def test_a_switch_that_answers_and_gets_nothing_done_is_told_of_and_left_for_a_while() -> None:
    with running_switch() as switch, job_of(WORKERS, switch, silence_s=60.0) as job:
        seen: list[Any] = []
        for agent in job.agents:
            agent.on_event(seen.append)
        _check(job, 2_000_000, 1)
        settings = switch.switch.threads[0].shard.faults.settings[0]
        settings.drop = threshold_of(0.6)
        _check(job, 2_000_000, 2)
        reasons = {event["reason"] for event in seen}
        # With chunks under way their losses tell; with a single one, those of the questions.
        told = "by the switch there was hardly any progress" in reasons and "loss" in reasons
        assert told or "most questions to the switch are lost, and hardly any results come" in reasons
        assert sum(agent.status()["counters"]["standstills"] for agent in job.agents) > 0
        assert "custodian" in {agent.status()["path"] for agent in job.agents}
        settings.drop = 0
        for agent in job.agents:
            agent._loop.control[0].hold_off_ns = 0
        until = time.monotonic() + WAIT_S
        while "custodian" in {agent.status()["path"] for agent in job.agents} and time.monotonic() < until:
            _check(job, 1000, 3)
        assert {agent.status()["path"] for agent in job.agents} == {"switch"}
        _check(job, 2_000_000, 4)


def test_switchml_has_nothing_to_go_on_with() -> None:
    with running_switch(policy="switchml") as switch, job_of(2, switch, silence_s=0.3, linger_s=0.0) as job:
        _check(job, 100, 1, workers=2)
        switch.close()
        handles = [agent.submit(np.ones(5, dtype=np.float32)) for agent in job.agents]
        for handle in handles:
            with pytest.raises(ReductionError, match="SwitchML has no custodians"):
                handle.wait(60)


def test_one_worker_may_go_by_custodians_while_others_use_the_switch() -> None:
    with running_switch() as switch, job_of(WORKERS, switch) as job:
        expected = _check(job, 3000, 5)
        job.agents[1].without_switch("a test")
        assert _check(job, 3000, 5) == expected


def test_hostile_datagrams_are_dropped_and_counted() -> None:
    with job_of(2, None) as job:
        stranger = open_socket()
        target = job.agents[0].address
        _check(job, 100, 1, workers=2)
        for data in (b"", b"x" * 64, b"PA" + b"\x01" * 200):
            stranger.sendto(data, target)
        _check(job, 5000, 2, workers=2)
        counters = job.agents[0].status()["counters"]
        assert sum(value for name, value in counters.items() if name.startswith("drop_")) == 3
        stranger.close()


def test_a_job_of_one_worker_needs_nobody() -> None:
    with job_of(1, None) as job:
        assert (job.reduce([np.arange(9, dtype=np.float32)])[0] == np.arange(9)).all()


def test_closing_ends_what_is_under_way() -> None:
    sockets = [open_socket() for _ in range(2)]
    peers = [sock.getsockname() for sock in sockets]
    agent = Agent(AgentConfig(0, 2, peers, 1, KEY, linger_s=0.0), sockets[0])
    handle = agent.submit(np.ones(5, dtype=np.float32))
    agent.close()
    with pytest.raises(ReductionError, match="closed"):
        handle.wait(10)
    with pytest.raises(ReductionError, match="closed"):
        agent.submit(np.ones(5, dtype=np.float32))
    sockets[1].close()


@pytest.mark.parametrize(
    ("field", "value"),
    [("workers", 65), ("key", b"short"), ("policy", "magic"), ("elements", 5), ("peers", [])],
)
def test_mistakes_are_told(field: str, value: Any) -> None:
    settings = {"worker": 0, "workers": 1, "peers": [("127.0.0.1", 1)], "job": 1, "key": KEY, field: value}
    with pytest.raises(UserError, match=field):
        AgentConfig(**settings)


def test_what_cannot_be_reduced_is_refused() -> None:
    with job_of(1, None) as job:
        for array, options in (
            (np.ones(3), {}),
            (np.ones(3, dtype=np.float32), {"op": "max"}),
            (np.ones(6, dtype=np.float32)[::2], {}),
            (np.ones(3, dtype=np.float32), {"dtype": "bfloat16"}),
            (np.ones(3, dtype=np.float32), {"wire": 8}),
        ):
            with pytest.raises(UserError):
                job.agents[0].submit(array, **options)
