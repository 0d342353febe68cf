"""Which reducer a group gets, seen from its status."""

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.torch.ranks import run_ranks

HERE = "tests.torch.reduce.test_choose"


def on_two_servers(rank: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    import paceline.torch

    os.environ["PACELINE_SERVER"] = f"s{rank // 2}"
    dist.init_process_group("paceline")
    value = torch.full((5000,), float(rank + 1))
    dist.all_reduce(value)
    status = paceline.torch.status()[0]
    dist.destroy_process_group()
    return {"sum": value[4999].item(), "workers": status["workers"], "host_ranks": status["host_ranks"]}


def test_slots_of_one_machine_that_stand_for_servers_are_hosts_of_their_own(tmp_path: Path) -> None:
    # Interpreted: nobody waits for a compiler.
    results = run_ranks(4, f"{HERE}:on_two_servers", tmp_path, {"NUMBA_DISABLE_JIT": "1"})
    assert results == [{"sum": 10.0, "workers": 2, "host_ranks": 2}] * 4


def on_uneven_servers(rank: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    os.environ["PACELINE_SERVER"] = "s0" if rank < 2 else "s1"
    dist.init_process_group("paceline")
    found = {}
    for name, kind in (("float", torch.float32), ("half", torch.bfloat16), ("int", torch.int32)):
        value = torch.full((5000,), rank + 1, dtype=kind)
        dist.all_reduce(value)
        found[name] = value[4999].item()
    dist.destroy_process_group()
    return found


def test_a_server_with_one_rank_sums_with_a_server_that_has_two(tmp_path: Path) -> None:
    results = run_ranks(3, f"{HERE}:on_uneven_servers", tmp_path, {"NUMBA_DISABLE_JIT": "1"})
    assert results == [{"float": 6.0, "half": 6.0, "int": 6}] * 3
