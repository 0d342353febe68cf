"""Several workers without a switch: custodians, a path that fails on one worker alone, and the way back.

The ranks run interpreted: they are here for what they do, not for speed, and nothing needs compiling.
"""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.torch.ranks import Ranks, run_ranks

HERE = "tests.torch.failover.test_exchange"
APART = {"PACELINE_HOST_REDUCE": "0", "NUMBA_DISABLE_JIT": "1"}


def over_custodians(rank: int) -> dict[str, Any]:
    import threading

    import torch
    import torch.distributed as dist

    import paceline.torch

    dist.init_process_group("paceline")
    size = dist.get_world_size()
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32):
        for count in (1, 100, 3000):
            tensor = torch.arange(count).remainder(16).to(dtype)
            work = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True)
            assert work is not None
            work.get_future().wait()
            assert torch.equal(tensor, torch.arange(count).remainder(16).to(dtype)), dtype
    pair = dist.new_group([0, 1])
    if rank < 2:
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=pair)
        assert tensor.tolist() == [2] * 3
    status = paceline.torch.status()
    dist.destroy_process_group()
    threads = sorted(thread.name for thread in threading.enumerate())
    return {"paths": [s["path"] for s in status], "size": size, "threads": threads}


def test_custodians_do_it_without_a_switch_and_say_so_once(tmp_path: Path) -> None:
    with Ranks(3, f"{HERE}:over_custodians", tmp_path, APART) as ranks:
        results = ranks.results()
        assert ranks.log(2).count("PACELINE_SWITCH is not set") == 1
    assert [result["paths"] for result in results] == [["custodian"] * 2, ["custodian"] * 2, ["custodian"]]
    assert all(result["threads"] == ["MainThread"] for result in results)


def fail_on_one_worker(rank: int, bad_rank: int, unbound: int) -> dict[str, Any]:
    """The agent of one rank says that its sixth reduction failed, when others have its result.

    The rank `unbound` cannot use the first admission that is found after that, however often it tries.
    """
    import functools
    import time

    import torch
    import torch.distributed as dist

    import paceline.torch
    from paceline.live.agent.agent import Agent, ReductionError
    from paceline.live.switch_client import ControlError
    from paceline.torch.failover import switch_search
    from paceline.torch.reduce import network

    class Unlucky(Agent):
        def submit(self, *args: Any, **more: Any) -> Any:
            handle = super().submit(*args, **more)
            if rank == bad_rank and handle.ticket == 5 and not failed:
                failed.append(1)
                handle.wait(60)
                handle.error = lambda: ReductionError("made to fail")  # type: ignore[method-assign]
            return handle

    class Path(network.AgentPath):
        def _build(self, addresses: Any) -> None:
            assert self.offer is not None
            key = self.offer.branches[0].key
            if rank == unbound and failed_for_all() and key in (refused or [key]):
                refused[:] = [key]
                raise ControlError("made to fail")
            super()._build(addresses)

    def failed_for_all() -> bool:
        return bool(paceline.torch.status()) and paceline.torch.status()[0]["path"] == "gloo"

    failed: list[int] = []
    refused: list[str] = []
    switch_search.RETRY_S = (0.5, 1.0)
    network.AgentPath = functools.partial(Path, make_agent=Unlucky)  # type: ignore[misc, assignment]
    dist.init_process_group("paceline")
    generator = torch.Generator().manual_seed(rank)
    sums, paths = [], []
    end = time.monotonic() + 60
    step = 0
    while step < 30 or (paths[-1] == "gloo" and time.monotonic() < end):
        tensors = [torch.randn(count, generator=generator) for count in (3, 700, 2500)]
        # Several at a time, and the results are overwritten at once: nobody can hand them on.
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            assert work is not None
            work.wait()
        sums.append(sum(tensor.double().sum().item() for tensor in tensors))
        for tensor in tensors:
            tensor.fill_(float("nan"))
        paths.append(paceline.torch.status()[0]["path"])
        step += 1
        # All go on for as long as one does.
        more = torch.tensor([float(paths[-1] == "gloo")], dtype=torch.float64)
        dist.all_reduce(more, op=dist.ReduceOp.MAX)
        if more.item():
            paths[-1] = "gloo"
        time.sleep(0.02)
    status = paceline.torch.status()[0]
    dist.destroy_process_group()
    events = [(event["event"], event.get("done_again", 0)) for event in status["events"]]
    return {"sums": sums, "paths": paths, "events": events, "generation": status["generation"]}


