"""The backend on one host: every collective works, all-reduces are right, and nothing is left behind."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.torch.ranks import run_ranks

HERE = "tests.torch.test_process_group"


def every_collective(rank: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    import paceline.torch

    dist.init_process_group("paceline")
    size = dist.get_world_size()
    ones, twos = torch.ones(2), torch.full((2,), 2.0)

    value = torch.full((3,), float(rank))
    dist.broadcast(value, 1)
    assert value.tolist() == [1, 1, 1]
    parts = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(parts, ones * rank)
    assert [part[0].item() for part in parts] == list(range(size))
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects[size - 1] == {"rank": size - 1}
    scattered = torch.zeros(2)
    dist.reduce_scatter(scattered, [ones * other for other in range(size)])
    assert scattered.tolist() == [size * rank] * 2
    swapped = torch.zeros(size)
    dist.all_to_all_single(swapped, torch.full((size,), float(rank)))
    assert swapped.tolist() == list(range(size))
    total = ones.clone()
    dist.reduce(total, 0)
    assert rank != 0 or total.tolist() == [size, size]
    if rank == 0:
        dist.send(twos, 1)
    elif rank == 1:
        got = torch.zeros(2)
        dist.recv(got, 0)
        assert got.tolist() == [2, 2]
    dist.barrier()
    for op, want in ((dist.ReduceOp.MAX, size - 1), (dist.ReduceOp.MIN, 0), (dist.ReduceOp.PRODUCT, 0)):
        other = torch.tensor([float(rank)])
        dist.all_reduce(other, op=op)
        assert other.item() == want
    doubles = torch.ones(3, dtype=torch.float64)
    dist.all_reduce(doubles)
    assert doubles.tolist() == [size] * 3
    counters = paceline.torch.status()[0]["counters"]
    assert counters["through_gloo"] == 4
    name = dist.get_backend()
    # Memory with a name would stay if a rank were killed; other processes may have some at any time.
    named = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm" in line]
    dist.destroy_process_group()
    threads = sorted(thread.name for thread in threading.enumerate())
    return {"name": name, "threads": threads, "named": named}


def test_every_collective_works_and_no_thread_stays(tmp_path: Path) -> None:
    for result in run_ranks(3, f"{HERE}:every_collective", tmp_path):
        assert result == {"name": "paceline", "threads": ["MainThread"], "named": []}


def every_format(rank: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    import paceline.torch

    dist.init_process_group("paceline")
    size = dist.get_world_size()
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32):
        whole = torch.arange(-50, 50).to(dtype)
        for op, factor in ((dist.ReduceOp.SUM, size), (dist.ReduceOp.AVG, 1)):
            tensor = whole.clone()
            dist.all_reduce(tensor, op=op)
            assert torch.equal(tensor, whole * factor), (dtype, op)
            # A transposed view, asynchronously, through the future.
            turned = whole.clone().reshape(10, 10).t()
            work = dist.all_reduce(turned, op=op, async_op=True)
            assert work is not None
            (got,) = work.get_future().wait()
            assert torch.equal(got, whole.reshape(10, 10).t() * factor)
            assert torch.equal(turned, got)
            assert work.is_completed()
            assert work.is_success()
    many = [torch.full((1000 * i + 1,), float(rank + i)) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in many]
    for work in reversed(works):
        assert work is not None
        work.wait()
    for i, tensor in enumerate(many):
        assert (tensor == size * (size - 1) / 2 + size * i).all()
    empty = torch.zeros(0)
    dist.all_reduce(empty)
    with_gradient = torch.ones(3, requires_grad=True)
    dist.all_reduce(with_gradient)
    assert with_gradient.detach().tolist() == [size] * 3
    special = torch.tensor([float("inf"), float("nan"), -float("inf")] + [1.0] * 10)
    dist.all_reduce(special)
    assert special[0] == float("inf")
    assert torch.isnan(special[1])
    assert special[2] == -float("inf")
    pairs = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    for members, group in (([0, 1], pairs[0]), ([1, 2], pairs[1])):
        if rank in members:
            tensor = torch.tensor([float(rank)])
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == sum(members)
    status = paceline.torch.status()
    dist.destroy_process_group(pairs[0]) if rank in (0, 1) else None
    alone = dist.new_group([2])
    if rank == 2:
        dist.all_reduce(empty, group=alone)
    dist.destroy_process_group()
    return {
        "paths": [shown["path"] for shown in status],
        "failed": [s["counters"].get("failed") for s in status],
    }


def test_formats_operations_and_subgroups(tmp_path: Path) -> None:
    results = run_ranks(3, f"{HERE}:every_format", tmp_path)
    assert [result["paths"] for result in results] == [["host"] * 2, ["host"] * 3, ["host"] * 2]
    assert not any(any(result["failed"]) for result in results)


def with_ddp(rank: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import paceline.torch  # noqa: F401

    dist.init_process_group("paceline")
    gloo = dist.new_group(backend="gloo")
    losses: dict[str, list[float]] = {}
    for name, group in (("paceline", None), ("gloo", gloo)):
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Linear(20, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 3)
        )
        parallel = DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.005)
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
        data = torch.Generator().manual_seed(100 + rank)
        losses[name] = []
        for step in range(6):
            x, y = torch.randn(16, 20, generator=data), torch.randint(3, (16,), generator=data)
            optimizer.zero_grad()
            if step == 3:
                with parallel.no_sync():
                    torch.nn.functional.cross_entropy(parallel(x), y).backward()
            loss = torch.nn.functional.cross_entropy(parallel(x), y)
            loss.backward()
            optimizer.step()
            losses[name].append(loss.item())
    dist.destroy_process_group()
    return losses


def test_ddp_trains_as_over_gloo(tmp_path: Path) -> None:
    for losses in run_ranks(2, f"{HERE}:with_ddp", tmp_path):
        assert losses["paceline"] == pytest.approx(losses["gloo"], rel=1e-5)


def wait_for_the_dead(rank: int) -> dict[str, Any]:
    import time

    import torch
    import torch.distributed as dist

    import paceline.torch

    dist.init_process_group("paceline")
    tensor = torch.ones(5)
    dist.all_reduce(tensor)
    if rank == 2:
        os.kill(os.getpid(), 9)
    begin = time.monotonic()
    try:
        dist.all_reduce(tensor)
    except dist.DistBackendError as error:
        took_s = time.monotonic() - begin
        events = paceline.torch.status()[0]["events"]
        dist.destroy_process_group()
        return {"error": str(error), "took_s": took_s, "events": [event["event"] for event in events]}
    return {"error": ""}


def test_a_killed_rank_is_named(tmp_path: Path) -> None:
    from tests.torch.ranks import Ranks

    with Ranks(3, f"{HERE}:wait_for_the_dead", tmp_path) as ranks:
        assert ranks.processes[2].wait(60) == -9
        ranks.processes[2].returncode = 0
        (tmp_path / "result-2").write_text("{}")
        results = ranks.results()
    for result in results[:2]:
        assert "rank 2 (process" in result["error"]
        assert "has ended" in result["error"]
        assert result["took_s"] < 10
        assert result["events"][-1] == "failed"
