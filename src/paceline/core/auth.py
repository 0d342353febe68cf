"""The tag of a packet: SipHash-2-4 under the job's key, over the header or over the whole packet.

SipHash (Aumasson and Bernstein, 2012) is a keyed hash for short messages: without the 128-bit key nobody
can make a tag but by guessing 64 bits. The tag's own eight bytes count as zeros. Whoever rewrites a packet
seals it anew.

    packet_tag   the tag that these bytes should carry
    seal         write it
    is_genuine   does the packet carry it?

A key is two words, `key0` and `key1`: the first and the last eight bytes of the key, little-endian (`key_words`).
"""

from typing import Any

import numpy as np

from paceline.compile.decorators import compiled, compiled_form_of, compiled_inner
from paceline.core.wire import HEADER_BYTES, TAG_OFFSET
from paceline.core.words import big_word, little_word, put_big_word

KEY_BYTES = 16
_WORD = 0xFFFFFFFFFFFFFFFF
_INIT_0 = np.uint64(0x736F6D6570736575)
_INIT_1 = np.uint64(0x646F72616E646F6D)
_INIT_2 = np.uint64(0x6C7967656E657261)
_INIT_3 = np.uint64(0x7465646279746573)
_LAST = np.uint64(0xFF)
_ZERO = np.uint64(0)


def key_words(key: bytes) -> tuple[np.uint64, np.uint64]:
    """The two words of a 16-byte key."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
    return np.uint64(int.from_bytes(key[:8], "little")), np.uint64(int.from_bytes(key[8:], "little"))


def _plus(a: Any, b: Any) -> np.uint64:
    """The sum modulo 2**64, without a warning where it wraps."""
    return np.uint64((int(a) + int(b)) & _WORD)


@compiled_form_of(_plus)
def _plus_compiled(a: Any, b: Any) -> Any:
    def plus(a: Any, b: Any) -> Any:
        return a + b

    return plus


@compiled_inner
def _turned(word: Any, left: Any, right: Any) -> Any:
    return (word << left) | (word >> right)


@compiled_inner
def _round(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    v0 = _plus(v0, v1)
    v1 = _turned(v1, np.uint64(13), np.uint64(51)) ^ v0
    v0 = _turned(v0, np.uint64(32), np.uint64(32))
    v2 = _plus(v2, v3)
    v3 = _turned(v3, np.uint64(16), np.uint64(48)) ^ v2
    v0 = _plus(v0, v3)
    v3 = _turned(v3, np.uint64(21), np.uint64(43)) ^ v0
    v2 = _plus(v2, v1)
    v1 = _turned(v1, np.uint64(17), np.uint64(47)) ^ v2
    v2 = _turned(v2, np.uint64(32), np.uint64(32))
    return v0, v1, v2, v3


@compiled_inner
def _little_endian(data: Any, start: int, width: int) -> Any:
    value = np.uint64(0)
    for i in range(width):
        value |= np.uint64(data[start + i]) << np.uint64(8 * i)
    return value


@compiled
def siphash(key0: Any, key1: Any, data: Any, start: int, length: int, blank: int) -> np.uint64:
    """SipHash-2-4 of `data[start:start + length]`, in which the word at offset `blank` counts as zero."""
    v0 = _INIT_0 ^ key0
    v1 = _INIT_1 ^ key1
    v2 = _INIT_2 ^ key0
    v3 = _INIT_3 ^ key1
    whole = length >> 3
    for i in range(whole + 1):
        if i == whole:
            word = _little_endian(data, start + 8 * whole, length & 7) | (
                np.uint64(length & 255) << np.uint64(56)
            )
        elif 8 * i == blank:
            word = _ZERO
        else:
            word = little_word(data, start + 8 * i)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
    v2 ^= _LAST
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return np.uint64(v0 ^ v1 ^ v2 ^ v3)


@compiled
def tag_of(key0: Any, key1: Any, data: Any, length: int) -> np.uint64:
    """SipHash-2-4 of `data[:length]`, as it stands."""
    return siphash(key0, key1, data, 0, length, -1)


@compiled
def packet_tag(key0: Any, key1: Any, data: Any, start: int, length: int, full: bool) -> np.uint64:
    """The tag of the packet at `data[start:start + length]`: over its header, or (`full`) over all of it."""
    if full:
        return siphash(key0, key1, data, start, length, TAG_OFFSET)
    # Of a length that is known here: the optimiser needs no loop for it.
    return siphash(key0, key1, data, start, HEADER_BYTES, TAG_OFFSET)


@compiled
def seal(key0: Any, key1: Any, data: Any, start: int, length: int, full: bool) -> None:
    """Write its tag into the packet at `data[start:start + length]`."""
    tag = packet_tag(key0, key1, data, start, length, full)
    put_big_word(data, start + TAG_OFFSET, tag)


@compiled
def is_genuine(key0: Any, key1: Any, data: Any, start: int, length: int, full: bool) -> bool:
    """Does the packet at `data[start:start + length]` carry its tag? It has a whole header."""
    return bool(big_word(data, start + TAG_OFFSET) == packet_tag(key0, key1, data, start, length, full))
