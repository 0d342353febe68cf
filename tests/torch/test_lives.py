"""A short form of `python -m tests.torch.lives`: groups that are made, used and ended leave nothing."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.torch.lives import left_over, live_through


def test_lives_of_groups_leave_nothing(tmp_path: Path) -> None:
    assert left_over(live_through("host", 12, 3, tmp_path, 110)) == []


def test_what_is_left_is_told() -> None:
    held = {"threads": 1, "kernel_threads": 4, "files": 10, "memory_mb": 200}
    grown = held | {"files": 11, "memory_mb": 300, "threads": 2}
    assert left_over([{"held": [held, held]}]) == []
    assert left_over([{"held": [held, grown]}]) == [
        "rank 0: 2 threads",
        "rank 0: files 10, at the end 11",
        "rank 0: memory_mb 200, at the end 300",
    ]
