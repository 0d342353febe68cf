"""The 16-bit form: within its bound, the same bits in any order and by any path, exact wherever it can be."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.numbers import halves
from paceline.core.numbers import layout as tensors_layout
from paceline.core.numbers import payload as payloads
from paceline.core.numbers.layout import BLOCK_ELEMENTS, DTYPES, HALVES, PATCH, PLACE, SUM
from tests.core.numbers.reduction import (
    digest_of_sums,
    from_bfloat16,
    new_layout,
    reduce_all,
    to_bfloat16,
)

ROUNDING = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Of a number, at most: half of its last place, or all of it where a halved one would be cut (a float ring's)."""
LEAST = {"float32": 2.0**-149, "bfloat16": 2.0**-133, "float16": 2.0**-24}


def _cast(values: Any, dtype: str) -> Any:
    if dtype == "bfloat16":
        return to_bfloat16(values)
    return values.astype(np.float16).view(np.uint16) if dtype == "float16" else values.astype(np.float32)


def _floats(result: Any, dtype: str) -> Any:
    if dtype == "bfloat16":
        return from_bfloat16(result).astype(np.float64)
    return (result.view(np.float16) if dtype == "float16" else result).astype(np.float64)


def _patches(numbers: int, elements: int) -> list[Any]:
    """The numbers of each patch, and of the block it belongs to."""
    layout = new_layout(numbers, DTYPES["bfloat16"], SUM, elements, 1, 16)
    assert layout.mode == HALVES
    block = int(layout.chunk_numbers * layout.block_chunks)
    found = []
    for first in range(0, numbers, 2 * elements):
        end = min(first + 2 * elements, numbers)
        lows = (end - first + 1) // 2
        for begin, stop in ((first, first + lows), (first + lows, end)):
            for at in range(begin, stop, PATCH):
                start = first // block * block
                found.append((slice(at, min(at + PATCH, stop)), slice(start, min(start + block, numbers))))
    return found


def _check(arrays: list[Any], dtype: str, elements: int, op: str = "sum") -> float:
    """Every number is within the bound; the largest error in units of the bound."""
    inputs = [_floats(array, dtype) for array in arrays]
    result = _floats(reduce_all(arrays, dtype, op, elements, wire=16), dtype)
    share = 1.0 / len(arrays) if op == "avg" else 1.0
    with np.errstate(invalid="ignore"):
        true = np.sum(inputs, axis=0) * share
    worst = 0.0
    peaks_of = [np.where(np.isfinite(values), np.abs(values), 0.0) for values in inputs]
    for patch, block in _patches(arrays[0].size, elements):
        unfinite = sum(not np.isfinite(values[patch]).all() for values in inputs)
        peaks = [float(values[patch].max()) for values in peaks_of]
        bound = halves.error_bound(peaks, max(float(values[block].max()) for values in peaks_of), unfinite)
        finite = np.isfinite(true[patch])
        error = np.abs(result[patch][finite] - true[patch][finite])
        allowed = bound * share + (np.abs(true[patch][finite]) + bound) * ROUNDING[dtype] + LEAST[dtype]
        assert (error <= allowed).all()
        np.testing.assert_array_equal(result[patch][~finite], true[patch][~finite])
        if bound:
            worst = max(worst, float((error / (bound * share)).max(initial=0.0)))
    return worst


def _spread(seed: int, numbers: int, spread: int) -> Any:
    """Numbers whose size changes from patch to patch, by up to 2**spread either way."""
    rng = np.random.default_rng(seed)
    scale = np.repeat(2.0 ** rng.integers(-spread, spread + 1, numbers // 64 + 1), 64)[:numbers]
    return rng.standard_normal(numbers) * scale


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("workers", [1, 2, 5, 8, 64])
def test_every_number_is_within_the_bound(dtype: str, workers: int) -> None:
    numbers = BLOCK_ELEMENTS + 705
    arrays = [_cast(_spread(seed, numbers, 6), dtype) for seed in range(workers)]
    for elements in (96, 352):
        _check(arrays, dtype, elements)


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    workers=st.integers(1, 64),
    elements=st.sampled_from([96, 128, 352, 2048]),
    spread=st.integers(0, 12),
    scale=st.integers(-120, 100),
    strange=st.integers(0, 6),
    op=st.sampled_from(["sum", "avg"]),
)
def test_any_tensor_is_within_the_bound(
    seed: int, dtype: str, workers: int, elements: int, spread: int, scale: int, strange: int, op: str
) -> None:
    rng = np.random.default_rng(seed)
    numbers = BLOCK_ELEMENTS + 1 + int(rng.integers(0, 2 * elements))
    scale = 0 if dtype == "float16" else scale
    arrays = []
    for worker in range(workers):
        values = _spread(seed + worker, numbers, spread) * 2.0**scale
        where = rng.integers(0, numbers, strange if worker % 3 == 0 else 0)
        values[where] = rng.choice([np.nan, np.inf, -np.inf], len(where))
        with np.errstate(over="ignore"):
            arrays.append(_cast(values, dtype))
    _check(arrays, dtype, elements, op)


def test_the_bound_is_reached_within_a_factor_of_four() -> None:
    # Otherwise the bound would say nothing.
    numbers = BLOCK_ELEMENTS + 2048
    arrays = [np.full(numbers, 1.0 / 3.0, dtype=np.float32) for _ in range(3)]
    arrays[0][::PATCH] = 1000.0
    assert _check(arrays, "float32", 2048) >= 0.25


def test_numbers_of_few_bits_are_summed_exactly() -> None:
    numbers = BLOCK_ELEMENTS + 1
    arrays = [np.random.default_rng(seed).integers(-255, 256, numbers) for seed in range(8)]
    total = np.sum(arrays, axis=0).astype(np.float32)
    result = reduce_all([array.astype(np.float32) for array in arrays], "float32", elements=352, wire=16)
    assert (result == total).all()
    assert (
        from_bfloat16(reduce_all([to_bfloat16(array) for array in arrays], "bfloat16", wire=16)) != 0
    ).any()


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 33, 64])
def test_the_largest_sums_fit(workers: int) -> None:
    numbers = BLOCK_ELEMENTS + 1
    for value in (1.0, -1.0, 1.9921875, -1.9921875):
        arrays = [to_bfloat16(np.full(numbers, value)) for _ in range(workers)]
        for values in arrays:
            values[1::2] ^= np.uint16(0x8000)  # both signs in one lane
        _check(arrays, "bfloat16", 96)


