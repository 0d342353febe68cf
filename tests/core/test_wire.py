"""The header: every field round-trips, in network order, and bad bytes give one named error."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import wire
from tests.core.headers import header

patient = settings(deadline=None)


def unsigned(bits: int) -> Any:
    return st.one_of(st.sampled_from([0, 1, 2**bits - 1, 2 ** (bits - 1)]), st.integers(0, 2**bits - 1))


FIELDS = {
    "kind": st.integers(wire.GRADIENT, wire.KIND_LAST),
    "flag": st.integers(0, sum(wire.FLAG_NAMES)),
    "priority": unsigned(8),
    "job": unsigned(16),
    "chunk": st.one_of(st.sampled_from([0, 1, 2**62 - 1]), st.integers(0, 2**62 - 1)),
    "epoch": unsigned(16),
    "count": st.integers(0, 40),
    "index": unsigned(32),
    "mask": unsigned(64).filter(bool),
    "fan_in": st.integers(1, 64),
    "fan_in_upper": st.integers(1, 64),
    "rack": st.integers(0, 63),
    "level": st.integers(1, 2),
    "worker": unsigned(16),
    "custodian": unsigned(16),
    "share": unsigned(64),
    "owner": unsigned(16),
    "window": st.integers(0, 2**16 - 1),
    "offer": unsigned(32),
    "tag": unsigned(64),
}
headers = st.fixed_dictionaries(FIELDS).map(lambda fields: _sound(fields))


def _sound(fields: dict[str, int]) -> dict[str, int]:
    """Shares as they may be: of an owner that can be, at level 1, and not beside its bit."""
    if not fields["share"]:
        return fields
    owner = fields["owner"] % 4096
    home = owner >> 6 == fields["rack"]
    return {**fields, "owner": owner, "level": 1, "mask": fields["mask"] & ~(home << (owner & 63))}


def made(fields: dict[str, int]) -> Any:
    return header(**fields)


def test_the_strategies_cover_every_field() -> None:
    assert {"magic", "version", *FIELDS} == set(wire.FIELD_NAMES)


@patient
@given(headers)
def test_the_bytes_are_the_wire_record_in_network_order(fields: dict[str, int]) -> None:
    data = wire.encode(made(fields))
    record = np.frombuffer(data[: wire.HEADER_BYTES], dtype=wire.WIRE)[0]
    assert record["magic"] == wire.MAGIC
    assert record["version"] == wire.VERSION
    assert {name: int(record[name]) for name in fields} == fields
    assert data[:2] == b"PA"


@patient
@given(headers)
def test_every_field_round_trips(fields: dict[str, int]) -> None:
    packet = wire.decode(wire.encode(made(fields)))
    assert {name: int(packet[name]) for name in fields} == fields
    assert (packet.magic, packet.version) == (wire.MAGIC, wire.VERSION)


@patient
@given(headers)
def test_the_wire_record_as_written_by_numpy_decodes(fields: dict[str, int]) -> None:
    record = np.zeros(1, dtype=wire.WIRE)
    record["magic"], record["version"] = wire.MAGIC, wire.VERSION
    for name, value in fields.items():
        record[name] = value
    packet = wire.decode(record.tobytes() + bytes(4 * fields["count"]))
    assert {name: int(packet[name]) for name in fields} == fields


@patient
@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=12))
def test_the_payload_follows_as_little_endian_integers(values: list[int]) -> None:
    data = wire.encode(header(count=len(values)), np.array(values, dtype=np.int32))
    assert len(data) == wire.HEADER_BYTES + 4 * len(values)
    assert np.frombuffer(data[wire.HEADER_BYTES :], dtype="<i4").tolist() == values


def test_a_payload_left_out_is_zeros() -> None:
    assert wire.encode(header(count=3))[wire.HEADER_BYTES :] == bytes(12)


GOOD = wire.encode(header(count=2))


def changed(offset: int, value: int, data: bytes = GOOD) -> bytes:
    return data[:offset] + bytes([value]) + data[offset + 1 :]


BAD = {
    "no bytes": (b"", wire.TRUNCATED),
    "half a header": (GOOD[:40], wire.TRUNCATED),
    "one byte short of a header": (GOOD[:63], wire.TRUNCATED),
    "first magic byte": (changed(0, 0), wire.BAD_MAGIC),
    "second magic byte": (changed(1, 0), wire.BAD_MAGIC),
    "version 0": (changed(2, 0), wire.BAD_VERSION),
    "version 1": (changed(2, 1), wire.BAD_VERSION),
    "version 3": (changed(2, 3), wire.BAD_VERSION),
    "kind 0": (changed(3, 0), wire.BAD_KIND),
    "kind 16": (changed(3, 16), wire.BAD_KIND),
    "flag 32": (changed(4, 32), wire.BAD_FLAGS),
    "flag 64": (changed(4, 64), wire.BAD_FLAGS),
    "flag 128": (changed(4, 128), wire.BAD_FLAGS),
    "2049 elements": (wire.encode(header(count=2049)), wire.BAD_COUNT),
    "a byte too many": (GOOD + b"\0", wire.BAD_LENGTH),
    "an element too few": (GOOD[:-4], wire.BAD_LENGTH),
    "fan-in 0": (changed(32, 0), wire.BAD_FAN_IN),
    "fan-in 65": (changed(32, 65), wire.BAD_FAN_IN),
    "upper fan-in 0": (changed(33, 0), wire.BAD_FAN_IN),
    "upper fan-in 65": (changed(33, 65), wire.BAD_FAN_IN),
    "rack 64": (changed(34, 64), wire.BAD_PLACE),
    "level 0": (changed(35, 0), wire.BAD_PLACE),
    "level 3": (changed(35, 3), wire.BAD_PLACE),
    "a gradient of nobody": (wire.encode(header(mask=0)), wire.BAD_MASK),
    "a partial of nobody": (wire.encode(header(wire.PARTIAL, mask=0)), wire.BAD_MASK),
    "chunk 2**62": (wire.encode(header(chunk=2**62)), wire.BAD_CHUNK),
    "a share of nobody": (wire.encode(header(share=1, owner=4096)), wire.BAD_SHARE),
    "a question about a share of nobody": (
        wire.encode(header(wire.QUERY, share=1, owner=65_535)),
        wire.BAD_SHARE,
    ),
    "a share of a rack": (wire.encode(header(share=1, owner=1, level=2)), wire.BAD_SHARE),
    "a share beside its owner's bit": (
        wire.encode(header(mask=6, share=1, owner=66, rack=1)),
        wire.BAD_SHARE,
    ),
    "chunk with its top bit set": (changed(8, 0x80), wire.BAD_CHUNK),
}


@pytest.mark.parametrize(("data", "code"), BAD.values(), ids=BAD.keys())
def test_each_defect_has_its_name(data: bytes, code: int) -> None:
    with pytest.raises(wire.DecodeError) as caught:
        wire.decode(data)
    assert (caught.value.code, caught.value.reason) == (code, wire.ERROR_NAMES[code])


def test_every_error_is_reached() -> None:
    assert {code for _, code in BAD.values()} == set(range(1, len(wire.ERROR_NAMES)))


def test_the_largest_packet_decodes() -> None:
    assert wire.decode(wire.encode(header(count=wire.MAX_ELEMENTS))).count == wire.MAX_ELEMENTS


@pytest.mark.parametrize("kind", [wire.RESULT, wire.REMINDER, wire.PULL, wire.ANSWER, wire.QUERY, wire.ACK])
def test_only_sums_need_a_mask(kind: int) -> None:
    assert wire.decode(wire.encode(header(kind, mask=0))).kind == kind


def test_a_share_stands_for_a_mask() -> None:
    assert wire.decode(wire.encode(header(mask=0, share=5))).share == 5


def header_or_error(data: bytes) -> None:
    """Bytes give a header that encodes to the same bytes, or one named error."""
    packet = wire.new_packets(1)[0]
    code = wire.decode_into(np.frombuffer(data, dtype=np.uint8), len(data), packet)
    if code == wire.OK:
        assert wire.encode(packet)[: wire.HEADER_BYTES] == data[: wire.HEADER_BYTES]
    else:
        assert 0 < code < len(wire.ERROR_NAMES)


@patient
@given(st.binary(max_size=200))
def test_random_bytes_give_a_header_or_one_error(data: bytes) -> None:
    header_or_error(data)
    header_or_error(GOOD[:4] + data)


@patient
@given(headers, st.integers(0, 8 * 72 - 1), st.integers(0, 80))
def test_a_flipped_bit_or_a_cut_gives_a_header_or_one_error(
    fields: dict[str, int], place: int, cut: int
) -> None:
    data = bytearray(wire.encode(made({**fields, "count": 2})))
    data[place // 8] ^= 1 << place % 8
    header_or_error(bytes(data))
    header_or_error(bytes(data[:cut]))


@pytest.mark.parametrize("length", [-1, 0, 63, 73, 1 << 40])
def test_a_length_that_the_buffer_does_not_have_reads_nothing(length: int) -> None:
    packet = wire.new_packets(1)[0]
    before = packet.tobytes()
    assert wire.decode_into(np.frombuffer(GOOD, dtype=np.uint8), length, packet) == wire.TRUNCATED
    assert packet.tobytes() == before


def test_bytes_past_the_length_given_do_not_matter() -> None:
    buffer = np.full(400, 255, dtype=np.uint8)
    buffer[: len(GOOD)] = np.frombuffer(GOOD, dtype=np.uint8)
    packet = wire.new_packets(1)[0]
    assert wire.decode_into(buffer, len(GOOD), packet) == wire.OK
    assert wire.decode_into(buffer, len(GOOD) + 1, packet) == wire.BAD_LENGTH


def test_every_kind_and_flag_is_explained() -> None:
    assert sorted(wire.KIND_NAMES) == list(range(wire.GRADIENT, wire.KIND_LAST + 1))
    assert sum(wire.FLAG_NAMES) == 31
