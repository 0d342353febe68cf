"""A small part of `make conformance`: torch's own tests in shared memory, as over Gloo."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")

from tests.torch.conformance import compare, run_path

NAMES = [
    "test_all_reduce_sum_async",
    "test_all_reduce_full_group_max",
    "test_barrier_full_group",
    "test_ddp_hook_parity_allreduce",
    "test_ddp_join_model_equivalence",
    "test_broadcast_object_list",
    "test_ddp_uneven_input_exception",
    "test_nccl_high_priority_stream",
]


def test_a_part_of_torchs_own_tests(tmp_path: Path) -> None:
    assert compare(NAMES, ["host"], 3, tmp_path) == []


def test_a_test_that_fails_is_told(tmp_path: Path) -> None:
    """A world of another size than a test needs."""
    results = run_path("host", ["test_new_subgroups_by_enumeration"], 3, tmp_path)
    assert results["test_new_subgroups_by_enumeration"][0] in ("skip", "fail")
