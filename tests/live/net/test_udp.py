"""Batches of datagrams over loopback: what is sent arrives whole, in order, from whom it came; trains; waiting."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.live.net import sockets, syscalls, udp


class Pair:
    """Two sockets on loopback, and what they need."""

    def __init__(self) -> None:
        self.a, self.b = sockets.open_socket("127.0.0.1"), sockets.open_socket("127.0.0.1")
        self.inbox, self.outbox = udp.new_inbox(), udp.new_outbox()
        self.waiter = syscalls.new_waiter(self.b.fd)
        self.to_b = np.uint64(sockets.pack_address("127.0.0.1", self.b.port))
        self.from_a = sockets.pack_address("127.0.0.1", self.a.port)

    def post(self, payload: bytes, to: Any = None) -> None:
        start = udp.room_for(self.outbox, len(payload))
        assert start >= 0
        self.outbox.data[start : start + len(payload)] = np.frombuffer(payload, dtype=np.uint8)
        assert udp.post(self.outbox, start, len(payload), self.to_b if to is None else to)

    def receive(self, count: int) -> list[bytes]:
        """Packets that came to b, until there are `count` or nothing comes for two seconds."""
        got: list[bytes] = []
        while len(got) < count and syscalls.wait(self.waiter, 2_000_000_000, False) & syscalls.READABLE:
            for i in range(udp.receive(self.b.fd, self.inbox)):
                segment = self.inbox.segments[i]
                assert int(segment.source) == self.from_a
                got.append(self.inbox.data[segment.start : segment.start + segment.length].tobytes())
        return got

    def close(self) -> None:
        syscalls.close_waiter(self.waiter)
        self.a.close()
        self.b.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def test_equal_packets_travel_in_trains_and_arrive_in_order(pair: Pair) -> None:
    sent = [bytes([i]) * 1472 for i in range(100)]
    for payload in sent:
        pair.post(payload)
    assert pair.outbox.cells[0].trains == 3
    assert udp.flush(pair.a.fd, pair.outbox) == 0
    assert pair.outbox.cells[0].calls == 1
    assert pair.receive(100) == sent
    assert pair.outbox.cells[0].packets == pair.inbox.cells[0].packets == 100
    assert pair.outbox.cells[0].bytes == pair.inbox.cells[0].bytes == 147_200
    assert pair.inbox.cells[0].calls <= 3


def test_sizes_mix_and_a_shorter_one_ends_its_train(pair: Pair) -> None:
    sent = [bytes([i]) * size for i, size in enumerate([700, 700, 64, 700, 900, 900, 64, 64, 0, 8256])]
    for payload in sent:
        pair.post(payload)
    assert pair.outbox.cells[0].trains == 6
    assert udp.flush(pair.a.fd, pair.outbox) == 0
    assert pair.receive(10) == sent


def test_a_multicast_is_written_once_and_trains_may_have_gaps(pair: Pair) -> None:
    other = sockets.open_socket("127.0.0.1")
    to_other = np.uint64(sockets.pack_address("127.0.0.1", other.port))
    for i in range(10):
        pair.post(bytes([i]) * 100)
        if i % 3 == 0:
            assert udp.post(pair.outbox, udp.room_for(pair.outbox, 0) - 104, 100, to_other)
    assert pair.outbox.cells[0].trains == 2
    assert pair.outbox.trains[1].pieces == 4
    assert udp.flush(pair.a.fd, pair.outbox) == 0
    assert pair.receive(10) == [bytes([i]) * 100 for i in range(10)]
    assert udp.receive(other.fd, pair.inbox) == 4
    assert [int(pair.inbox.data[pair.inbox.segments[i].start]) for i in range(4)] == [0, 3, 6, 9]
    other.close()


def test_a_full_outbox_says_so_and_is_empty_after_a_flush(pair: Pair) -> None:
    outbox = udp.new_outbox(capacity_bytes=1000, trains=2)
    assert udp.room_for(outbox, 1001) == -1
    assert udp.post(outbox, udp.room_for(outbox, 600), 600, pair.to_b)
    assert udp.room_for(outbox, 600) == -1
    assert udp.post(outbox, 600, 10, pair.to_b)  # shorter: ends the train
    assert udp.post(outbox, 640, 10, pair.to_b)
    assert not udp.post(outbox, 700, 20, pair.to_b)
    assert udp.flush(pair.a.fd, outbox) == 0
    assert [len(got) for got in pair.receive(3)] == [600, 10, 10]
    assert udp.room_for(outbox, 1000) == 0


def test_what_cannot_be_reached_is_counted_and_the_rest_goes_on(pair: Pair) -> None:
    pair.post(b"nowhere", np.uint64(sockets.pack_address("255.255.255.255", 9)))
    pair.post(b"here")
    assert udp.flush(pair.a.fd, pair.outbox) == 0
    assert pair.outbox.cells[0].errors == 1
    assert pair.receive(1) == [b"here"]


def test_nothing_to_receive_is_nothing(pair: Pair) -> None:
    assert udp.receive(pair.b.fd, pair.inbox) == 0
    assert pair.inbox.cells[0].errors == 0


def test_waiting_ends_by_time_by_packet_and_by_wake_up(pair: Pair) -> None:
    started = time.monotonic()
    assert syscalls.wait(pair.waiter, 30_000_000, False) == 0
    assert time.monotonic() - started >= 0.03
    assert syscalls.wait(pair.waiter, 0, True) == syscalls.WRITABLE
    waker = threading.Timer(0.05, syscalls.wake, (pair.waiter,))
    waker.start()
    assert syscalls.wait(pair.waiter, syscalls.FOREVER_NS, False) == syscalls.WOKEN
    waker.join()
    assert syscalls.wait(pair.waiter, 0, False) == 0, "a wake-up is taken once"
    pair.post(b"x")
    udp.flush(pair.a.fd, pair.outbox)
    assert syscalls.wait(pair.waiter, 2_000_000_000, False) == syscalls.READABLE


def test_the_clock_is_the_monotonic_one(pair: Pair) -> None:
    before = time.monotonic_ns()
    assert before <= syscalls.now_ns(pair.waiter) <= time.monotonic_ns()


def test_addresses_mtu_and_elements() -> None:
    assert sockets.unpack_address(sockets.pack_address("10.1.2.3", 65535)) == ("10.1.2.3", 65535)
    with pytest.raises(UserError, match="not an IPv4 address"):
        sockets.pack_address("::1", 1)
    assert sockets.path_mtu("127.0.0.1") >= 16_384
    assert [sockets.elements_for(mtu) for mtu in (1500, 9000, 65536)] == [352, 2048, 2048]
    with pytest.raises(UserError, match="no room"):
        sockets.elements_for(90)


def test_a_port_that_is_taken_is_the_users_mistake(pair: Pair) -> None:
    with pytest.raises(UserError, match="cannot listen there: Address already in use"):
        sockets.open_socket("127.0.0.1", pair.b.port)


def test_a_small_kernel_buffer_is_told_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_SO_RCVBUFFORCE", 9999)  # as if we were not root
    made = sockets.open_socket("127.0.0.1", buffer_bytes=1 << 30)
    assert any("sudo sysctl -w net.core.rmem_max=1073741824" in warning for warning in made.warnings)
    made.close()