def test_tiny_and_huge_numbers_survive() -> None:
    numbers = BLOCK_ELEMENTS + 1
    for value in (2.0**-133, 1e-38, 3e38):
        arrays = [to_bfloat16(np.full(numbers, value)), to_bfloat16(np.zeros(numbers))]
        assert reduce_all(arrays, "bfloat16", wire=16).tobytes() == arrays[0].tobytes()
    both = [to_bfloat16(np.full(numbers, 3e38))] * 2
    assert np.isposinf(from_bfloat16(reduce_all(both, "bfloat16", wire=16))).all()
    assert reduce_all(both, "bfloat16", "avg", wire=16).tobytes() == both[0].tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("workers", [1, 2, 8, 64])
def test_nan_and_infinities_come_out_as_a_float_sum_gives_them(dtype: str, workers: int) -> None:
    numbers = BLOCK_ELEMENTS + 300
    arrays = [np.ones(numbers) for _ in range(workers)]
    for array in arrays:
        array[5] = np.inf  # on all workers
        array[6] = -np.inf
    arrays[0][[0, 200]] = np.inf
    arrays[-1][[1, 201, numbers - 1]] = -np.inf
    arrays[0][[2, 202]] = np.nan
    arrays[-1][0] = -np.inf
    _check([_cast(array, dtype) for array in arrays], dtype, 96)


def test_patches_without_a_nan_keep_their_precision() -> None:
    numbers = BLOCK_ELEMENTS + 300
    plain = [to_bfloat16(_spread(seed, numbers, 3)) for seed in range(4)]
    struck = [array.copy() for array in plain]
    struck[1][500] = 0x7F80
    expected = reduce_all(plain, "bfloat16", elements=352, wire=16)
    result = reduce_all(struck, "bfloat16", elements=352, wire=16)
    assert result[500] == 0x7F80
    differing = np.flatnonzero(result != expected)
    assert differing.max() - differing.min() < PATCH


def test_workers_that_use_different_wires_are_told() -> None:
    place = np.zeros(1, dtype=PLACE).view(np.recarray)[0]
    array = to_bfloat16(np.ones(BLOCK_ELEMENTS + 1))
    total, payload = np.zeros(352, np.int32), np.zeros(352, np.int32)
    for wire in (32, 16):
        layout = new_layout(array.size, DTYPES["bfloat16"], SUM, 352, 2, wire)
        exponents = np.zeros(int(layout.blocks + layout.patches), np.int32)
        tensors_layout.find_place(layout, 0, place)
        payloads.write_chunk(layout, place, array.ctypes.data, 1, exponents, payload.ctypes.data)
        total += payload
    status = payloads.read_chunk(layout, place, array.ctypes.data, 1, SUM, exponents, total.ctypes.data)
    assert status == payloads.DISAGREED


def test_any_bytes_are_read_without_harm() -> None:
    """A result that nobody could have sent gives a number or a refusal, and touches nothing else."""
    rng = np.random.default_rng(3)
    workers, numbers, elements = 5, BLOCK_ELEMENTS + 77, 96
    layout = new_layout(numbers, DTYPES["float16"], SUM, elements, workers, 16)
    place = np.zeros(1, dtype=PLACE).view(np.recarray)[0]
    memory = np.zeros(numbers + 2, np.uint16)
    exponents = np.full(int(layout.blocks + layout.patches), -149, np.int32)
    exponents[layout.blocks :] = rng.integers(0, workers + 1, int(layout.patches)) << 16 | 1024
    refused = 0
    for local in range(int(layout.chunks)):
        tensors_layout.find_place(layout, local, place)
        payload = rng.integers(-(2**31), 2**31, elements).astype(np.int32)
        address = memory[1:].ctypes.data
        status = payloads.read_chunk(layout, place, address, 2, SUM, exponents, payload.ctypes.data)
        refused += status == payloads.DISAGREED
    assert refused > 0
    assert memory[0] == memory[-1] == 0


def test_compiled_and_interpreted_sums_have_the_same_bits() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "tests.core.numbers.reduction"],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert shown.stdout.strip() == digest_of_sums()
