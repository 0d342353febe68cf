"""Priorities of DDP's buckets: nearer the input and less time left go first; the sums stay right."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from paceline.core.priority import priority
from paceline.torch.ddp import PriorityHook
from paceline.torch.settings import read_settings
from tests.torch.ranks import Ranks, run_ranks

HERE = "tests.torch.test_ddp"


def test_buckets_nearer_the_input_go_first_and_time_runs_down() -> None:
    now = [0.0]
    hook = PriorityHook(remaining_s=1000, clock=lambda: now[0])
    for _ in range(2):  # the first step teaches how many there are
        numbers = [hook.priority_of(index, index == 3) for index in range(4)]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == 4
    now[0] = 900.0
    assert hook.remaining_s() == 100
    assert hook.priority_of(0, False) > numbers[0]
    hook.set_remaining(1e9)
    assert hook.priority_of(0, False) < numbers[0]
    now[0] = 1e12
    assert hook.remaining_s() == 1, "a job that is late does not divide by zero"


def train_with_hook(rank: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import paceline.torch  # noqa: F401

    dist.init_process_group("paceline")
    sums = []
    for hook in (None, PriorityHook(remaining_s=60)):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Linear(32, 4))
        parallel = DistributedDataParallel(model, bucket_cap_mb=0.001)
        if hook is not None:
            parallel.register_comm_hook(None, hook)
        for step in range(3):
            parallel(torch.full((4, 8), float(rank + step))).square().mean().backward()
        sums.append(
            [parameter.grad.sum().item() for parameter in model.parameters() if parameter.grad is not None]
        )
    dist.destroy_process_group()
    return {"plain": sums[0], "hook": sums[1]}


def test_a_hook_gives_the_same_gradients(tmp_path: Path) -> None:
    for result in run_ranks(2, f"{HERE}:train_with_hook", tmp_path):
        assert result["hook"] == pytest.approx(result["plain"], rel=1e-6)


def lose_a_rank(rank: int, hooked: bool) -> dict[str, Any]:
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import paceline.torch  # noqa: F401

    dist.init_process_group("paceline")
    parallel = DistributedDataParallel(torch.nn.Linear(8, 4))
    if hooked:
        parallel.register_comm_hook(None, PriorityHook(remaining_s=60))
    for _ in range(3):  # the first ones also speak over Gloo, about the buckets
        parallel(torch.ones(2, 8)).sum().backward()
    if rank == 1:
        os.kill(os.getpid(), 9)
    try:
        parallel(torch.ones(2, 8)).sum().backward()
    except RuntimeError as error:
        return {"error": str(error)}
    return {"error": "none"}


@pytest.mark.parametrize("hooked", [False, True])
def test_a_lost_rank_is_an_error_of_backward(hooked: bool, tmp_path: Path) -> None:
    """DDP waits for its futures in C++: an error that only Python knows would be taken for tensors there."""
    with Ranks(2, f"{HERE}:lose_a_rank", tmp_path, hooked=hooked) as ranks:
        assert ranks.processes[1].wait(100) == -9
        assert ranks.processes[0].wait(100) == 0, ranks.log(0)
    assert "rank 1" in json.loads((tmp_path / "result-0").read_text())["error"]


def test_the_hook_follows_the_planner_until_it_is_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "remaining_s"
    file.write_text("50\n")
    monkeypatch.setenv("PACELINE_REMAINING_S", "1000")
    monkeypatch.setenv("PACELINE_REMAINING_FILE", str(file))
    assert read_settings().remaining_file == str(file)
    hook = PriorityHook()
    assert 40 < hook.remaining_s() <= 50
    assert hook.priority_of(0, True) in {priority(s, 1.0, 0, 1) for s in range(40, 51)}
    hook.set_remaining(500)
    assert 490 < hook.remaining_s() <= 500
