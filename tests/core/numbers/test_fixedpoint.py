"""Every property is asked of the compiled module and of a twin of it that runs interpreted throughout."""

import importlib.util
from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core import config as numba_config

from paceline.core.numbers import fixedpoint as compiled


def _interpreted_twin() -> ModuleType:
    before = numba_config.DISABLE_JIT
    numba_config.DISABLE_JIT = 1
    try:
        spec = importlib.util.spec_from_file_location("fixedpoint_interpreted", compiled.__file__)
        assert spec is not None
        assert spec.loader is not None
        twin = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(twin)
    finally:
        numba_config.DISABLE_JIT = before
    return twin


interpreted = _interpreted_twin()
patient = settings(deadline=None)  # the first example of all may compile
BOTH = pytest.mark.parametrize("fp", [compiled, interpreted], ids=["compiled", "interpreted"])

FLOAT32_MAX = float(np.finfo(np.float32).max)
FLOAT32_TINY = 2.0**-149
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
EDGES = (0.0, -0.0, 1.0, -1.0, FLOAT32_MAX, -FLOAT32_MAX, FLOAT32_TINY, -FLOAT32_TINY, 2.0**-126, 2.0**127)
floats = st.one_of(st.sampled_from(EDGES), st.floats(width=32, allow_nan=False, allow_infinity=False))
blocks = st.lists(floats, min_size=1, max_size=24).map(lambda items: np.array(items, np.float32))
workers_counts = st.one_of(st.sampled_from([1, 2, 3, 4095, 4096]), st.integers(1, 4096))
int32s = st.one_of(
    st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31), 2**30, -(2**30)]), st.integers(-(2**31), 2**31 - 1)
)
exponents = st.integers(-149, 128)


def encode(fp: ModuleType, values: np.ndarray, exponent: int, workers: int) -> np.ndarray:
    out = np.full(len(values), 77, np.int32)
    assert fp.encode_f32(values, exponent, workers, out) == fp.OK
    return out


def quantum(fp: ModuleType, exponent: int, workers: int) -> Fraction:
    return Fraction(1) / Fraction(fp.scale_for(exponent, workers))


# --- exponents and room ------------------------------------------------------------------------------------


@BOTH
@patient
@given(values=blocks)
def test_exponent_is_the_smallest_that_covers_the_block(fp: ModuleType, values: np.ndarray) -> None:
    peak = float(np.abs(values.astype(np.float64)).max())
    exponent = fp.block_exponent(values)
    if peak == 0.0:
        assert exponent == fp.EXPONENT_ZERO
    else:
        assert fp.EXPONENT_MIN <= exponent <= fp.EXPONENT_MAX
        assert 2.0 ** (exponent - 1) < peak
        assert exponent == 128 or 2.0**exponent >= peak


@BOTH
@pytest.mark.parametrize(
    ("values", "exponent"),
    [([1.0], 0), ([1.5], 1), ([-0.5, 0.25], -1), ([FLOAT32_MAX], 128), ([FLOAT32_TINY], -149)],
)
def test_known_exponents(fp: ModuleType, values: list[float], exponent: int) -> None:
    assert fp.block_exponent(np.array(values, np.float32)) == exponent


@BOTH
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -np.nan])
@patient
@given(values=blocks, place=st.integers(0, 23))
def test_non_finite_is_detected_anywhere(fp: ModuleType, bad: float, values: np.ndarray, place: int) -> None:
    values = values.copy()
    values[place % len(values)] = bad
    out = np.full(len(values), 77, np.int32)
    assert fp.block_exponent(values) == fp.EXPONENT_NONFINITE
    assert fp.encode_f32(values, 128, 1, out) == fp.NONFINITE
    assert not out.any()


def test_sentinels_survive_a_merge_by_max_in_16_bits() -> None:
    assert (
        compiled.EXPONENT_ZERO < compiled.EXPONENT_MIN < compiled.EXPONENT_MAX < compiled.EXPONENT_NONFINITE
    )
    for sentinel in (compiled.EXPONENT_ZERO, compiled.EXPONENT_NONFINITE):
        assert int(np.int16(sentinel)) == sentinel


@BOTH
def test_sums_fit_and_waste_less_than_one_bit(fp: ModuleType) -> None:
    for workers in range(1, fp.MAX_WORKERS + 1):
        largest = 2 ** fp.sum_bits(workers)
        assert workers * largest <= INT32_MAX < 2 * workers * largest


