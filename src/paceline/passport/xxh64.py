"""XXH64 of a tensor's bytes: a fast hash, not a secret one; `xxhsum -H1` gives the same.

After Yann Collet's specification of xxHash. Four lanes that do not wait for each other take 32 bytes at a time, so it
goes about as fast as memory is read. Two results that differ in a bit have the same hash with a chance of 2**-64.
"""

from typing import Any

import numpy as np

from paceline.compile.decorators import compiled, compiled_inner, interpreted

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_START_1 = np.uint64(0x60EA27EEADC0B5D6)  # P1 + P2
_START_4 = np.uint64(0x61C8864E7A143579)  # 0 - P1

_NOTHING = np.zeros(0, np.uint8)


@compiled_inner
def _turned(word: Any, by: int) -> Any:
    return (word << np.uint64(by)) | (word >> np.uint64(64 - by))


@compiled_inner
def _round(lane: Any, word: Any) -> Any:
    return _turned(lane + word * _P2, 31) * _P1


@compiled_inner
def _merged(whole: Any, lane: Any) -> Any:
    return (whole ^ _round(np.uint64(0), lane)) * _P1 + _P4


@compiled
def hash_words(words: Any, rest: Any, length: int) -> Any:
    """The hash of `words` (all whole 8 bytes, little-endian) and the up to 7 bytes after them; `length` of both."""
    count = words.shape[0]
    whole = _P5
    at = 0
    if length >= 32:
        a, b, c, d = _START_1, _P2, np.uint64(0), _START_4
        while at + 4 <= count:
            a = _round(a, words[at])
            b = _round(b, words[at + 1])
            c = _round(c, words[at + 2])
            d = _round(d, words[at + 3])
            at += 4
        whole = _turned(a, 1) + _turned(b, 7) + _turned(c, 12) + _turned(d, 18)
        whole = _merged(_merged(_merged(_merged(whole, a), b), c), d)
    whole += np.uint64(length)
    while at < count:
        whole = _turned(whole ^ _round(np.uint64(0), words[at]), 27) * _P1 + _P4
        at += 1
    i = 0
    if rest.shape[0] >= 4:
        four = np.uint64(0)
        for k in range(4):
            four |= np.uint64(rest[k]) << np.uint64(8 * k)
        whole = _turned(whole ^ (four * _P1), 23) * _P2 + _P3
        i = 4
    while i < rest.shape[0]:
        whole = _turned(whole ^ (np.uint64(rest[i]) * _P5), 11) * _P1
        i += 1
    whole = (whole ^ (whole >> np.uint64(33))) * _P2
    whole = (whole ^ (whole >> np.uint64(29))) * _P3
    return whole ^ (whole >> np.uint64(32))


def xxh64(array: Any) -> int:
    """The hash of a contiguous array's bytes, with the seed 0."""
    data = array.reshape(-1).view(np.uint8)
    if data.__array_interface__["data"][0] % 8:
        data = data.copy()
    length = data.shape[0]
    whole = length // 8 * 8
    # Most tensors have no rest, and what is made here costs more than the hash of a small one.
    words, rest = (
        (data[:whole].view(np.uint64), data[whole:]) if whole < length else (data.view(np.uint64), _NOTHING)
    )
    if interpreted():
        with np.errstate(over="ignore"):
            return int(hash_words(words, rest, length))
    return int(hash_words(words, rest, length))
