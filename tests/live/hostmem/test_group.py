"""The reduction between ranks of one host: right to the bit in any size and format; quick to name who is missing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from paceline.live.hostmem import kernels
from paceline.live.hostmem.group import HostGroup, HostReduceError, HostTensorMismatchError, host_identity
from tests.live.hostmem_ranks import Folder, on_ranks

SIZES = (1, 7, 63, 64, 65, 128, 1000, 4097)


def _floats(rank: int, size: int) -> np.ndarray:
    generator = np.random.default_rng(1000 * rank + size)
    return (generator.standard_normal(size) * 10.0 ** generator.uniform(-6, 3, size)).astype(np.float32)


def _in_order(parts: list[np.ndarray]) -> np.ndarray:
    total = parts[0].copy()
    for part in parts[1:]:
        total = total + part
    return total


def _patterns(values: np.ndarray, kind: int) -> np.ndarray:
    out = np.zeros(values.size, np.uint16)
    kernels.narrow(values.astype(np.float32), 0, out, 0, values.size, kind)
    return out


def _wide(bits: np.ndarray, kind: int) -> np.ndarray:
    out = np.zeros(bits.size, np.float32)
    kernels.widen(bits, 0, out, 0, bits.size, kind)
    return out


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_sums_have_the_bits_of_a_sum_in_rank_order(ranks: int, tmp_path: Path) -> None:
    def deed(group: HostGroup) -> list[np.ndarray]:
        done = []
        for size in (*SIZES, *reversed(SIZES)):
            values = _floats(group.rank, size)
            group.all_reduce(values, "float32")
            done.append(values)
        return done

    results = on_ranks(ranks, tmp_path, deed)
    for at, size in enumerate((*SIZES, *reversed(SIZES))):
        want = _in_order([_floats(rank, size) for rank in range(ranks)])
        for result in results:
            np.testing.assert_array_equal(result[at].view(np.int32), want.view(np.int32))


def test_averages_and_integers(tmp_path: Path) -> None:
    def deed(group: HostGroup) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        floats, ints = _floats(group.rank, 500), np.arange(-250, 250, dtype=np.int32) * (group.rank + 1)
        wrapped = np.full(3000, 2**31 - 1, np.int32)
        group.all_reduce(floats, "float32", divisor=3)
        group.all_reduce(ints, "int32", divisor=4)
        group.all_reduce(wrapped, "int32")
        return floats, ints, wrapped

    want = _in_order([_floats(rank, 500) for rank in range(3)]) / np.float32(3)
    for floats, ints, wrapped in on_ranks(3, tmp_path, deed):
        np.testing.assert_array_equal(floats, want)
        np.testing.assert_array_equal(ints, np.fix(np.arange(-250, 250) * 6 / 4).astype(np.int32))
        assert (wrapped == 2**31 - 3).all(), "int32 sums wrap, as they do on every device"


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_sixteen_bit_sums_are_rounded_once(kind: str, tmp_path: Path) -> None:
    code = kernels.KINDS[kind]

    def deed(group: HostGroup) -> np.ndarray:
        bits = _patterns(_floats(group.rank, 777), code)
        group.all_reduce(bits, kind)
        return bits

    want = _patterns(_in_order([_wide(_patterns(_floats(rank, 777), code), code) for rank in range(3)]), code)
    for bits in on_ranks(3, tmp_path, deed):
        np.testing.assert_array_equal(bits, want)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_every_sixteen_bit_pattern_goes_there_and_back(kind: str) -> None:
    code = kernels.KINDS[kind]
    every = np.arange(1 << 16, dtype=np.uint16)
    wide = _wide(every, code)
    nan = np.isnan(wide)
    np.testing.assert_array_equal(_patterns(wide, code)[~nan], every[~nan])
    assert np.isnan(_wide(_patterns(wide, code), code)[nan]).all()
    if kind == "float16":
        with np.errstate(over="ignore"):
            many = np.concatenate(
                [_floats(1, 50_000), np.float32([65504, 65519.99, 65520, -1e9, 6e-8, 2.9e-8])]
            )
            np.testing.assert_array_equal(_patterns(many, code), many.astype(np.float16).view(np.uint16))


@pytest.mark.parametrize(
    ("kind", "dtype"), [("float32", np.float32), ("int32", np.int32), ("bfloat16", np.uint16)]
)
def test_up_to_the_first_and_down_to_all(kind: str, dtype: type, tmp_path: Path) -> None:
    def deed(group: HostGroup) -> np.ndarray:
        for size in (1, 64, 1000, 129):
            values = np.arange(size).astype(np.float32)
            bits = _patterns(values, kernels.BFLOAT16) if dtype is np.uint16 else values.astype(dtype)
            total = np.zeros(size if group.rank == 0 else 0, np.int32 if dtype is np.int32 else np.float32)
            group.reduce_to_first(bits, kind, total)
            group.give(total, kind, bits, divisor=2)
        return bits

    for bits in on_ranks(4, tmp_path, deed):
        got = _wide(bits, kernels.BFLOAT16) if dtype is np.uint16 else bits
        np.testing.assert_array_equal(got, np.arange(129) * 2)


def test_a_rank_that_leaves_or_does_not_come_is_named(tmp_path: Path) -> None:
    def deed(group: HostGroup) -> None:
        if group.rank != 1:
            group.all_reduce(np.zeros(1000, np.float32), "float32", timeout_s=30)

    first, _, third = on_ranks(3, tmp_path, deed)
    for error in (first, third):
        assert isinstance(error, HostReduceError)
        # Whoever is told first leaves too, and may be the one that the other sees.
        assert error.rank in (0, 1, 2)
        assert "has left the group" in str(error)
    assert 1 in (first.rank, third.rank)

    told = tmp_path / "told"

    def late(group: HostGroup) -> None:
        if group.rank == 1:
            end = time.monotonic() + 60
            while not told.exists() and time.monotonic() < end:
                time.sleep(0.05)
            return
        try:
            group.all_reduce(np.zeros(10, np.float32), "float32", timeout_s=0.3)
        finally:
            told.touch()

    (tmp_path / "late").mkdir()
    error = on_ranks(2, tmp_path / "late", late)[0]
    assert isinstance(error, HostReduceError)
    assert error.rank == 1
    assert "did not come to the reduction within 0.3 s" in str(error)


FLOATS, INTS, BITS = np.float32, np.int32, np.uint16


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        ((20, FLOATS, "float32", 1), "rank 1: 20 float32 with sum"),
        ((400, FLOATS, "float32", 1), "rank 1: 400 float32 with sum"),
        ((3000, FLOATS, "float32", 1), "rank 1: 3000 float32 with sum"),
        ((10, INTS, "int32", 1), "rank 1: 10 int32 with sum"),
        ((10, BITS, "bfloat16", 1), "rank 1: 10 bfloat16 with sum"),
        ((10, FLOATS, "float32", 3), "rank 1: 10 float32 with average over 3"),
    ],
)
def test_ranks_with_different_tensors_are_all_told(odd: tuple, told: str, tmp_path: Path) -> None:
    """Whatever way a tensor of one rank would go by its size; nobody gets a number, and the group ends."""

    def deed(group: HostGroup) -> str:
        warm = np.ones(150, np.float32)
        group.all_reduce(warm, "float32", timeout_s=30)
        size, dtype, kind, divisor = odd if group.rank == 1 else (10, FLOATS, "float32", 1)
        values = np.ones(size, dtype)
        with pytest.raises(HostTensorMismatchError) as caught:
            group.all_reduce(values, kind, divisor, timeout_s=30)
        assert (values == 1).all()
        with pytest.raises(HostReduceError, match="different tensors"):
            group.all_reduce(warm, "float32", timeout_s=30)
        return str(caught.value)

    for text in on_ranks(3, tmp_path, deed):
        assert "different tensors" in str(text)
        assert "ranks 0, 2: 10 float32 with sum" in str(text)
        assert told in str(text)


def test_segments_of_different_tensors_are_told_apart(tmp_path: Path) -> None:
    """A segment says of which tensor it is a part: the same size is not enough."""

    def deed(group: HostGroup) -> None:
        whole = (300, 1) if group.rank == 0 else (300, 4)
        total = np.zeros(100 if group.rank == 0 else 0, np.float32)
        with pytest.raises(HostTensorMismatchError, match="average over 4"):
            group.reduce_to_first(np.ones(100, np.float32), "float32", total, 30, whole=whole)

    assert on_ranks(2, tmp_path, deed) == [None, None]


def test_many_different_sizes_in_turn_raise_no_false_alarm(tmp_path: Path) -> None:
    """A rank may be one reduction ahead: its next description must not be taken for the one before."""

    def deed(group: HostGroup) -> None:
        for at in range(1500):
            size = (1, 2, 70, 3, 200, 64)[at % 6]
            values = np.full(size, at, np.float32)
            group.all_reduce(values, "float32", 1 + at % 2 * 2, timeout_s=30)
            assert (values == (at if at % 2 else 3 * at)).all()

    assert on_ranks(3, tmp_path, deed) == [None] * 3


def _named_memory() -> set[str]:
    """Shared memory of this process that has a name, and so would stay; other tests may have some at any time."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[-1] for line in lines if "/dev/shm" in line}


