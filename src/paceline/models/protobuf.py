"""Protocol buffers' wire format, as far as reading needs it: fields by number, messages one after another."""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class DamagedError(ValueError):
    """Bytes that are no such message; says at which byte."""


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Each message of a stream in which every one comes after its length, with the byte at which it begins."""
    at = 0
    while at < len(data):
        size, begin = varint(data, at)
        if begin + size > len(data):
            raise DamagedError(
                f"the message at byte {at} has {size} bytes, the file {len(data) - begin} more"
            )
        yield at, data[begin : begin + size]
        at = begin + size


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Number, wire type and value of every field; fixed widths come as bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise DamagedError("a field has the number 0")
        value: int | bytes
        if kind == VARINT:
            value, at = varint(data, at)
        else:
            if kind == BYTES:
                size, at = varint(data, at)
            elif kind in (FIXED64, FIXED32):
                size = 8 if kind == FIXED64 else 4
            else:
                raise DamagedError(f"a field has the wire type {kind}")
            if at + size > len(data):
                raise DamagedError("a field is longer than its message")
            value, at = data[at : at + size], at + size
        yield number, kind, value


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place after it."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise DamagedError("a number is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value & (2**64 - 1), at
