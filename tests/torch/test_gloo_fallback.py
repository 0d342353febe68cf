"""Collectives that are not ours: every one that torch has is handed over, and none stands still."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.torch.ranks import run_ranks

HERE = "tests.torch.test_gloo_fallback"


def test_every_collective_of_torch_is_the_classs_own() -> None:
    from paceline.torch.gloo_fallback import collectives
    from paceline.torch.process_group import PacelineGroup

    names = collectives()
    assert {"barrier", "broadcast", "all_to_all_single", "reduce_scatter", "send", "recv"} <= set(names)
    assert all(name in PacelineGroup.__dict__ for name in names)


def drops_tensors(rank: int, rounds: int) -> dict[str, Any]:
    """Gloo's threads drop the tensors of one collective while the next is called."""
    import torch
    import torch.distributed as dist

    import paceline.torch  # noqa: F401 (registers the backend)

    dist.init_process_group("paceline")
    for _ in range(rounds):
        tensor = torch.ones(2)
        dist.reduce(tensor, 0)
        del tensor
        dist.barrier()
    dist.destroy_process_group()
    return {}


def test_no_rank_stands_still_between_python_and_gloo(tmp_path: Path) -> None:
    run_ranks(2, f"{HERE}:drops_tensors", tmp_path, {"PACELINE_TEST_STACKS_S": "60"}, rounds=2000)
