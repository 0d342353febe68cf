"""Parts and entry points: the same results, machine code once, and what is on disk is enough."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from paceline.numba_linking import entry, part

OPTIONS = {"nogil": True, "error_model": "numpy", "_nrt": False}
compiled_only = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")

_SCENE = """
import numpy as np
from paceline.numba_linking import entry, part

@part
def third(x):
    return 3 * x

@part
def sixth(x):
    return third(x) + third(x)

def sums(a):
    total = 0
    for i in range(a.shape[0]):
        total += sixth(a[i]) + third(a[i])
    return total

sums = entry(sums)
print(sums(np.arange(4)), sum(sums.stats.cache_hits.values()))
"""


def _libraries(dispatcher: object) -> list[object]:
    return [result.library for result in dispatcher.overloads.values()]  # type: ignore[attr-defined]


def test_a_diamond_of_parts_gives_the_same_as_plain_python() -> None:
    def low(x: int) -> int:
        return x + 1

    low_part = part(low, **OPTIONS)

    def left(x: int) -> int:
        return int(low_part(x)) * 2

    def right(x: int) -> int:
        return int(low_part(x)) * 3

    left_part, right_part = part(left, **OPTIONS), part(right, **OPTIONS)

    def top(a: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> int:
        total = 0
        for i in range(a.shape[0]):
            total += left_part(a[i]) - right_part(a[i])
        return total

    assert numba.njit(**OPTIONS)(top)(np.arange(10)) == -55


@compiled_only
def test_a_part_has_no_machine_code_and_an_entry_has_a_twin_for_compiled_callers() -> None:
    def inner(x: int) -> int:
        return x * x

    inner_entry = entry(inner, **OPTIONS)

    def outer(x: int) -> int:
        return int(inner_entry(x)) + 1

    assert numba.njit(**OPTIONS)(outer)(7) == 50
    assert not inner_entry.overloads, "compiled for a compiled caller, it is not compiled for Python"
    assert inner_entry(8) == 64
    assert len(inner_entry.overloads) == 1
    alone = part(inner, **OPTIONS)
    numba.njit(**OPTIONS)(lambda x: alone(x))(3)
    assert [library.get_pointer_to_function("cpython") for library in _libraries(alone)] == [0]  # type: ignore[attr-defined]


@compiled_only
def test_what_is_on_disk_is_enough(tmp_path: Path) -> None:
    script = tmp_path / "scene.py"
    script.write_text(_SCENE)
    root = Path(__file__).resolve().parent.parent
    environment = {
        **os.environ,
        "PYTHONPATH": str(root / "src"),
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
    }
    found = [
        subprocess.run(
            [sys.executable, str(script)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert found == [["54", "0"], ["54", "1"]]
