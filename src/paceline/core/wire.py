"""The packet header: one record, its bytes in network order, and the one error that bad bytes give.

`WIRE` is the layout on the network (big-endian, 64 bytes, no padding); `PACKET` holds the same fields in
memory as the core uses them. The payload follows the header: `count` 32-bit integers, little-endian.
Decoding looks at no byte outside those given, and answers with a header or with one of `ERROR_NAMES`; what
the fields mean together (is this job known? is this index its own?) is for the switch to judge.

The fields are those of ATP's header and ESA's priority; `custodian` stands for the destination address that ATP's
packets carry, `owner` and `share` for SA-ATP's micro-batch shares, `window` for the windows that the workers of a
job agree on. Layout: ours.
"""

from typing import Any

import numpy as np

from paceline.compile.decorators import compiled, compiled_inner
from paceline.core.words import big_word, put_big_word

VERSION = 2
MAGIC = 0x5041
HEADER_BYTES = 64
MAX_ELEMENTS = 2048
CONTRIBUTORS_MAX = 64
WINDOW_MAX = 65_535
ENVELOPE_BYTES = 66
"""Around the header on Ethernet: preamble and gap 20, frame 18, IPv4 20, UDP 8."""

GRADIENT = 1
PARTIAL = 2
RESULT = 3
REMINDER = 4
PULL = 5
ANSWER = 6
QUERY = 7
ACK = 8
NACK = 9
RECEIPT = 10
HAS = 11
LEAVES = 12
REPORT = 13
ROLE = 14
PATH = 15
BETWEEN_HOSTS = RECEIPT
"""From this kind on messages go from host to host, name their receiver in `custodian`, and are about no one chunk."""
KIND_LAST = PATH
KIND_NAMES = {
    GRADIENT: "gradient: a contribution, or a rack's sum on its way up; the switch may aggregate it",
    PARTIAL: "partial: a sum on its way to its custodian; switches forward it untouched",
    RESULT: "result: the full sum, to every worker; frees what the switch still holds for the chunk",
    REMINDER: "reminder: a custodian asks the switch for what it holds of a chunk",
    PULL: "pull: a custodian asks workers for a result or, failing that, for their contribution",
    ANSWER: "answer: a worker gives a custodian the result it already holds",
    QUERY: "query: a worker asks where its contribution is; the switch answers if it has the chunk, else the custodian",
    ACK: "ack: these workers' contributions are counted, here or by the custodian",
    NACK: "nack: the contribution of the worker that asked is not there; it is to be sent again, by the switch",
    RECEIPT: "receipt: what a host has of its predecessor's packets (ring all-reduce, simulated)",
    HAS: "has: up to where a worker has all results",
    LEAVES: "leaves: the same, of a worker that waits to close; the receiver answers with what it has",
    REPORT: "report: how far a worker is, for the coordinator",
    ROLE: "role: the coordinator says which epoch it is and who leads in it; answered by a report",
    PATH: "path: whether a worker uses the switch, could, or cannot and why; all leave it and return together",
}

ECN = 1
FLUSH = 2
COLLISION = 4
CUSTODY = 8
FROM_SWITCH = 16
FLAG_NAMES = {
    ECN: "ecn: met congestion on its way",
    FLUSH: "flush: to the custodian; take along what the switch holds of the chunk; of a pull: yours is missing",
    COLLISION: "collision: found its aggregator taken; of a query: the switch has the chunk without the asker",
    CUSTODY: "custody: complete at fan-in, but to be finished by the custodian",
    FROM_SWITCH: "from_switch: a live switch has sent it; no switch takes it for a worker's",
}
_FLAGS_UNKNOWN = 224
FLAGS_WITHOUT_FLUSH = 255 - FLUSH
FLAGS_OF_HOSTS = 255 - FROM_SWITCH

_FIELDS = (
    # name, on the wire, in memory
    ("magic", ">u2", "u2"),
    ("version", "u1", "u1"),
    ("kind", "u1", "u1"),
    ("flag", "u1", "u1"),
    ("priority", "u1", "u1"),
    ("job", ">u2", "i4"),
    ("chunk", ">u8", "i8"),
    ("epoch", ">u2", "i4"),
    ("count", ">u2", "i4"),
    ("index", ">u4", "i8"),
    ("mask", ">u8", "u8"),
    ("fan_in", "u1", "i4"),
    ("fan_in_upper", "u1", "i4"),
    ("rack", "u1", "i4"),
    ("level", "u1", "i4"),
    ("worker", ">u2", "i4"),
    ("custodian", ">u2", "i4"),
    ("share", ">u8", "u8"),
    ("owner", ">u2", "i4"),
    ("window", ">u2", "i4"),
    ("offer", ">u4", "i8"),
    ("tag", ">u8", "u8"),
)
FIELD_NAMES = tuple(name for name, _, _ in _FIELDS)
WIRE = np.dtype([(name, on_wire) for name, on_wire, _ in _FIELDS])
PACKET_FIELDS = [(name, in_memory) for name, _, in_memory in _FIELDS]
PACKET = np.dtype(PACKET_FIELDS, align=True)
assert WIRE.itemsize == HEADER_BYTES
TAG_OFFSET = 56
assert WIRE.fields is not None
assert WIRE.fields["tag"][1] == TAG_OFFSET