@BOTH
@pytest.mark.parametrize(("exponent", "workers"), [(0, 0), (0, -1), (0, 4097), (129, 1), (-150, 1)])
def test_out_of_range_is_invalid(fp: ModuleType, exponent: int, workers: int) -> None:
    values, ints = np.zeros(2, np.float32), np.ones(2, np.int32)
    assert fp.scale_for(exponent, workers) == 0.0
    assert fp.encode_f32(values, exponent, workers, ints) == fp.INVALID
    assert not ints.any()
    assert fp.decode_f32(ints, exponent, workers, values) == fp.INVALID
    assert np.isnan(values).all()


@BOTH
def test_short_output_is_invalid_and_never_overrun(fp: ModuleType) -> None:
    halves, whole = np.ones(4, np.uint16), np.ones(4, np.float32)
    memory, floats_memory, bits_memory = (np.ones(4, kind) for kind in (np.int32, np.float32, np.uint16))
    assert fp.encode_f32(whole, 0, 1, memory[:3]) == fp.INVALID
    assert fp.encode_bf16(halves, 0, 1, memory[:3]) == fp.INVALID
    assert fp.encode_f16(halves, 0, 1, memory[:3]) == fp.INVALID
    assert fp.decode_f32(memory, 0, 1, floats_memory[:3]) == fp.INVALID
    assert fp.decode_bf16(memory, 0, 1, bits_memory[:3]) == fp.INVALID
    assert fp.decode_f16(memory, 0, 1, bits_memory[:3]) == fp.INVALID
    assert memory[3] == floats_memory[3] == bits_memory[3] == 1


# --- the error bound ---------------------------------------------------------------------------------------


@BOTH
@patient
@given(values=blocks, workers=workers_counts, slack=st.integers(0, 20))
def test_a_contribution_is_off_by_half_a_quantum_at_most(
    fp: ModuleType, values: np.ndarray, workers: int, slack: int
) -> None:
    exponent = fp.block_exponent(values)
    if exponent == fp.EXPONENT_ZERO:
        assert not encode(fp, values, exponent, workers).any()
        return
    exponent = min(exponent + slack, fp.EXPONENT_MAX)  # another worker's values may be larger
    step = quantum(fp, exponent, workers)
    assert step <= workers * Fraction(2) ** (exponent - 30)
    for value, integer in zip(values.tolist(), encode(fp, values, exponent, workers).tolist(), strict=True):
        error = abs(Fraction(value) - integer * step)
        assert error <= step / 2
        if error == step / 2:
            assert integer % 2 == 0
        if Fraction(value) % step == 0:
            assert error == 0


@pytest.mark.parametrize("fp", [compiled])
@patient
@given(values=blocks, workers=workers_counts, seed=st.integers(0, 2**32 - 1), spread=st.integers(0, 40))
def test_a_sum_of_n_never_overflows_and_keeps_its_bound(
    fp: ModuleType, values: np.ndarray, workers: int, seed: int, spread: int
) -> None:
    values = values[:4]
    generator = np.random.default_rng(seed)
    shrink = np.ldexp(1.0, -generator.integers(0, spread + 1, (workers, len(values))))
    signs = generator.choice([-1.0, 1.0, 1.0, 1.0], (workers, len(values)))
    contributions = (values.astype(np.float64) * shrink * signs).astype(np.float32)
    exponent = max(fp.block_exponent(row) for row in contributions)
    if exponent == fp.EXPONENT_ZERO:
        return
    total, exact_total = np.zeros(len(values), np.int32), np.zeros(len(values), np.int64)
    for row in contributions:
        part = encode(fp, row, exponent, workers)
        total += part
        exact_total += part
    assert (total == exact_total).all()
    step = quantum(fp, exponent, workers)
    decoded = np.zeros(len(values), np.float32)
    assert fp.decode_f32(total, exponent, workers, decoded) == fp.OK
    for column in range(len(values)):
        exact = sum(map(Fraction, contributions[:, column].tolist()), Fraction(0))
        summed = int(total[column]) * step
        assert abs(exact - summed) <= workers * step / 2
        assert abs(exact - summed) <= workers**2 * Fraction(2) ** (exponent - 31)
        if abs(summed) < Fraction(FLOAT32_MAX):
            half_ulp = max(abs(summed) * Fraction(2) ** -24, Fraction(2) ** -150)
            assert abs(Fraction(float(decoded[column])) - summed) <= half_ulp


