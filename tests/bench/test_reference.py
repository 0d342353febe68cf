"""Whether a result counts as right: what must pass, and what must not."""

import numpy as np
import pytest

from paceline.bench.reference import TILE, Reference, digest, tile
from paceline.core.numbers.fixedpoint import block_exponent, decode_f32, encode_f32
from tests.core.numbers.reduction import from_bfloat16, reduce_all, to_bfloat16

RANKS = 4
LENGTH = 5_000


def fixed_point_sum(length: int) -> np.ndarray:
    """The sum as workers and switch make it, one block for all."""
    tiles = [tile(rank, "float32", length) for rank in range(RANKS)]
    exponent = max(block_exponent(values) for values in tiles)
    total = np.zeros(length, np.int32)
    for values in tiles:
        ints = np.zeros(length, np.int32)
        assert encode_f32(values, exponent, RANKS, ints) == 0
        total += ints
    result = np.zeros(length, np.float32)
    assert decode_f32(total, exponent, RANKS, result) == 0
    return result


def test_the_cores_fixed_point_sum_is_right() -> None:
    reference = Reference(RANKS, "float32", LENGTH)
    result = fixed_point_sum(LENGTH)
    assert reference.wrong(result, fixed_point=True) == 0
    assert reference.wrong(np.tile(result, 3)[:-17], fixed_point=True) == 0


def test_one_missing_contribution_is_wrong_nearly_everywhere() -> None:
    reference = Reference(RANKS, "float32", LENGTH)
    result = fixed_point_sum(LENGTH) - tile(2, "float32", LENGTH)
    assert reference.wrong(result, fixed_point=True) > 0.99 * LENGTH


def test_two_steps_too_much_are_wrong() -> None:
    reference = Reference(RANKS, "float32", LENGTH)
    result = fixed_point_sum(LENGTH)
    result[7] += 2 * reference.fixed_point[7]
    result[8] = np.nan
    assert reference.wrong(result, fixed_point=True) == 2


def test_the_fixed_point_bound_is_tight_enough_to_tell_a_float_sum() -> None:
    reference = Reference(RANKS, "float32", LENGTH)
    assert float(reference.fixed_point.max()) < 2e-6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_sum_of_floats_is_right(dtype: str) -> None:
    import torch

    kind = getattr(torch, dtype)
    total = torch.zeros(LENGTH, dtype=kind)
    for rank in range(RANKS):
        total += torch.from_numpy(tile(rank, dtype, LENGTH)).to(kind)
    assert Reference(RANKS, dtype, LENGTH).wrong(total.float().numpy(), fixed_point=False) == 0


def test_a_sum_in_sixteen_bits_is_right_within_its_own_bound_alone() -> None:
    length = 20_000
    tiles = [to_bfloat16(tile(rank, "bfloat16", length)) for rank in range(RANKS)]
    result = from_bfloat16(reduce_all(tiles, "bfloat16", elements=352, wire=16))
    assert Reference(RANKS, "bfloat16", length).wrong(result, fixed_point=True) == 0
    assert Reference(RANKS, "bfloat16", length, 32).wrong(result, fixed_point=True) > 0
    assert Reference(RANKS, "bfloat16", length).wrong(result + 0.1, fixed_point=True) > 0.9 * length


def test_integers_must_be_equal() -> None:
    reference = Reference(RANKS, "int32", LENGTH)
    total = sum(tile(rank, "int32", LENGTH).astype(np.int64) for rank in range(RANKS)).astype(np.int32)
    assert reference.wrong(total, fixed_point=True) == 0
    total[3] += 1
    assert reference.wrong(total, fixed_point=True) == 1


def test_a_tile_is_a_prime_so_that_no_shift_by_whole_packets_looks_right() -> None:
    assert all(TILE % factor for factor in range(2, int(TILE**0.5) + 1))


def test_digests_tell_results_apart() -> None:
    values = np.arange(100, dtype=np.float32)
    other = values.copy()
    other[50] = np.nextafter(other[50], np.float32(1e9))
    assert digest(values) == digest(values.copy()) != digest(other)
