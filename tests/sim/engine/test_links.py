"""A link by hand: rate, delay, order, drop-tail, ECN; and the pool of packets."""

from typing import Any

import numpy as np
import pytest

from paceline.core.wire import ECN, PACKET
from paceline.sim.build.topology import build_links, place_jobs
from paceline.sim.engine.event_queue import NEVER_NS, new_queue, time_of
from paceline.sim.engine.links import (
    POOL_PACKET,
    RING_START,
    copy_packet,
    dequeue,
    drop_reference,
    enqueue,
    grown_pool,
    new_pool,
    take,
)
from tests.sim.scenes import OVERHEAD_BYTES, job, scene

COUNT = 100
PACKET_NS = OVERHEAD_BYTES + 4 * COUNT
"""At 8 Gbit/s a byte takes a nanosecond."""
DELAY_NS = 700
UPLINK, DOWNLINK = 0, 2
"""Of host 0 in a star of two."""


class Wire:
    """One link of a star, with its queue and pool."""

    def __init__(self, at: int, ring: int = 16, classes: int = 1, **network: Any) -> None:
        scenario = scene(
            job(workers=2),
            network={"rate": 8e9, "delay": DELAY_NS * 1e-9, **network},
            switch={"classes": classes},
        )
        place = place_jobs(scenario, scenario.expanded_jobs(), 0)
        self.links = build_links(scenario, place, ring)
        self.links.state[at].classes = classes
        self.queue = new_queue(self.links.state.shape[0])
        self.pool = new_pool(32, 2)
        self.at = at

    @property
    def link(self) -> Any:
        return self.links.state[self.at]

    def send(self, now_ns: int = 0, to: int = -1, count: int = COUNT, priority: int = 0) -> int:
        p = take(self.pool)
        self.pool.packets[p].count = count
        self.pool.packets[p].priority = priority
        enqueue(self.links, self.queue, self.pool, self.at, p, to, now_ns)
        return p

    def arrival_ns(self) -> int:
        assert int(self.queue.nodes[1].entity) == self.at
        return int(time_of(self.queue, self.at))

    def receive(self) -> tuple[int, int, int]:
        now_ns = self.arrival_ns()
        return tuple(int(part) for part in dequeue(self.links, self.queue, self.pool, self.at, now_ns))  # type: ignore[return-value]

    def received(self) -> list[tuple[int, int]]:
        """All that is on its way, in the order of arrival: the time, and to whom."""
        arrivals = []
        while self.link.length > 0:
            arrivals.append((self.arrival_ns(), self.receive()[2]))
        return arrivals


def test_a_packet_arrives_after_its_bytes_at_the_rate_and_the_delay() -> None:
    wire = Wire(UPLINK)
    wire.send(now_ns=10_000)
    assert wire.arrival_ns() == 10_000 + PACKET_NS + DELAY_NS


