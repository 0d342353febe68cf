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