OK = 0
TRUNCATED = 1
BAD_MAGIC = 2
BAD_VERSION = 3
BAD_KIND = 4
BAD_FLAGS = 5
BAD_COUNT = 6
BAD_LENGTH = 7
BAD_FAN_IN = 8
BAD_PLACE = 9
BAD_MASK = 10
BAD_CHUNK = 11
BAD_SHARE = 12
ERROR_NAMES = (
    "ok",
    "truncated",
    "bad magic",
    "bad version",
    "bad kind",
    "bad flags",
    "bad element count",
    "length and count disagree",
    "bad fan-in",
    "bad rack or level",
    "bad mask",
    "bad chunk",
    "bad share",
)
_CHUNK_MAX_TOP_BYTE = 0x3F
_0, _16, _24, _32, _40, _48, _56 = (np.uint64(shift) for shift in (0, 16, 24, 32, 40, 48, 56))
_BYTE, _TWO_BYTES, _FOUR_BYTES = np.uint64(0xFF), np.uint64(0xFFFF), np.uint64(0xFFFFFFFF)
_HEAD = np.uint64(MAGIC << 48 | VERSION << 40)
"""How every packet begins."""
_OWNERS_MAX = 64 * 64
"""A rack and a bit in it: what `owner` names (`bits.place_of`)."""