@BOTH
@pytest.mark.parametrize("workers", [1, 2, 3, 7, 8, 1023, 1024, 4095, 4096])
@pytest.mark.parametrize("value", [1.0, -1.0, FLOAT32_MAX, -FLOAT32_MAX, FLOAT32_TINY, 2.0**-126])
def test_equal_extremes_of_all_workers_sum_without_overflow(
    fp: ModuleType, workers: int, value: float
) -> None:
    values = np.array([value], np.float32)
    exponent = fp.block_exponent(values)
    total = int(encode(fp, values, exponent, workers)[0]) * workers
    assert INT32_MIN <= total <= INT32_MAX
    decoded = np.zeros(1, np.float32)
    assert fp.decode_f32(np.array([total], np.int32), exponent, workers, decoded) == fp.OK
    if abs(value) < FLOAT32_MAX:
        assert float(decoded[0]) == value * workers  # a power of two: exact
    elif workers > 1:
        assert float(decoded[0]) == np.sign(value) * np.inf


@BOTH
@patient
@given(values=blocks, workers=workers_counts, less=st.integers(1, 400))
def test_a_value_beyond_the_agreed_exponent_is_reported(
    fp: ModuleType, values: np.ndarray, workers: int, less: int
) -> None:
    own = fp.block_exponent(values)
    out = np.full(len(values), 77, np.int32)
    if own == fp.EXPONENT_ZERO:
        return
    agreed = own - less if own - less >= fp.EXPONENT_MIN else fp.EXPONENT_ZERO
    assert fp.encode_f32(values, agreed, workers, out) == fp.SATURATED
    assert not out.any()


@BOTH
def test_blocks_of_zeros_and_non_finite_blocks_decode_without_a_sum(fp: ModuleType) -> None:
    ints, values, bits = np.array([0, 5], np.int32), np.ones(2, np.float32), np.ones(2, np.uint16)
    assert fp.decode_f32(ints, fp.EXPONENT_ZERO, 4, values) == fp.OK
    assert values.tolist() == [0.0, 0.0]
    assert fp.decode_f32(ints, fp.EXPONENT_NONFINITE, 4, values) == fp.NONFINITE
    assert np.isnan(values).all()
    assert fp.decode_f16(ints, fp.EXPONENT_NONFINITE, 4, bits) == fp.NONFINITE
    assert np.isnan(bits.view(np.float16)).all()
    assert fp.decode_bf16(ints, fp.EXPONENT_NONFINITE, 4, bits) == fp.NONFINITE
    assert np.isnan((bits.astype(np.uint32) << 16).view(np.float32)).all()
    assert fp.STATUS_NAMES[fp.NONFINITE] == "nonfinite"


# --- 16-bit formats ----------------------------------------------------------------------------------------

PATTERNS = np.arange(0x10000, dtype=np.uint32).astype(np.uint16)


