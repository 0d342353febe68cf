"""Tensors on a device, which is emulated: the same results as on the host, in segments, in the order of the calls."""

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.torch.ranks import run_ranks
from tests.torch.test_trust import failed_cases, run_cases

HERE = "tests.torch.test_staging"


def a_device_tensor_is_reduced_in_place(rank: int) -> None:
    import torch
    import torch.distributed as dist

    from tests.torch.emulated_device import on_emu

    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32):
        tensor = on_emu(torch.arange(1000).to(dtype))
        dist.all_reduce(tensor)
        assert torch.equal(tensor.raw, (2 * torch.arange(1000)).to(dtype))
    average = on_emu(torch.full((10,), float(rank)))
    work = dist.all_reduce(average, op=dist.ReduceOp.AVG, async_op=True)
    assert work is not None
    (same,) = work.get_future().wait()
    assert same is average
    assert (average.raw == 0.5).all()
    empty = on_emu(torch.ones(0))
    dist.all_reduce(empty)


def a_turned_one_too(rank: int) -> None:
    import torch
    import torch.distributed as dist

    from tests.torch.emulated_device import on_emu

    turned = on_emu(torch.arange(12.0).reshape(3, 4)).t()
    assert not turned.is_contiguous()
    dist.all_reduce(turned)
    assert torch.equal(turned.raw, 2 * torch.arange(12.0).reshape(3, 4).t())


def a_large_one_goes_in_segments(rank: int) -> None:
    import torch
    import torch.distributed as dist

    from tests.torch import emulated_device

    emulated_device.COPIES.clear()
    tensor = emulated_device.on_emu(torch.arange(50_000, dtype=torch.float32) % 1000)
    dist.all_reduce(tensor)
    assert torch.equal(tensor.raw, 2 * (torch.arange(50_000, dtype=torch.float32) % 1000))
    copies = emulated_device.COPIES
    assert [size for way, size in copies if way == "in"] == [16_384] * 3 + [50_000 - 3 * 16_384]
    assert sum(size for way, size in copies if way == "out") == 50_000


def host_and_device_keep_the_order_of_the_calls(rank: int) -> None:
    import torch
    import torch.distributed as dist

    from tests.torch.emulated_device import on_emu

    for _ in range(10):
        if rank == 0:
            time.sleep(0.002)
        pairs: list[Any] = [(on_emu(torch.full((60_000,), 1.0)), torch.full((7 + i,), 2.0)) for i in range(5)]
        works = [dist.all_reduce(t, async_op=True) for pair in pairs for t in pair]
        last = torch.ones(3)
        dist.all_reduce(last)
        dist.barrier()
        assert (last == 2).all()
        assert all(work is not None and work.is_completed() for work in works)
        for device, host in pairs:
            assert (device.raw == 2).all()
            assert (host == 4).all()


def other_collectives_go_over_copies(rank: int) -> None:
    import torch
    import torch.distributed as dist

    from tests.torch.emulated_device import on_emu

    own = on_emu(torch.full((4,), float(rank + 1)))
    dist.broadcast(own, 0)
    assert (own.raw == 1).all()
    doubles = on_emu(torch.full((4,), float(rank), dtype=torch.float64))
    dist.all_reduce(doubles)
    assert (doubles.raw == 1).all()
    largest = on_emu(torch.full((4,), float(rank)))
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    assert (largest.raw == 1).all()
    gathered = [on_emu(torch.zeros(2)) for _ in range(2)]
    dist.all_gather(gathered, on_emu(torch.full((2,), float(rank))))
    assert [tensor.raw.tolist() for tensor in gathered] == [[0, 0], [1, 1]]
    whole = on_emu(torch.zeros(4))
    dist.all_gather_into_tensor(whole, on_emu(torch.full((2,), float(rank))))
    assert whole.raw.tolist() == [0, 0, 1, 1]
    if rank == 0:
        dist.send(on_emu(torch.ones(3)), 1)
    else:
        got = on_emu(torch.zeros(3))
        dist.recv(got, 0)
        assert (got.raw == 1).all()


def one_world(rank: int) -> dict[str, str]:
    import torch
    import torch.distributed as dist

    from tests.torch import emulated_device

    emulated_device.set_up()
    import paceline.torch
    from paceline.torch import staging

    assert paceline.torch.devices() == ["cpu", "emu"]
    staging.SEGMENT_BYTES = 1 << 16
    dist.init_process_group("paceline", timeout=timedelta(seconds=60))
    told = run_cases(
        [
            a_device_tensor_is_reduced_in_place,
            a_turned_one_too,
            a_large_one_goes_in_segments,
            host_and_device_keep_the_order_of_the_calls,
            other_collectives_go_over_copies,
        ],
        rank,
    )
    # Equal first segments must not hide that the rest differs.
    tensor = emulated_device.on_emu(torch.ones(16_384 * (2 + rank)))
    with pytest.raises(dist.DistBackendError, match="different tensors"):
        dist.all_reduce(tensor)
    # An abort ends what is under way.
    pending = None
    if rank == 0:
        pending = dist.all_reduce(emulated_device.on_emu(torch.ones(100_000)), async_op=True)
    dist.group.WORLD.abort()  # type: ignore[union-attr]
    if pending is not None:
        with pytest.raises(dist.DistBackendError, match="closed"):
            pending.wait()
    return told


@pytest.mark.parametrize("path", ["host", "network"])
def test_tensors_of_a_device(path: str, tmp_path: Path) -> None:
    env = {"PACELINE_HOST_REDUCE": "0"} if path == "network" else {}
    failed = failed_cases(run_ranks(2, f"{HERE}:one_world", tmp_path, env))
    assert not failed, "\n".join(failed)