class DecodeError(ValueError):
    """Bytes that are no packet; `reason` is one of `ERROR_NAMES`."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.reason = ERROR_NAMES[code]
        super().__init__(self.reason)


def new_packets(count: int) -> Any:
    """Blank in-memory headers, addressable by field name."""
    return np.zeros(count, dtype=PACKET).view(np.recarray)


@compiled
def clear(packet: Any, kind: int) -> None:
    """A header of this kind without payload, flags and bits, from nobody in particular; at level 1."""
    packet.magic = MAGIC
    packet.version = VERSION
    packet.kind = kind
    packet.flag = 0
    packet.priority = 0
    packet.job = 0
    packet.chunk = 0
    packet.epoch = 0
    packet.count = 0
    packet.index = 0
    packet.mask = np.uint64(0)
    packet.fan_in = 1
    packet.fan_in_upper = 1
    packet.rack = 0
    packet.level = 1
    packet.worker = 0
    packet.custodian = 0
    packet.share = np.uint64(0)
    packet.owner = 0
    packet.window = 0
    packet.offer = 0
    packet.tag = np.uint64(0)


@compiled_inner
def _part(word: Any, shift: Any, mask: Any) -> Any:
    """Some bits of a word, as a number."""
    return np.int64((word >> shift) & mask)


@compiled
def decode_into(data: Any, length: int, packet: Any) -> int:
    """Read a header from `data[:length]`; `OK`, or the error, in which case `packet` is not to be used."""
    return decode_at(data, 0, length, packet)


@compiled
def decode_at(data: Any, start: int, length: int, packet: Any) -> int:
    """Read a header from `data[start:start + length]`; `OK`, or the error, and `packet` is not to be used."""
    if length < HEADER_BYTES or start < 0 or start + length > data.shape[0]:
        return TRUNCATED
    head = big_word(data, start)
    if head >> _48 != np.uint64(MAGIC):
        return BAD_MAGIC
    if _part(head, _40, _BYTE) != VERSION:
        return BAD_VERSION
    kind = _part(head, _32, _BYTE)
    if kind < GRADIENT or kind > KIND_LAST:
        return BAD_KIND
    flag = _part(head, _24, _BYTE)
    if flag & _FLAGS_UNKNOWN:
        return BAD_FLAGS
    place = big_word(data, start + 16)
    count = _part(place, _32, _TWO_BYTES)
    if count > MAX_ELEMENTS:
        return BAD_COUNT
    if length != HEADER_BYTES + 4 * count:
        return BAD_LENGTH
    ends = big_word(data, start + 32)
    fan_in = _part(ends, _56, _BYTE)
    fan_in_upper = _part(ends, _48, _BYTE)
    if fan_in < 1 or fan_in > CONTRIBUTORS_MAX or fan_in_upper < 1 or fan_in_upper > CONTRIBUTORS_MAX:
        return BAD_FAN_IN
    rack = _part(ends, _40, _BYTE)
    level = _part(ends, _32, _BYTE)
    if rack >= CONTRIBUTORS_MAX or level < 1 or level > 2:
        return BAD_PLACE
    chunk = big_word(data, start + 8)
    if _part(chunk, _56, _BYTE) > _CHUNK_MAX_TOP_BYTE:
        return BAD_CHUNK
    mask = big_word(data, start + 24)
    share = big_word(data, start + 40)
    rest = big_word(data, start + 48)
    owner = _part(rest, _48, _TWO_BYTES)
    holds_sum = kind <= PARTIAL
    if share == np.uint64(0):
        if holds_sum and mask == np.uint64(0):
            return BAD_MASK
    else:
        own_bit = np.uint64(owner >> 6 == rack) << np.uint64(owner & 63)
        if owner >= _OWNERS_MAX or (holds_sum and (level != 1 or mask & own_bit)):
            return BAD_SHARE
    packet.magic = MAGIC
    packet.version = VERSION
    packet.kind = kind
    packet.flag = flag
    packet.priority = _part(head, _16, _BYTE)
    packet.job = _part(head, _0, _TWO_BYTES)
    packet.chunk = np.int64(chunk)
    packet.epoch = _part(place, _48, _TWO_BYTES)
    packet.count = count
    packet.index = _part(place, _0, _FOUR_BYTES)
    packet.mask = mask
    packet.fan_in = fan_in
    packet.fan_in_upper = fan_in_upper
    packet.rack = rack
    packet.level = level
    packet.worker = _part(ends, _16, _TWO_BYTES)
    packet.custodian = _part(ends, _0, _TWO_BYTES)
    packet.share = share
    packet.owner = owner
    packet.window = _part(rest, _32, _TWO_BYTES)
    packet.offer = _part(rest, _0, _FOUR_BYTES)
    packet.tag = big_word(data, start + TAG_OFFSET)
    return OK


@compiled_inner
def _moved(value: Any, mask: Any, shift: Any) -> Any:
    """A number where it belongs in a word; what is too large for its place is cut off."""
    return (np.uint64(value) & mask) << shift


@compiled
def encode_into(packet: Any, data: Any) -> int:
    """Write the header to `data[:64]` and give the length of the whole packet, payload included."""
    return encode_at(packet, data, 0)


@compiled
def encode_at(packet: Any, data: Any, start: int) -> int:
    """Write the header to `data[start:start + 64]` and give the length of the whole packet."""
    head = _HEAD | _moved(packet.kind, _BYTE, _32) | _moved(packet.flag, _BYTE, _24)
    head |= _moved(packet.priority, _BYTE, _16) | _moved(packet.job, _TWO_BYTES, _0)
    place = _moved(packet.epoch, _TWO_BYTES, _48) | _moved(packet.count, _TWO_BYTES, _32)
    ends = _moved(packet.fan_in, _BYTE, _56) | _moved(packet.fan_in_upper, _BYTE, _48)
    ends |= _moved(packet.rack, _BYTE, _40) | _moved(packet.level, _BYTE, _32)
    ends |= _moved(packet.worker, _TWO_BYTES, _16) | _moved(packet.custodian, _TWO_BYTES, _0)
    rest = _moved(packet.owner, _TWO_BYTES, _48) | _moved(packet.window, _TWO_BYTES, _32)
    put_big_word(data, start, head)
    put_big_word(data, start + 8, np.uint64(packet.chunk))
    put_big_word(data, start + 16, place | _moved(packet.index, _FOUR_BYTES, _0))
    put_big_word(data, start + 24, packet.mask)
    put_big_word(data, start + 32, ends)
    put_big_word(data, start + 40, packet.share)
    put_big_word(data, start + 48, rest | _moved(packet.offer, _FOUR_BYTES, _0))
    put_big_word(data, start + TAG_OFFSET, packet.tag)
    return int(HEADER_BYTES + 4 * packet.count)


def decode(data: bytes) -> Any:
    """The header in `data`, or a `DecodeError`."""
    packet = new_packets(1)[0]
    code = decode_into(np.frombuffer(data, dtype=np.uint8), len(data), packet)
    if code != OK:
        raise DecodeError(code)
    return packet


def encode(packet: Any, payload: Any = None) -> bytes:
    """The packet as bytes; `payload` gives `count` integers, zeros if left out."""
    count = int(packet.count)
    data = np.zeros(HEADER_BYTES + 4 * count, dtype=np.uint8)
    encode_into(packet, data)
    if payload is not None:
        data[HEADER_BYTES:] = np.asarray(payload[:count], dtype="<i4").view(np.uint8)
    return data.tobytes()
