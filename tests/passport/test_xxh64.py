"""XXH64 against the values of its specification and against the same text, read by the book."""

import numpy as np
import pytest

from paceline.passport.xxh64 import xxh64

WORD = (1 << 64) - 1
P = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)


def _turned(word: int, by: int) -> int:
    return (word << by | word >> (64 - by)) & WORD


def _round(lane: int, word: int) -> int:
    return _turned((lane + word * P[1]) & WORD, 31) * P[0] & WORD


def _by_the_book(data: bytes) -> int:
    left, whole = data, P[4]
    if len(data) >= 32:
        lanes = [(P[0] + P[1]) & WORD, P[1], 0, -P[0] & WORD]
        while len(left) >= 32:
            lanes = [
                _round(v, int.from_bytes(left[8 * k : 8 * k + 8], "little")) for k, v in enumerate(lanes)
            ]
            left = left[32:]
        whole = sum(_turned(v, by) for v, by in zip(lanes, (1, 7, 12, 18), strict=True)) & WORD
        for lane in lanes:
            whole = ((whole ^ _round(0, lane)) * P[0] + P[3]) & WORD
    whole = (whole + len(data)) & WORD
    while len(left) >= 8:
        whole = (_turned(whole ^ _round(0, int.from_bytes(left[:8], "little")), 27) * P[0] + P[3]) & WORD
        left = left[8:]
    if len(left) >= 4:
        whole = (_turned(whole ^ int.from_bytes(left[:4], "little") * P[0] & WORD, 23) * P[1] + P[2]) & WORD
        left = left[4:]
    for byte in left:
        whole = _turned(whole ^ byte * P[4] & WORD, 11) * P[0] & WORD
    whole = (whole ^ whole >> 33) * P[1] & WORD
    whole = (whole ^ whole >> 29) * P[2] & WORD
    return whole ^ whole >> 32


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
    ],
)
def test_published_values(text: bytes, value: int) -> None:
    assert xxh64(np.frombuffer(text, np.uint8)) == _by_the_book(text) == value


def test_every_length_and_alignment() -> None:
    data = np.random.default_rng(1).integers(0, 256, 400, dtype=np.uint8)
    for length in (*range(100), 255, 390):
        for start in (0, 1, 4):
            part = data[start : start + length]
            assert xxh64(part) == _by_the_book(part.tobytes())


def test_formats_and_a_single_bit() -> None:
    values = np.random.default_rng(2).standard_normal(1000).astype(np.float32)
    before = xxh64(values)
    assert before == _by_the_book(values.tobytes())
    seen = {before}
    for place in (0, 1, 500, 999):
        for bit in (0, 1, 30, 31):
            other = values.copy()
            other.view(np.uint32)[place] ^= np.uint32(1 << bit)
            seen.add(xxh64(other))
    signs = values.copy()
    signs.view(np.uint32)[[1, 9]] ^= np.uint32(1 << 31)  # two signs in one lane
    seen.add(xxh64(signs))
    assert len(seen) == 18