@pytest.mark.parametrize(("bad_rank", "unbound"), [(0, -1), (2, 1)])
def test_a_path_that_fails_on_one_worker_costs_no_step(bad_rank: int, unbound: int, tmp_path: Path) -> None:
    """Nor does a return that one worker cannot go along with: all try again."""
    results = run_ranks(3, f"{HERE}:fail_on_one_worker", tmp_path, APART, bad_rank=bad_rank, unbound=unbound)
    import torch

    generators = [torch.Generator().manual_seed(rank) for rank in range(3)]
    for sum_ in results[0]["sums"]:
        want = sum(
            torch.randn(c, generator=g).double().sum().item() for c in (3, 700, 2500) for g in generators
        )
        assert sum_ == pytest.approx(want, abs=1e-2)
    for rank, result in enumerate(results):
        assert result["sums"] == results[0]["sums"], "the ranks have other bits"
        names = [name for name, _ in result["events"]]
        refused = ["no_return"] if rank == unbound else []
        assert names == ["custodian", "gloo", *refused, "custodian"]
        assert result["generation"] == 1
        assert "gloo" in result["paths"]
        assert result["paths"][-1] == "custodian"
    again = [dict(result["events"])["gloo"] for result in results]
    assert again[bad_rank] == 0
    assert max(again) > 0, "nobody had the result: the test shows nothing"


def two_hosts(rank: int, dies: int = -1) -> dict[str, Any]:
    """Four ranks as if on two hosts of two."""
    import os
    import time

    import torch
    import torch.distributed as dist

    import paceline.torch
    from paceline.torch.reduce import choose

    choose.host_identity = lambda: f"host {rank // 2}"
    dist.init_process_group("paceline")
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        for op, factor in ((dist.ReduceOp.SUM, 4), (dist.ReduceOp.AVG, 1)):
            tensor = torch.arange(2500).remainder(32).to(dtype)
            dist.all_reduce(tensor, op=op)
            assert torch.equal(tensor, torch.arange(2500).remainder(32).to(dtype) * factor), (dtype, op)
    shown = paceline.torch.status()[0]
    if dies < 0:
        dist.destroy_process_group()
        return {"path": shown["path"], "workers": shown["workers"]}
    if rank == dies:
        os.kill(os.getpid(), 9)
    begin = time.monotonic()
    try:
        dist.all_reduce(torch.ones(10))
    except dist.DistBackendError as error:
        took_s = time.monotonic() - begin
        dist.destroy_process_group()
        return {"error": str(error), "took_s": took_s}
    return {"error": "none"}


def test_two_hosts_of_two_ranks_are_two_workers(tmp_path: Path) -> None:
    results = run_ranks(4, f"{HERE}:two_hosts", tmp_path, {"NUMBA_DISABLE_JIT": "1"})
    assert [r["path"] for r in results] == ["custodian", "first rank of the host"] * 2
    assert [r["workers"] for r in results] == [2] * 4


@pytest.mark.parametrize("dies", [2, 3])
def test_a_death_on_another_host_is_told_to_all(dies: int, tmp_path: Path) -> None:
    with Ranks(4, f"{HERE}:two_hosts", tmp_path, {"NUMBA_DISABLE_JIT": "1"}, dies=dies) as ranks:
        assert ranks.processes[dies].wait(100) == -9
        ranks.processes[dies].returncode = 0
        (tmp_path / f"result-{dies}").write_text("{}")
        results = ranks.results()
    for rank, result in enumerate(results):
        if rank != dies:
            assert f"rank {dies}" in result["error"]
            assert result["took_s"] < 60


def lose_a_worker(rank: int) -> dict[str, str]:
    import os

    import torch
    import torch.distributed as dist

    import paceline.torch  # noqa: F401

    dist.init_process_group("paceline")
    dist.all_reduce(torch.ones(10))
    if rank == 0:  # it keeps the Store, too
        os.kill(os.getpid(), 9)
    try:
        dist.all_reduce(torch.ones(10))
    except dist.DistBackendError as error:
        return {"error": str(error)}
    return {"error": "none"}


def test_a_worker_that_ends_is_named_before_its_heartbeat_is_missed(tmp_path: Path) -> None:
    """By the connection that ends with it; also where the Store is gone with it."""
    with Ranks(3, f"{HERE}:lose_a_worker", tmp_path, APART) as ranks:
        assert ranks.processes[0].wait(100) == -9
        ranks.processes[0].returncode = 0
        (tmp_path / "result-0").write_text("{}")
        results = ranks.results()
    for result in results[1:]:
        assert "rank 0 is gone: its process has ended" in result["error"]