def bf16_values(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def f16_values(bits: np.ndarray) -> np.ndarray:
    return bits.view(np.float16).astype(np.float64)


FORMATS = {"bf16": (bf16_values, 0x7F80, 2.0**128), "f16": (f16_values, 0x7C00, 2.0**16)}


def nearest(values: np.ndarray, name: str) -> np.ndarray:
    """The reference rounding: search all patterns of the format; of two equally near, the even one."""
    read, infinity, beyond = FORMATS[name]
    table = np.append(read(PATTERNS[:infinity]), beyond)
    magnitude = np.minimum(np.abs(values), beyond)
    above = np.searchsorted(table, magnitude).clip(1)
    below = above - 1
    to_above, to_below = table[above] - magnitude, magnitude - table[below]
    up = (to_above < to_below) | ((to_above == to_below) & (above % 2 == 0))
    return (np.where(up, above, below) | np.where(values < 0, 0x8000, 0)).astype(np.uint16)


@BOTH
@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_every_pattern_is_read_right(fp: ModuleType, name: str) -> None:
    read, infinity, _ = FORMATS[name]
    exponent_of, encode16 = getattr(fp, f"block_exponent_{name}"), getattr(fp, f"encode_{name}")
    magnitudes = PATTERNS & 0x7FFF
    finite = PATTERNS[magnitudes < infinity]
    values = read(finite)
    one, top = np.zeros(1, np.int32), exponent_of(finite)
    assert 2.0 ** (top - 1) < values.max() < 2.0**top
    for pattern, value in zip(finite[::7], values[::7], strict=True):  # each under its own exponent
        single = np.array([pattern], np.uint16)
        exponent = exponent_of(single)
        assert exponent == compiled.block_exponent(np.array([value], np.float32))
        assert encode16(single, exponent, 1, one) == fp.OK
        if value:
            assert one[0] == value * 2.0 ** (30 - exponent)
    out = np.zeros(len(finite), np.int32)
    assert encode16(finite, top, 3, out) == fp.OK
    assert (out == np.rint(values * fp.scale_for(top, 3))).all()


@BOTH
@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_non_finite_patterns_are_detected(fp: ModuleType, name: str) -> None:
    infinity = FORMATS[name][1]
    for pattern in (infinity, infinity + 1, 0x7FFF, 0x8000 | infinity, 0xFFFF):
        bits, out = np.array([0, pattern], np.uint16), np.ones(2, np.int32)
        assert getattr(fp, f"block_exponent_{name}")(bits) == fp.EXPONENT_NONFINITE
        assert getattr(fp, f"encode_{name}")(bits, 128, 1, out) == fp.NONFINITE
        assert not out.any()


@BOTH
@pytest.mark.parametrize("name", ["bf16", "f16"])
@patient
@given(ints=st.lists(int32s, min_size=1, max_size=24), exponent=exponents, workers=workers_counts)
def test_decoding_to_16_bits_rounds_once_to_the_nearest(
    fp: ModuleType, name: str, ints: list[int], exponent: int, workers: int
) -> None:
    sums, out = np.array(ints, np.int32), np.zeros(len(ints), np.uint16)
    assert getattr(fp, f"decode_{name}")(sums, exponent, workers, out) == fp.OK
    expected = nearest(sums.astype(np.float64) * float(quantum(fp, exponent, workers)), name)
    assert out.tolist() == expected.tolist()


@BOTH
@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_decoding_ties_and_their_neighbours(fp: ModuleType, name: str) -> None:
    # Odd multiples of 2**k, and one off: ties at every length, in the normal and the subnormal range.
    near = [(2 * odd + 1) << shift for shift in range(18) for odd in (0, 1, 2, 127, 128, 511, 1023, 2047)]
    sums = np.array([s * n + d for n in near for d in (-1, 0, 1) for s in (1, -1)], np.int32)
    for exponent in (*range(-149, -90, 3), *range(-6, 40), 126, 127, 128):
        out = np.zeros(len(sums), np.uint16)
        assert getattr(fp, f"decode_{name}")(sums, exponent, 1, out) == fp.OK
        expected = nearest(sums.astype(np.float64) * 2.0 ** (exponent - 30), name)
        assert (out == expected).all(), exponent


# --- both modules alike ------------------------------------------------------------------------------------


@patient
@given(values=blocks, bits=st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=16), workers=workers_counts)
def test_compiled_and_interpreted_agree_bit_for_bit(
    values: np.ndarray, bits: list[int], workers: int
) -> None:
    patterns = np.array(bits, np.uint16)
    results = []
    for fp in (compiled, interpreted):
        exponent = fp.block_exponent(values)
        ints, floats32, bf16, f16 = (
            np.zeros(len(values), k) for k in (np.int32, np.float32, np.uint16, np.uint16)
        )
        parts = [exponent, fp.encode_f32(values, exponent, workers, ints), ints.tobytes()]
        parts += [fp.decode_f32(ints, exponent, workers, floats32), floats32.tobytes()]
        parts += [fp.decode_bf16(ints, exponent, workers, bf16), bf16.tobytes()]
        parts += [fp.decode_f16(ints, exponent, workers, f16), f16.tobytes()]
        for name in ("bf16", "f16"):
            out, own = np.zeros(len(patterns), np.int32), getattr(fp, f"block_exponent_{name}")(patterns)
            parts += [own, getattr(fp, f"encode_{name}")(patterns, own, workers, out), out.tobytes()]
        results.append(parts)
    assert results[0] == results[1]
