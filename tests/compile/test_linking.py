"""Parts and entry points: the same results, machine code once, and what is on disk is enough."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from numba.core.errors import NumbaError
from numba.extending import overload

from paceline.compile.decorators import compiled, compiled_apart, compiled_inner
from paceline.compile.linking import entry, part
from paceline.core.bits import popcount
from paceline.schedule.kernels import compiled as compiled_for_plans

OPTIONS = {"nogil": True, "error_model": "numpy", "_nrt": False}
compiled_only = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")

_SCENE = """
import numpy as np
from paceline.compile.linking import entry, part

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
def test_python_gets_an_error_for_a_part_and_no_crash() -> None:
    def inner(x: int) -> int:
        return x * x

    alone = part(inner, **OPTIONS)
    with pytest.raises(TypeError, match="inner is for compiled code alone"):
        alone(3)
    numba.njit(**OPTIONS)(lambda x: alone(x))(3)
    with pytest.raises(TypeError, match="inner is for compiled code alone"):
        alone(3)


@compiled_only
def test_a_lean_program_gives_the_same_as_one_in_which_everything_is_inlined() -> None:
    def low(x: int) -> int:
        return x * x + 1

    low_entry = entry(low, forceinline=True, **OPTIONS)

    def top(a: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> int:
        total = 0
        for i in range(a.shape[0]):
            total += low_entry(a[i]) - low_entry(total)
        return total

    numbers = np.arange(5)
    assert entry(top, lean=True, **OPTIONS)(numbers) == entry(top, **OPTIONS)(numbers)


@compiled_only
def test_what_is_on_disk_is_enough(tmp_path: Path) -> None:
    script = tmp_path / "scene.py"
    script.write_text(_SCENE)
    root = Path(__file__).resolve().parents[2]
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


class _Rows(NamedTuple):
    masks: Any
    values: Any


def _exchange(rows: _Rows, at: int, buffer: Any) -> None:
    for lane in range(buffer.shape[0]):
        value = rows.values[at, lane]
        rows.values[at, lane] = buffer[lane]
        buffer[lane] = value


def test_what_is_stored_after_a_popcount_stays_stored() -> None:
    """Numba dropped the store into `rows.values` while `popcount` was an inlined overload."""
    exchange = compiled_inner(_exchange)

    def count_then_exchange(rows: _Rows, at: int, buffer: Any, counter: Any) -> None:
        counter[0] += popcount(rows.masks[at])
        exchange(rows, at, buffer)

    rows = _Rows(np.full(3, 7, dtype=np.uint64), np.arange(6, dtype=np.int32).reshape(3, 2))
    buffer, counter = np.full(2, 9, dtype=np.int32), np.zeros(1, dtype=np.int64)
    compiled(count_then_exchange)(rows, 1, buffer, counter)
    assert (rows.values[1].tolist(), buffer.tolist(), counter[0]) == ([9, 9], [2, 3], 3)


def _twice(x: Any) -> Any:
    return 2 * x


@overload(_twice, inline="always")
def _twice_inlined(x: Any) -> Any:
    def twice(x: Any) -> Any:
        return 2 * x

    return twice


@compiled_only
@pytest.mark.parametrize("decorator", [compiled, compiled_for_plans])
def test_an_inlined_overload_does_not_compile(decorator: Any) -> None:
    def use(x: int) -> int:
        return int(_twice(x))

    with pytest.raises(NumbaError, match=r"use.* uses an inlined overload"):
        decorator(use)(3)


@compiled_only
@pytest.mark.parametrize("decorator", [compiled_inner, compiled_apart])
def test_nor_inside_of_a_callee(decorator: Any) -> None:
    def use(x: int) -> int:
        return int(_twice(x))

    inner = decorator(use)

    def outer(x: int) -> int:
        return int(inner(x))

    with pytest.raises(NumbaError, match="uses an inlined overload"):
        compiled(outer)(3)


@compiled_only
def test_a_recursion_does_not_compile(tmp_path: Path) -> None:
    """Parts are linked before a call back has its target: the call went nowhere, and the process died."""
    (tmp_path / "cycle.py").write_text(_CYCLE)
    done = subprocess.run(
        [sys.executable, "cycle.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1, done
    assert "is part of a recursion" in done.stderr


_CYCLE = """
from paceline.compile.decorators import compiled, compiled_apart

@compiled_apart
def even(n):
    return n == 0 or (n < 9 and odd(n - 1))

@compiled_apart
def odd(n):
    return n == 1 or (n > 1 and even(n - 1))

@compiled
def ask(n):
    return even(n)

ask(4)
"""


@compiled_only
def test_a_closure_that_costs_a_store_does_not_compile() -> None:
    def use(rows: _Rows, at: int) -> int:
        double = lambda x: 2 * x  # noqa: E731
        value = rows.values[at, 0]
        rows.values[at, 0] = value + 1
        return int(double(value))

    rows = _Rows(np.ones(1, dtype=np.uint64), np.ones((1, 1), dtype=np.int32))
    try:
        assert compiled(use)(rows, 0) == 2
    except NumbaError as error:
        assert "dropped a store" in str(error)  # noqa: PT017
    else:
        assert rows.values[0, 0] == 2


def test_everything_is_compiled_through_the_guard() -> None:
    """No source calls Numba's own decorators, or inlines an overload, behind the guard's back."""
    package = Path(__file__).resolve().parents[2] / "src" / "paceline"
    found = []
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
            imports = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            from_numba = isinstance(node, ast.ImportFrom) and (node.module or "").startswith("numba")
            own = isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "numba"
            if (own and name in _DECORATORS) or (from_numba and set(imports) & _DECORATORS):
                found.append(f"{path.relative_to(package)}:{node.lineno}")
    assert {place.split(":")[0] for place in found} == {"compile/linking.py"}, found


_DECORATORS = {
    *("jit", "njit", "generated_jit", "vectorize", "guvectorize", "stencil", "cfunc", "jitclass"),
    *("overload", "overload_method", "overload_attribute", "register_jitable"),
}
