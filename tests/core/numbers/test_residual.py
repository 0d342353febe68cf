"""Error feedback: what rounding took comes with the next contribution, and errors do not add up."""

from typing import Any

import numpy as np
import pytest

from paceline.core.numbers import layout as layouts
from paceline.core.numbers import payload as payloads
from paceline.core.numbers.halves import error_bound
from paceline.core.numbers.layout import BLOCK_ELEMENTS, FLOAT32, PLACE, SUM
from paceline.core.numbers.residual import Given, GivenPart, add_residual, warm_up
from tests.core.numbers.reduction import new_layout

NUMBERS = BLOCK_ELEMENTS + 705
ELEMENTS = 352


def reduce_given(arrays: list[Any], elements: int = ELEMENTS) -> tuple[Any, Any]:
    """The sum in the 16-bit form, and what the workers agreed on."""
    workers = len(arrays)
    layout = new_layout(arrays[0].size, FLOAT32, SUM, elements, workers, 16)
    place = np.zeros(1, dtype=PLACE).view(np.recarray)[0]
    agreed = np.zeros(layout.blocks + layout.patches, dtype=np.int32)
    result = np.empty_like(arrays[0])
    payload = np.zeros(elements, dtype=np.int32)
    for local in range(layout.chunks):
        layouts.find_place(layout, local, place)
        total = np.zeros(elements, dtype=np.int64)
        for array in arrays:
            payload[:] = 0
            payloads.write_chunk(layout, place, array.ctypes.data, FLOAT32, agreed, payload.ctypes.data)
            total += payload
        payload[:] = ((total + 2**31) % 2**32 - 2**31).astype(np.int32)
        assert (
            payloads.read_chunk(layout, place, result.ctypes.data, FLOAT32, SUM, agreed, payload.ctypes.data)
            == 0
        )
    return result, agreed


def _given(values: Any, agreed: Any, workers: int, elements: int = ELEMENTS) -> Given:
    return Given(values, [GivenPart(values.size, agreed, elements, workers)])


def _gradient(seed: int, scale: float = 1.0) -> Any:
    rng = np.random.default_rng(seed)
    spread = np.repeat(2.0 ** rng.integers(-6, 7, NUMBERS // 64 + 1), 64)[:NUMBERS]
    return (rng.standard_normal(NUMBERS) * spread * scale).astype(np.float32)


def test_a_contribution_and_its_residual_are_the_number() -> None:
    """For one worker, the sum is its rounded contribution: what is missing is the residual, to the last bit."""
    values = _gradient(1)
    result, agreed = reduce_given([values])
    residual = np.zeros_like(values)
    add_residual(residual, _given(values, agreed, 1))
    assert (result + residual == values).all()
    assert (residual != 0).any()


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_errors_do_not_add_up(workers: int) -> None:
    """After twenty sums of the same gradients, all that is lost is the last residuals; without feedback, twenty."""
    steps = 20
    gradients = [_gradient(worker) for worker in range(workers)]
    true = steps * np.sum([gradient.astype(np.float64) for gradient in gradients], axis=0)
    with_feedback = np.zeros(NUMBERS)
    given: list[Given | None] = [None] * workers
    for _ in range(steps):
        arrays = [gradient.copy() for gradient in gradients]
        for array, before in zip(arrays, given, strict=True):
            if before is not None:
                add_residual(array, before)
        result, agreed = reduce_given(arrays)
        with_feedback += result
        given = [_given(array, agreed, workers) for array in arrays]
    last = np.zeros(NUMBERS)
    for before in given:
        residual = np.zeros(NUMBERS, np.float32)
        assert before is not None
        add_residual(residual, before)
        last += residual
    # What is left over is float32's own rounding: of results, and of x + r.
    np.testing.assert_allclose(with_feedback + last, true, rtol=0, atol=steps * workers * 64 * 2.0**-21)
    without = steps * reduce_given(gradients)[0].astype(np.float64)
    assert np.abs(without - true).max() > 5 * np.abs(with_feedback - true).max()
    peak = max(float(np.abs(gradient).max()) for gradient in gradients) * 1.01
    assert np.abs(with_feedback - true).max() <= 2 * error_bound([peak] * workers, peak)


def test_patches_that_are_not_finite_leave_nothing() -> None:
    values, other = _gradient(1), _gradient(2)
    other[100] = np.nan
    other[5000] = np.inf
    _, agreed = reduce_given([values, other])
    residual = np.zeros_like(values)
    for array in (values, other):
        add_residual(residual, _given(array, agreed, 2))
        assert np.isfinite(residual).all()
        assert (residual[96:104] == 0).all()
    assert (residual != 0).any()


def test_a_number_that_would_overflow_goes_as_it_is() -> None:
    largest = np.finfo(np.float32).max
    values = np.full(NUMBERS, 0.75 * largest, dtype=np.float32)
    values[1::2] = 1.0
    values[::2] *= np.linspace(0.5, 1.0, values[::2].size, dtype=np.float32)
    _, agreed = reduce_given([values])
    residual = np.zeros_like(values)
    add_residual(residual, _given(values, agreed, 1))
    assert (np.abs(residual) > 1e30).any(), "steps beyond 2**100"
    following = np.where(residual > 0, largest, -largest).astype(np.float32)
    kept = following.copy()
    add_residual(following, _given(values, agreed, 1))
    assert np.isfinite(following).all()
    assert (following[np.abs(residual) > 1e32] == kept[np.abs(residual) > 1e32]).all()


def test_tiny_numbers_are_whole_steps() -> None:
    """Steps end at 2**-149: what is that small is not rounded at all."""
    values = (_gradient(3) * np.float32(2.0**-146)).astype(np.float32)
    _, agreed = reduce_given([values])
    residual = np.zeros_like(values)
    add_residual(residual, _given(values, agreed, 1))
    assert (residual == 0).all()


def test_parts_of_several_switches_are_parts_of_the_residual() -> None:
    values = np.concatenate([_gradient(1), _gradient(2), np.ones(100, np.float32)])
    whole = np.zeros_like(values)
    parts, begin = [], 0
    for size, elements in ((NUMBERS, 352), (NUMBERS, 96), (100, 352)):
        part = values[begin : begin + size]
        agreed = reduce_given([part], elements)[1]
        add_residual(whole[begin : begin + size], _given(part, agreed, 1, elements))
        parts.append(GivenPart(size, agreed, elements, 1))
        begin += size
    together = np.zeros_like(values)
    add_residual(together, Given(values, parts))
    assert together.tobytes() == whole.tobytes()
    assert (whole[-100:] == 0).all(), "what travels in 32 bits has none"


def test_what_travelled_in_32_bits_has_no_residual() -> None:
    values = _gradient(1)
    blocks = int(new_layout(NUMBERS, FLOAT32, SUM, ELEMENTS, 1, 32).blocks)
    kept = values.copy()
    add_residual(values, _given(kept, np.zeros(blocks, np.int32), 1))
    assert (values == kept).all()


def test_warm_up_changes_nothing() -> None:
    warm_up()