def different_tensors(rank: int, hosts: int) -> list[str]:
    """Each case has a group of its own, which it ends; what a rank is told."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    import paceline.torch  # noqa: F401
    from paceline.torch.reduce import choose, network

    network.SEGMENT = 1000
    choose.host_identity = lambda: f"host {rank * hosts // 4}"
    dist.init_process_group("paceline", timeout=timedelta(seconds=60))
    last = rank * hosts // 4 == hosts - 1  # the ranks of the last host have another tensor
    cases = [
        (torch.ones(3000 if last else 2000), dist.ReduceOp.SUM),  # whole segments, and one more
        (torch.ones(500), dist.ReduceOp.AVG if last else dist.ReduceOp.SUM),
        (torch.ones(500, dtype=torch.bfloat16 if last else torch.float32), dist.ReduceOp.SUM),
        (torch.ones(20 if last else 10, dtype=torch.int32), dist.ReduceOp.SUM),
        (torch.ones(10, dtype=torch.int32), dist.ReduceOp.AVG if last else dist.ReduceOp.SUM),
    ]
    told = []
    for tensor, op in cases:
        group = dist.new_group()
        try:
            dist.all_reduce(tensor, op=op, group=group)
            told.append("no error")
        except dist.DistBackendError as error:
            told.append(str(error))
    # Whoever leaves at once may be named before the tensors are.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"told {rank}", "")
    store.wait([f"told {other}" for other in range(4)], timedelta(seconds=60))
    dist.group.WORLD.abort()  # type: ignore[union-attr]
    return told


@pytest.mark.parametrize("hosts", [2, 4])
def test_workers_with_different_tensors_are_told(hosts: int, tmp_path: Path) -> None:
    """Two hosts of two ranks, whose segments have the same sizes; and four of one, where integers have no exponents."""
    results = run_ranks(4, f"{HERE}:different_tensors", tmp_path, {"NUMBA_DISABLE_JIT": "1"}, hosts=hosts)
    for told in results:
        assert ["different tensors" in text for text in told] == [True] * 5, told


def outlive_the_store(rank: int) -> dict[str, Any]:
    """The Store ends before the ranks; then one rank leaves with a reduction in which nobody else takes part."""
    import time
    from typing import NoReturn

    import torch
    import torch.distributed as dist

    import paceline.torch
    from paceline.torch.rendezvous import StorePrefix

    def gone(*_: object) -> NoReturn:
        raise dist.DistNetworkError("made to fail")

    dist.init_process_group("paceline")
    dist.all_reduce(torch.ones(5))
    dist.barrier()
    real = StorePrefix.ready
    StorePrefix.ready = gone  # type: ignore[method-assign]
    time.sleep(1.0)
    tensor = torch.ones(5)
    dist.all_reduce(tensor)
    status = paceline.torch.status()[0]
    StorePrefix.ready = real  # type: ignore[method-assign]
    work = dist.all_reduce(torch.ones(7), async_op=True) if rank == 0 else None
    dist.destroy_process_group()
    error = ""
    if work is not None:
        try:
            work.get_future().wait()
        except RuntimeError as problem:
            error = str(problem)
    return {"sum": tensor[0].item(), "failed": status["counters"].get("failed"), "error": error}


def test_what_is_done_needs_no_store_and_what_is_not_is_told(tmp_path: Path) -> None:
    results = run_ranks(2, f"{HERE}:outlive_the_store", tmp_path, APART)
    assert [(result["sum"], result["failed"]) for result in results] == [(2, None)] * 2
    assert "rank 0 has closed the group" in results[0]["error"]


def end_without_a_word(rank: int) -> dict[str, Any]:
    """The program ends with its group open; threads are in the Store all the time."""
    import torch
    import torch.distributed as dist

    import paceline.torch  # noqa: F401
    from paceline.torch.failover import exchange, heartbeat

    heartbeat.BEAT_S = exchange.TICK_S = 1e-4
    dist.init_process_group("paceline")
    dist.all_reduce(torch.ones(5))
    dist.barrier()
    return {}


def test_a_program_that_destroys_nothing_ends_well(tmp_path: Path) -> None:
    for attempt in range(2):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        run_ranks(3, f"{HERE}:end_without_a_word", folder, APART, fresh=True)
