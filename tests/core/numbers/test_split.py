"""Tensors cut for several switches: every number once, in the form of the whole, and bit for bit its sums."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.numbers.layout import BLOCK_ELEMENTS, DTYPES, SUM
from paceline.core.numbers.split import PART_BLOCKS, Splitter, TensorPart
from tests.core.numbers.reduction import new_layout, reduce_all, to_bfloat16

ELEMENTS = st.sampled_from([96, 320, 352, 1000, 2048])
WEIGHTS = st.lists(st.integers(1, 1000), min_size=1, max_size=6)
KINDS = st.sampled_from([("float32", 32), ("bfloat16", 16), ("bfloat16", 32), ("float16", 16), ("int32", 32)])
SIZES = st.one_of(st.integers(1, 200_000), st.integers(1, 12).map(lambda k: k * BLOCK_ELEMENTS + 1))


@settings(deadline=None, max_examples=300)
@given(sizes=st.lists(SIZES, min_size=1, max_size=8), elements=ELEMENTS, weights=WEIGHTS, kind=KINDS)
def test_every_number_goes_to_one_switch_in_the_form_of_the_whole(
    sizes: list[int], elements: int, weights: list[int], kind: tuple[str, int]
) -> None:
    dtype, wire = DTYPES[kind[0]], kind[1]
    splitter, other = Splitter(weights), Splitter(weights)
    for size in sizes:
        parts = splitter.cut(size, dtype, elements, wire)
        assert parts == other.cut(size, dtype, elements, wire), "two workers cut differently"
        assert [part.begin for part in parts] == [0, *(part.end for part in parts[:-1])]
        assert parts[-1].end == size
        assert len({part.switch for part in parts}) == len(parts) <= len(weights)
        whole = new_layout(size, dtype, SUM, elements, 4, wire)
        block = int(whole.block_chunks * whole.chunk_numbers)
        for part in parts if len(parts) > 1 else []:
            own = new_layout(part.end - part.begin, dtype, SUM, elements, 4, wire)
            assert part.begin % block == 0
            assert (part.end - part.begin) // block >= PART_BLOCKS
            assert (own.mode, own.block_chunks, own.chunk_numbers, own.chunk_patches) == (
                whole.mode,
                whole.block_chunks,
                whole.chunk_numbers,
                whole.chunk_patches,
            )


@settings(deadline=None, max_examples=100)
@given(weights=st.lists(st.integers(1, 8), min_size=2, max_size=6), blocks=st.integers(200, 2000))
def test_a_large_tensor_is_shared_by_weight(weights: list[int], blocks: int) -> None:
    size = blocks * BLOCK_ELEMENTS
    parts = Splitter(weights).cut(size, DTYPES["float32"], 2048, 32)
    assert [part.switch for part in parts] == list(range(len(weights)))
    for part, weight in zip(parts, weights, strict=True):
        assert abs((part.end - part.begin) - size * weight / sum(weights)) <= BLOCK_ELEMENTS


def test_small_tensors_take_turns_by_weight() -> None:
    splitter = Splitter([2, 1, 2])
    turns = [splitter.cut(700, DTYPES["float32"], 352, 32)[0].switch for _ in range(500)]
    assert [turns.count(s) for s in range(3)] == [200, 100, 200]
    assert set(turns[:5]) == {0, 1, 2}


def test_a_weak_switch_gets_its_part_of_large_tensors_and_no_whole_ones() -> None:
    splitter = Splitter([10, 1])
    assert {splitter.cut(40_000, DTYPES["float32"], 352, 32)[0].switch for _ in range(50)} == {0}
    assert [part.switch for part in splitter.cut(2_000_000, DTYPES["float32"], 352, 32)] == [0, 1]


def test_a_tensor_too_small_for_all_goes_to_fewer_in_turns() -> None:
    splitter = Splitter([1, 1, 1])
    block = BLOCK_ELEMENTS // 2048 * 2048
    pairs = [
        tuple(part.switch for part in splitter.cut(5 * block, DTYPES["float32"], 2048, 32)) for _ in range(6)
    ]
    assert all(len(pair) == 2 for pair in pairs)
    assert {switch for pair in pairs for switch in pair} == {0, 1, 2}


@pytest.mark.parametrize("weights", [[], [1, 0], [-1]])
def test_weights_are_above_nothing(weights: list[int]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Splitter(weights)


def _tensor(rng: Any, size: int, dtype: str) -> Any:
    if dtype == "int32":
        return rng.integers(-(2**31), 2**31, size, dtype=np.int64).astype(np.int32)
    spread = np.repeat(2.0 ** rng.integers(-12, 12, size // 500 + 1), 500)[:size]
    values = (rng.standard_normal(size) * spread).astype(np.float32)
    if dtype == "bfloat16":
        return to_bfloat16(values)
    return values.astype(np.float16).view(np.uint16) if dtype == "float16" else values


@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("weights", [[1, 1], [3, 1], [1, 2, 5]])
@pytest.mark.parametrize(
    ("dtype", "wire"), [("float32", 32), ("bfloat16", 16), ("bfloat16", 32), ("float16", 16), ("int32", 32)]
)
def test_parts_have_the_bits_of_the_whole(dtype: str, wire: int, weights: list[int], op: str) -> None:
    rng = np.random.default_rng(17)
    size = 16 * BLOCK_ELEMENTS + 1234
    arrays = [_tensor(rng, size, dtype) for _ in range(3)]
    whole = reduce_all(arrays, dtype, op, elements=352, wire=wire)
    parts = Splitter(weights).cut(size, DTYPES[dtype], 352, wire)
    assert len(parts) == len(weights)
    sums = [reduce_all([array[p.begin : p.end] for array in arrays], dtype, op, 352, wire) for p in parts]
    assert np.concatenate(sums).tobytes() == whole.tobytes()


def test_a_cut_elsewhere_has_other_bits() -> None:
    """What the rule is for: the test above would not see a difference if there were none."""
    rng = np.random.default_rng(17)
    size = 16 * BLOCK_ELEMENTS
    arrays = [_tensor(rng, size, "float32") for _ in range(3)]
    whole = reduce_all(arrays, "float32", elements=352)
    parts = [TensorPart(0, 0, 100_000), TensorPart(1, 100_000, size)]
    sums = [reduce_all([array[p.begin : p.end] for array in arrays], "float32", elements=352) for p in parts]
    assert np.concatenate(sums).tobytes() != whole.tobytes()
