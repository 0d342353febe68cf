"""Several processes may start cold together: each must find its own signature's code afterwards."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core import caching

from paceline.compile.cache import folder_of, is_on_disk, kept_on_disk
from paceline.compile.linking import njit
from paceline.compile.sources import SourceTree
from paceline.errors import UserError
from tests.compile.cached_function import total


def _save_in_step(folder: str, dimensions: int, barrier: "multiprocessing.synchronize.Barrier") -> None:
    os.environ["PACELINE_CACHE"] = folder
    import numpy as np

    from paceline.core.bits import compiled_inner  # noqa: F401 - sets the cache folder
    from tests.compile.cached_function import total

    barrier.wait(timeout=60)
    total(np.ones((2,) * dimensions))


def _load(folder: str, dimensions: int, answers: "multiprocessing.Queue[tuple[int, float, int]]") -> None:
    os.environ["PACELINE_CACHE"] = folder
    import numpy as np

    from tests.compile.cached_function import total

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


def test_a_folder_is_named_by_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    source = Path(__file__).parent / "cached_function.py"
    folder = folder_of(total)
    assert folder == tmp_path / "paceline" / f"cached_function-{SourceTree().key(source)[:16]}"
    assert not is_on_disk(total)
    (folder / "of_its_file").mkdir(parents=True)
    (folder / "of_its_file" / "cached_function.total-7.py311.1.nbi").touch()
    assert is_on_disk(total)


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="there is no cache without compiling")
def test_where_nothing_can_be_written_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user without a home, on a file system that takes nothing."""
    monkeypatch.setenv("PACELINE_CACHE", "/proc/nowhere")
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [caching.UserProvidedCacheLocator])
    with pytest.raises(UserError, match=r"/proc/nowhere/paceline: compiled code .* export PACELINE_CACHE="):
        kept_on_disk(njit(cache=True), lambda: 1)


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="there is no cache without compiling")
def test_what_a_module_takes_it_must_import(tmp_path: Path) -> None:
    """Numba would load the old code although the named tuple has its fields in another order."""
    (tmp_path / "scene.py").write_text(_TAKES_A_STRANGER)
    environment = {**os.environ, "PACELINE_CACHE": str(tmp_path)}
    command = [sys.executable, "scene.py"]
    for imports in ("", "from paceline.core.switch import memory\n"):
        (tmp_path / "taking.py").write_text(imports + _TAKING)
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        if imports:
            assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
        else:
            assert done.returncode == 1
            assert "takes something of paceline.core.switch.memory, which it does not import" in done.stderr


_TAKING = """
from paceline.compile.linking import njit
from paceline.compile.cache import kept_on_disk

def count(memory):
    return memory.slots.shape[0]

count = kept_on_disk(njit(cache=True), count)
"""

_TAKES_A_STRANGER = """
import sys
sys.path.insert(0, ".")
from taking import count
from paceline.core.switch.memory import new_memory
print(count(new_memory(1, 0)))
"""
