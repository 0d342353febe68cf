"""Several processes may start cold together: each must find its own signature's code afterwards."""

import multiprocessing
import os
from pathlib import Path

import pytest

from paceline.numba_cache import folder_for


def _save_in_step(folder: str, dimensions: int, barrier: "multiprocessing.synchronize.Barrier") -> None:
    os.environ["PACELINE_CACHE"] = folder
    import numpy as np

    from paceline.dataplane.bits import compiled_inner  # noqa: F401 - sets the cache folder
    from tests.cached_function import total

    barrier.wait(timeout=60)
    total(np.ones((2,) * dimensions))


def _load(folder: str, dimensions: int, answers: "multiprocessing.Queue[tuple[int, float, int]]") -> None:
    os.environ["PACELINE_CACHE"] = folder
    import numpy as np

    from tests.cached_function import total

    value = float(total(np.ones((2,) * dimensions)))
    answers.put((dimensions, value, sum(total.stats.cache_hits.values())))


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="there is no cache without compiling")
def test_signatures_saved_at_the_same_time_keep_their_own_code(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    count = 3
    barrier = context.Barrier(count)
    writers = [
        context.Process(target=_save_in_step, args=(str(tmp_path), dimensions, barrier))
        for dimensions in range(1, count + 1)
    ]
    for process in writers:
        process.start()
    for process in writers:
        process.join(timeout=120)
        assert process.exitcode == 0
    answers = context.Queue()
    for dimensions in range(1, count + 1):
        reader = context.Process(target=_load, args=(str(tmp_path), dimensions, answers))
        reader.start()
        assert answers.get(timeout=60) == (dimensions, 2.0**dimensions, 1)
        reader.join(timeout=60)


def test_a_folder_follows_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "a.py"
    source.write_text("x = 1\n")
    first = folder_for("name", [source])
    source.write_text("x = 2\n")
    assert folder_for("name", [source]) != first
    assert first.parent == tmp_path / "cache" / "paceline"