def test_a_killed_rank_is_named_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    before = _named_memory()
    command = [sys.executable, "-m", "tests.live.hostmem_ranks", str(tmp_path)]
    others = [subprocess.Popen([*command, str(rank), "3", "2"]) for rank in (1, 2)]
    try:
        group = HostGroup(0, 3, Folder(tmp_path), names=[10, 11, 12])
        for deed in range(2):
            values = np.full(300_000, deed, np.float32)
            group.all_reduce(values, "float32", timeout_s=60)
            assert (values == 3 + 3 * deed).all()
        assert _named_memory() == before
        Folder(tmp_path).get("idle-2")
        assert group.dead() is None
        others[1].send_signal(signal.SIGKILL)
        begin = time.monotonic()
        with pytest.raises(
            HostReduceError, match=r"rank 12 \(process \d+ on this host\) has ended"
        ) as caught:
            group.all_reduce(values, "float32", timeout_s=60)
        assert caught.value.rank == 12
        assert time.monotonic() - begin < 5
        assert group.dead() == 12
        with pytest.raises(HostReduceError, match="rank 12"):
            group.all_reduce(values, "float32")
        group.close()
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_interpreted_ranks_give_the_same_bits(tmp_path: Path) -> None:
    script = (
        "import numpy as np, pathlib, sys\n"
        "from tests.live.hostmem_ranks import on_ranks\n"
        "from tests.live.hostmem.test_group import _floats\n"
        "def deed(group):\n"
        "    values = _floats(group.rank, 150)\n"
        "    group.all_reduce(values, 'float32', divisor=3)\n"
        "    small = _floats(group.rank, 20)\n"
        "    group.all_reduce(small, 'float32')\n"
        "    return np.concatenate([values, small])\n"
        "results = on_ranks(3, pathlib.Path(sys.argv[1]), deed)\n"
        "print(results[0].tobytes().hex(), results[2].tobytes().hex())\n"
    )
    outs = []
    for mode in ("0", "1"):
        folder = tmp_path / mode
        folder.mkdir()
        env = {**os.environ, "NUMBA_DISABLE_JIT": mode}
        run = subprocess.run(
            [sys.executable, "-W", "error", "-c", script, str(folder)],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert run.returncode == 0, run.stderr[-2000:]
        outs.append(run.stdout.split())
    assert outs[0] == outs[1]
    assert outs[0][0] == outs[0][1]


def test_a_host_is_itself() -> None:
    assert host_identity() == host_identity()
    assert f"net:{Path('/proc/self/ns/net').stat().st_ino}" in host_identity()
