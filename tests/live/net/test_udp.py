"""Batches of datagrams over loopback: what is sent arrives whole, in order, from whom it came; trains; waiting."""

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.live.net import addresses, sockets, syscalls, udp


class Pair:
    """Two sockets on loopback, and what they need."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.a, self.b = sockets.open_socket(host), sockets.open_socket(host)
        self.inbox, self.outbox = udp.new_inbox(), udp.new_outbox()
        udp.fit(self.outbox, self.a.fd)
        self.waiter = syscalls.new_waiter(self.b.fd)
        self.to_b = np.uint64(sockets.pack_address(host, self.b.port))
        self.from_a = sockets.pack_address(host, self.a.port)

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


@pytest.fixture(params=["127.0.0.1", "::1"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(request.param)
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
    other = sockets.open_socket(pair.b.host)
    to_other = np.uint64(sockets.pack_address(pair.b.host, other.port))
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
    udp.fit(outbox, pair.a.fd)
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
    with pytest.raises(UserError, match="not an IP address"):
        sockets.pack_address("::1::", 1)
    assert sockets.path_mtu("127.0.0.1") >= 16_384
    assert [sockets.elements_for(mtu) for mtu in (1500, 9000, 65536)] == [352, 2048, 2048]
    assert [sockets.elements_for(mtu, ipv6=True) for mtu in (1500, 1520)] == [320, 352]
    with pytest.raises(UserError, match="no room"):
        sockets.elements_for(90)


def test_a_port_that_is_taken_is_the_users_mistake(pair: Pair) -> None:
    with pytest.raises(UserError, match="cannot listen there: Address already in use"):
        sockets.open_socket(pair.b.host, pair.b.port)


def test_a_small_kernel_buffer_is_told_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_SO_RCVBUFFORCE", 9999)  # as if we were not root
    made = sockets.open_socket("127.0.0.1", buffer_bytes=1 << 30)
    assert any("sudo sysctl -w net.core.rmem_max=1073741824" in warning for warning in made.warnings)
    made.close()


def test_a_socket_on_all_addresses_speaks_both_families() -> None:
    both, old, new = sockets.open_socket("::"), sockets.open_socket("127.0.0.1"), sockets.open_socket("::1")
    inbox, outbox = udp.new_inbox(), udp.new_outbox()
    udp.fit(outbox, both.fd)
    old.socket.sendto(b"old", ("127.0.0.1", both.port))
    new.socket.sendto(b"new", ("::1", both.port))
    sources = []
    waiter = syscalls.new_waiter(both.fd)
    while len(sources) < 2 and syscalls.wait(waiter, 2_000_000_000, False):
        sources += [int(inbox.segments[i].source) for i in range(udp.receive(both.fd, inbox))]
    known = [sockets.pack_address("127.0.0.1", old.port), sockets.pack_address("::1", new.port)]
    assert sorted(sources) == sorted(known)
    for to in known:
        outbox.data[:4] = 7
        assert udp.post(outbox, 0, 4, np.uint64(to))
    assert udp.flush(both.fd, outbox) == 0
    assert outbox.cells[0].errors == 0
    for made in (old, new):
        made.socket.settimeout(2)
        assert made.socket.recv(10) == bytes([7] * 4)
    syscalls.close_waiter(waiter)
    for made in (both, old, new):
        made.close()


def test_an_ipv6_host_cannot_be_reached_over_ipv4_and_a_stranger_has_no_number(pair: Pair) -> None:
    if pair.b.host == "::1":
        lone = udp.new_inbox()._replace(book=addresses.new_book())
        pair.a.socket.sendto(b"x", ("::1", pair.b.port))
        assert syscalls.wait(pair.waiter, 2_000_000_000, False) & syscalls.READABLE
        assert udp.receive(pair.b.fd, lone) == 1
        assert int(lone.segments[0].source) == addresses.STRANGER | pair.a.port
        return
    pair.post(b"nowhere", np.uint64(sockets.pack_address("::1", pair.b.port)))
    assert udp.flush(pair.a.fd, pair.outbox) == 0
    assert pair.outbox.cells[0].errors == 1


@pytest.mark.parametrize("packets", [1, 3], ids=["alone", "in a train"])
@pytest.mark.parametrize("service", [0, 0x28, 0x90])
def test_a_train_says_how_urgent_it_is(pair: Pair, packets: int, service: int) -> None:
    if not sockets.takes_service():
        pytest.skip("this kernel takes no service for a single datagram")
    pair.b.socket.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    pair.outbox.cells[0].service = service
    for _ in range(packets):
        pair.post(bytes(100))
    assert pair.outbox.cells[0].trains == 1
    assert udp.flush(pair.a.fd, pair.outbox) == 0
    assert pair.outbox.cells[0].errors == 0
    syscalls.wait(pair.waiter, 2_000_000_000, False)
    data, told, _, _ = pair.b.socket.recvmsg(4096, 256)
    assert len(data) == 100 * packets
    known = [value[0] for level, kind, value in told if (level, kind) == (0, socket.IP_TOS)]
    assert known == ([] if pair.b.host == "::1" else [service])  # IPv6 has another byte for it


def test_marks_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_DSCP", "off")
    sockets.takes_service.cache_clear()
    try:
        assert udp.new_outbox().cells[0].services == 0
    finally:
        sockets.takes_service.cache_clear()
