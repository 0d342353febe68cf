"""Passports of real ranks: the same bits over host memory, custodians and a switch, and a changed one is found."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from paceline.passport.verify import read_run, verify
from paceline.torch.settings import read_settings
from tests.torch.ranks import run_ranks
from tests.torch.test_switch import Switch

HERE = "tests.torch.test_passport"


def reduce_some(rank: int, change: int = -1) -> Any:
    import torch
    import torch.distributed as dist

    import paceline.torch

    dist.init_process_group("paceline")
    for step in range(4):
        for i, (dtype, elements) in enumerate(
            ((torch.float32, 3000), (torch.bfloat16, 500), (torch.float16, 400), (torch.int32, 300))
        ):
            generator = torch.Generator().manual_seed(100 * step + 10 * i + rank)
            tensor = (torch.randn(elements, generator=generator) * 50).to(dtype)
            if step == change and i == 1 and rank == 0:
                tensor[7] += 64
            whole = tensor.reshape(2, -1).t()  # not contiguous: goes as a copy
            work = dist.all_reduce(whole if step == 2 else tensor, async_op=True)
            assert work is not None
            work.wait()
            tensor.zero_()  # what follows has no part in the passport
    dist.all_reduce(torch.ones(3, dtype=torch.float64))  # Gloo's own
    path = paceline.torch.status()[0]["path"]
    dist.destroy_process_group()
    return path


def test_the_same_bits_by_every_way_between_hosts_and_a_changed_one_is_found(tmp_path: Path) -> None:
    apart = {"PACELINE_HOST_REDUCE": "0", "PACELINE_JOB": "a", "NUMBA_DISABLE_JIT": "1"}
    runs = {}
    with Switch(tmp_path) as switch:
        for name, env, more in (
            ("custodians", apart, {}),
            ("switch", {**apart, "PACELINE_SWITCH": switch.address}, {}),
            ("changed", apart, {"change": 3}),
        ):
            folder = tmp_path / name
            folder.mkdir()
            env = {**env, "PACELINE_PASSPORT": str(folder / "bits")}
            paths = run_ranks(2, f"{HERE}:reduce_some", folder, env, **more)
            assert set(paths) == {"switch" if name == "switch" else "custodian"}
            runs[name] = read_run(folder)
    verdict = verify(runs["custodians"], runs["switch"])
    assert verdict.same, verdict.differences
    assert (verdict.ranks, verdict.reductions) == (2, 32)
    (found,) = verify(runs["custodians"], runs["changed"]).differences
    assert (found.reduction, found.ranks, found.occurrence) == (13, (0, 1), 4)
    assert found.tensor == "500 x bfloat16, sum"


def test_where_passports_go() -> None:
    for text, folder in (("", ""), ("0", ""), ("1", "passport"), ("out/x", "out/x")):
        assert read_settings({"PACELINE_PASSPORT": text}).passport == folder
    within = {"PACELINE_PASSPORT": "1", "PACELINE_STATUS": "/runs/r/attempts/a.1/status-0"}
    assert read_settings(within).passport == "/runs/r/attempts/a.1/passport"
