"""Tensors through the payloads of packets: exact where they promise to be, within the stated bound elsewhere."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from paceline.core.numbers import blocks as tensors
from paceline.core.numbers import layout as tensors_layout
from paceline.core.numbers import payload as payloads
from paceline.core.numbers.layout import AVG, BLOCK_ELEMENTS, PLACE, SUM
from tests.core.numbers.reduction import from_bfloat16, new_layout, reduce_all, to_bfloat16


def _random(seed: int, numbers: int, spread: int = 20) -> Any:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(numbers) * 2.0 ** rng.integers(-spread, spread, numbers)).astype(np.float32)


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("numbers", [1, 7])
def test_small_tensors_are_summed_exactly_and_rounded_once(workers: int, numbers: int) -> None:
    arrays = [_random(seed, numbers, 120) for seed in range(workers)]
    result = reduce_all(arrays, "float32")
    for i in range(numbers):
        true = sum((Fraction(float(array[i])) for array in arrays), Fraction(0))
        nearest = np.float32(float(true)) if abs(true) < 2**127 else None
        # float(Fraction) rounds once to 53 bits; a double rounding would need 29 zeros or a tie in between.
        assert nearest is None or result[i] == nearest


def test_the_exact_form_breaks_ties_by_what_is_far_below() -> None:
    cases = [
        ([2.0**24, 1.0, 2.0**-140], 2.0**24 + 2),
        ([2.0**24, 1.0, -(2.0**-140)], 2.0**24),
        ([2.0**24, 1.0, 0.0], 2.0**24),
        ([2.0**100, -(2.0**100), 2.0**-149], 2.0**-149),
        ([-(2.0**24), -1.0, -(2.0**-149)], -(2.0**24 + 2)),
        ([1.5, -1.5, 0.0], 0.0),
        ([3.0e38, 3.0e38, 0.0], np.inf),
        ([3.0e38, 3.0e38, -3.0e38], 3.0e38),
    ]
    for values, expected in cases:
        result = reduce_all([np.array([value], dtype=np.float32) for value in values], "float32")
        assert result[0] == np.float32(expected), values


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("numbers", [3, 3 * BLOCK_ELEMENTS // 2])
def test_nan_and_infinities_come_out_as_a_float_sum_gives_them(dtype: str, numbers: int) -> None:
    first, second = np.ones(numbers, dtype=np.float32), np.full(numbers, 0.5, dtype=np.float32)
    first[0], second[0] = np.inf, -np.inf
    first[1] = -np.inf
    second[2] = np.nan
    if dtype == "bfloat16":
        result = from_bfloat16(reduce_all([to_bfloat16(first), to_bfloat16(second)], dtype))
    elif dtype == "float16":
        halves = [first.astype(np.float16).view(np.uint16), second.astype(np.float16).view(np.uint16)]
        result = reduce_all(halves, dtype).view(np.float16).astype(np.float32)
    else:
        result = reduce_all([first, second], dtype)
    assert np.isnan(result[0])
    assert result[1] == -np.inf
    assert np.isnan(result[2])
    assert (result[3:] == 1.5).all()


@pytest.mark.parametrize("workers", [1, 2, 5, 8, 64])
@pytest.mark.parametrize("nonfinite", [False, True])
def test_blocks_keep_the_stated_bound(workers: int, nonfinite: bool) -> None:
    numbers = BLOCK_ELEMENTS + 500
    arrays = [_random(seed + 10, numbers, 6) for seed in range(workers)]
    if nonfinite:
        for array in arrays:
            array[[3, BLOCK_ELEMENTS + 5]] = np.inf
    result = reduce_all(arrays, "float32", elements=352)
    true = np.sum([array.astype(np.float64) for array in arrays], axis=0)
    block = 352 * max(1, BLOCK_ELEMENTS // 352)
    for start in range(0, numbers, block):
        part = slice(start, start + block)
        finite = np.isfinite(true[part])
        peak = max(float(np.abs(array[part][finite]).max()) for array in arrays)
        bound = tensors.error_bound(peak, workers, nonfinite)
        rounding = np.abs(true[part][finite]) * 2.0**-24
        assert (np.abs(result[part][finite] - true[part][finite]) <= bound + rounding).all()
        assert np.isposinf(result[part][~finite]).all()


def test_the_bound_is_reached_within_a_factor_of_four() -> None:
    # Otherwise the bound would say nothing.
    arrays = [np.full(2 * BLOCK_ELEMENTS, 1.0 / 3.0, dtype=np.float32) for _ in range(3)]
    arrays[0][0] = 1000.0
    result = reduce_all(arrays, "float32", elements=2048)
    true = sum(array.astype(np.float64) for array in arrays)
    error = np.abs(result.astype(np.float64) - true)[1:BLOCK_ELEMENTS].max()
    assert tensors.error_bound(1000.0, 3) / 4 <= error + 2.0**-25
    assert error <= tensors.error_bound(1000.0, 3) + 2.0**-25


def test_tiny_and_huge_numbers_survive() -> None:
    numbers = BLOCK_ELEMENTS
    for value in (1e-45, 1e-40, 3e38, 1.0):
        arrays = [np.full(numbers, value, dtype=np.float32), np.zeros(numbers, dtype=np.float32)]
        assert (reduce_all(arrays, "float32") == np.float32(value)).all()
    both = [np.full(numbers, 3e38, dtype=np.float32)] * 2
    assert np.isposinf(reduce_all(both, "float32")).all()
    assert (reduce_all(both, "float32", "avg") == np.float32(3e38)).all()


@pytest.mark.parametrize("numbers", [5, 500])
def test_integers_wrap_and_averages_go_towards_zero(numbers: int) -> None:
    arrays = [np.full(numbers, value, dtype=np.int32) for value in (2**31 - 1, 1, -7)]
    assert (reduce_all(arrays, "int32") == np.int32(-(2**31) - 7 + 2**32)).all()
    small = [np.full(numbers, value, dtype=np.int32) for value in (-4, -3, 0)]
    assert (reduce_all(small, "int32", "avg") == -2).all()


@pytest.mark.parametrize("workers", [3, 4])
@pytest.mark.parametrize("numbers", [4, 5000])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_averages(workers: int, numbers: int, dtype: str) -> None:
    arrays = [np.full(numbers, float(worker + 1), dtype=np.float32) for worker in range(workers)]
    mean = np.float32((workers + 1) / 2)
    if dtype == "bfloat16":
        assert (from_bfloat16(reduce_all([to_bfloat16(a) for a in arrays], dtype, "avg")) == mean).all()
    elif dtype == "float16":
        halves = [array.astype(np.float16).view(np.uint16) for array in arrays]
        assert (reduce_all(halves, dtype, "avg").view(np.float16) == mean).all()
    else:
        assert (reduce_all(arrays, dtype, "avg") == mean).all()


def test_workers_that_mean_different_tensors_are_told() -> None:
    place = np.zeros(1, dtype=PLACE).view(np.recarray)[0]
    exponents = np.zeros(10, dtype=np.int32)
    payload = np.zeros(352, dtype=np.int32)
    for numbers in (3, 1000):
        total = np.zeros(352, dtype=np.int32)
        array = np.ones(numbers + 1, dtype=np.float32)
        for extra, op in ((0, SUM), (1, SUM)):
            layout = new_layout(numbers + extra, 0, op, 352, 2)
            tensors_layout.find_place(layout, 0, place)
            payload[:] = 0
            payloads.write_chunk(layout, place, array.ctypes.data, 0, exponents, payload.ctypes.data)
            total += payload
        status = payloads.read_chunk(layout, place, array.ctypes.data, 0, AVG, exponents, total.ctypes.data)
        assert status == tensors.DISAGREED