def test_a_fraction_of_a_nanosecond_is_kept_between_packets_and_rounded_up_at_arrival() -> None:
    wire = Wire(UPLINK, rate=80e9)
    arrivals = []
    for _ in range(10):
        wire.send(count=COUNT + 1)
    for _ in range(10):
        arrivals.append(wire.arrival_ns())
        wire.receive()
    size = PACKET_NS + 4
    assert arrivals == [-(-size * (k + 1) // 10) + DELAY_NS for k in range(10)]


def test_packets_follow_each_other_at_the_rate_in_the_order_sent() -> None:
    wire = Wire(UPLINK)
    sent = [wire.send(now_ns=100 * k, to=k) for k in range(5)]
    for k, p in enumerate(sent):
        assert wire.arrival_ns() == (k + 1) * PACKET_NS + DELAY_NS
        assert wire.receive() == (p, 0, k)
    assert time_of(wire.queue, wire.at) == NEVER_NS
    assert (wire.link.packets, wire.link.size_bytes) == (5, 5 * PACKET_NS)


def test_an_idle_link_starts_anew() -> None:
    wire = Wire(UPLINK)
    wire.send(now_ns=0)
    wire.receive()
    wire.send(now_ns=50_000)
    assert wire.arrival_ns() == 50_000 + PACKET_NS + DELAY_NS


def test_beyond_the_queue_packets_are_dropped_and_given_back() -> None:
    """Backlog before packet k is k packets: with room for two and a half, packet 3 is the first to go."""
    wire = Wire(DOWNLINK, queue=PACKET_NS * 5 // 2)
    for _ in range(5):
        wire.send()
    assert (wire.link.length, wire.link.drops) == (3, 2)
    assert int(wire.pool.meta[0]) == 32 - 3


def test_room_comes_back_as_the_link_works_off_its_backlog() -> None:
    wire = Wire(DOWNLINK, queue=PACKET_NS)
    for _ in range(3):
        wire.send()
    assert wire.link.drops == 1
    wire.send(now_ns=PACKET_NS)
    assert wire.link.drops == 1
    wire.send(now_ns=PACKET_NS)
    assert wire.link.drops == 2


def test_beyond_the_threshold_packets_are_marked() -> None:
    """Above one and a half packets of backlog: packets 2 and 3."""
    wire = Wire(DOWNLINK, ecn=PACKET_NS * 3 // 2)
    for _ in range(4):
        wire.send()
    assert [wire.receive()[1] for _ in range(4)] == [0, 0, ECN, ECN]
    assert wire.link.marks == 2


def test_a_host_never_drops_nor_marks_what_it_sends_itself() -> None:
    wire = Wire(UPLINK, queue=1, ecn=1)
    for _ in range(6):
        wire.send()
    assert (wire.link.length, wire.link.drops, wire.link.marks) == (6, 0, 0)


def test_a_full_ring_drops() -> None:
    wire = Wire(UPLINK, ring=4)
    for _ in range(6):
        wire.send()
    assert (wire.link.length, wire.link.drops) == (4, 2)


def test_a_ring_wraps_around() -> None:
    wire = Wire(UPLINK, ring=4)
    for k in range(11):
        p = wire.send(now_ns=k * 10_000, to=k)
        assert wire.receive() == (p, 0, k)
        drop_reference(wire.pool, p)
    assert int(wire.pool.meta[0]) == 32


@pytest.mark.parametrize("taken", [0, 5, 15])
def test_a_ring_takes_more_places_when_it_needs_them_and_keeps_the_order(taken: int) -> None:
    """Wherever its oldest packet lies; and with marks, destinations and times."""
    wire = Wire(UPLINK, ring=128)
    wire.pool = new_pool(256, 2)
    sent = [(wire.send(to=k), k) for k in range(16)]
    assert wire.link.mask == RING_START - 1
    for p, to in sent[:taken]:
        assert wire.receive() == (p, 0, to)
    sent = sent[taken:] + [(wire.send(to=k), k) for k in range(16, 116)]
    assert wire.link.mask == 127
    assert wire.link.length == 116 - taken
    before_ns = 0
    for p, to in sent:
        assert wire.arrival_ns() > before_ns
        before_ns = wire.arrival_ns()
        assert wire.receive() == (p, 0, to)
    wire.send(to=7)
    assert wire.receive()[2] == 7


def test_a_shared_packet_returns_to_the_pool_with_its_last_reference() -> None:
    pool = new_pool(4, 0)
    p = take(pool)
    pool.packets[p].references = 3
    for left in (3, 3, 4):
        drop_reference(pool, p)
        assert int(pool.meta[0]) == left


def test_a_copy_has_the_content_and_a_life_of_its_own() -> None:
    pool = new_pool(4, 2)
    p = take(pool)
    pool.packets[p].chunk, pool.packets[p].references = 77, 2
    pool.values[p] = (5, 6)
    q = copy_packet(pool, p)
    assert q != p
    assert (pool.packets[q].chunk, pool.packets[q].references) == (77, 1)
    assert pool.values[q].tolist() == [5, 6]


@pytest.mark.parametrize("taken", [0, 3, 4])
def test_a_grown_pool_keeps_what_is_in_flight_and_hands_out_the_rest_once(taken: int) -> None:
    pool = new_pool(4, 1)
    held = [take(pool) for _ in range(taken)]
    for p in held:
        pool.values[p] = 100 + p
    bigger = grown_pool(pool)
    assert int(bigger.meta[0]) == 8 - taken
    assert [int(bigger.values[p, 0]) for p in held] == [100 + p for p in held]
    rest = [take(bigger) for _ in range(8 - taken)]
    assert sorted(held + rest) == list(range(8))
    assert np.all(bigger.packets.references[rest] == 1)


def test_numba_takes_no_packet_of_the_pool_for_one_of_the_core() -> None:
    from numba import from_dtype

    # A subtype would run what was compiled for the core's packets before, with a warning that fails a cold run.
    assert from_dtype(POOL_PACKET).can_convert_to(None, from_dtype(PACKET)) is None
    assert POOL_PACKET.itemsize == 128, "two cache lines"
    assert new_pool(4, 0).packets.ctypes.data % 64 == 0


# --- classes of strict priority --------------------------------------------------------------------------------


def test_the_more_urgent_goes_first_of_what_waits() -> None:
    wire = Wire(DOWNLINK, classes=4)
    for to, priority in enumerate((10, 10, 200, 10, 200)):
        wire.send(to=to, priority=priority)
    assert [to for _, to in wire.received()] == [0, 2, 4, 1, 3], "what is on the wire stays there"


def test_what_comes_later_overtakes_only_what_has_not_begun() -> None:
    wire = Wire(DOWNLINK, classes=2)
    for to in range(3):
        wire.send(to=to, priority=10)
    wire.send(now_ns=PACKET_NS + 1, to=3, priority=200)
    assert [to for _, to in wire.received()] == [0, 1, 3, 2]


def test_classes_change_the_order_and_not_the_times() -> None:
    sizes = (1, 300, 7, 40, 2, 90, 500, 3)
    arrivals = []
    for classes in (1, 8):
        wire = Wire(DOWNLINK, classes=classes, rate=7.7e9)
        for to, count in enumerate(sizes):
            wire.send(now_ns=97 * to, to=to, count=count, priority=10)
        arrivals.append(wire.received())
        assert (wire.link.packets, wire.link.length, wire.link.waiting) == (len(sizes), 0, 0)
    assert arrivals[0] == arrivals[1], "of equal priority: first in, first out"


def test_an_urgent_packet_finds_the_queue_of_those_before_it_only() -> None:
    queue = 3 * PACKET_NS
    wire = Wire(DOWNLINK, classes=2, queue=queue, ecn=PACKET_NS)
    for to in range(8):
        wire.send(to=to, priority=10)
    assert (wire.link.drops, wire.link.marks) == (4, 2)
    wire.send(to=9, priority=200)
    assert (wire.link.drops, wire.link.marks) == (4, 2), "what waits behind it does not count"


def test_questions_have_no_payload_and_wait_for_nothing() -> None:
    wire = Wire(DOWNLINK, classes=2)
    for to, count in enumerate((COUNT, COUNT, 0)):
        wire.send(to=to, count=count, priority=10)
    assert [to for _, to in wire.received()] == [0, 2, 1]


def test_bounds_between_classes_follow_what_comes() -> None:
    """Ranks far apart end in different queues, whatever their range is."""
    for low, high in ((1, 9), (100, 120), (200, 255)):
        wire = Wire(DOWNLINK, ring=32, classes=2)
        for to in range(6):
            wire.send(to=to, priority=low if to % 2 else high)
        assert [to % 2 for _, to in wire.received()] == [0, 0, 0, 1, 1, 1]
