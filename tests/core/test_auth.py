"""The tag: the values of the SipHash paper, and what a change of any bit does to a packet."""

import numpy as np
import pytest

from paceline.core import auth, wire

KEY = bytes(range(16))
# SipHash-2-4 of the bytes 0, 1, ... n-1 under KEY: the reference vectors of the algorithm's authors.
VECTORS = {
    0: 0x726FDB47DD0E0E31,
    1: 0x74F839C593DC67FD,
    2: 0x0D6C8009D9A94F5A,
    3: 0x85676696D7FB7E2D,
    7: 0xAB0200F58B01D137,
    8: 0x93F5F5799A932462,
    9: 0x9E0082DF0BA9E4B0,
    15: 0xA129CA6149BE45E5,
    16: 0x3F2ACC7F57C29BDB,
    63: 0x958A324CEB064572,
}


def _packet(count: int = 3) -> np.ndarray:
    packet = wire.new_packets(1)[0]
    packet.kind, packet.job, packet.chunk, packet.mask = wire.GRADIENT, 7, 12345, 1
    packet.fan_in = packet.fan_in_upper = packet.level = 1
    packet.count = count
    return np.frombuffer(wire.encode(packet, np.arange(count) + 99), dtype=np.uint8).copy()


@pytest.mark.parametrize(("length", "expected"), VECTORS.items())
def test_the_papers_values(length: int, expected: int) -> None:
    key0, key1 = auth.key_words(KEY)
    data = np.arange(64, dtype=np.uint8)
    assert int(auth.tag_of(key0, key1, data, length)) == expected


def test_a_key_has_16_bytes() -> None:
    with pytest.raises(ValueError, match="16 bytes, not 15"):
        auth.key_words(KEY[:15])


@pytest.mark.parametrize("full", [False, True])
def test_a_sealed_packet_is_genuine_anywhere_in_a_buffer(full: bool) -> None:
    key0, key1 = auth.key_words(KEY)
    packet = _packet()
    buffer = np.full(len(packet) + 20, 170, dtype=np.uint8)
    buffer[5 : 5 + len(packet)] = packet
    assert not auth.is_genuine(key0, key1, buffer, 5, len(packet), full)
    auth.seal(key0, key1, buffer, 5, len(packet), full)
    assert auth.is_genuine(key0, key1, buffer, 5, len(packet), full)
    header = buffer[5 : 5 + len(packet)].copy()
    assert int(wire.decode(header.tobytes()).tag) == int(
        auth.packet_tag(key0, key1, header, 0, len(packet), full)
    )
    other0, other1 = auth.key_words(bytes(16))
    assert not auth.is_genuine(other0, other1, buffer, 5, len(packet), full)


@pytest.mark.parametrize("full", [False, True])
def test_every_bit_that_the_tag_covers_matters(full: bool) -> None:
    key0, key1 = auth.key_words(KEY)
    packet = _packet()
    auth.seal(key0, key1, packet, 0, len(packet), full)
    for position in range(8 * len(packet)):
        packet[position // 8] ^= 1 << (position % 8)
        covered = full or position < 8 * wire.HEADER_BYTES
        assert auth.is_genuine(key0, key1, packet, 0, len(packet), full) != covered
        packet[position // 8] ^= 1 << (position % 8)
