"""A link by hand: rate, delay, order, drop-tail, ECN; and the pool of packets."""

from typing import Any

import numpy as np
import pytest

from paceline.core.wire import ECN, PACKET
from paceline.sim.build.topology import build_links, place_jobs
from paceline.sim.engine.event_queue import NEVER_NS, new_queue
from paceline.sim.engine.links import (
    POOL_PACKET,
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

    def __init__(self, at: int, ring: int = 16, **network: Any) -> None:
        scenario = scene(job(workers=2), network={"rate": 8e9, "delay": DELAY_NS * 1e-9, **network})
        place = place_jobs(scenario, scenario.expanded_jobs(), 0)
        self.links = build_links(scenario, place, ring)
        self.queue = new_queue(self.links.state.shape[0])
        self.pool = new_pool(32, 2)
        self.at = at

    @property
    def link(self) -> Any:
        return self.links.state[self.at]

    def send(self, now_ns: int = 0, to: int = -1, count: int = COUNT) -> int:
        p = take(self.pool)
        self.pool.packets[p].count = count
        enqueue(self.links, self.queue, self.pool, self.at, p, to, now_ns)
        return p

    def arrival_ns(self) -> int:
        assert int(self.queue.winner[1]) == self.at
        return int(self.queue.time_ns[self.at])

    def receive(self) -> tuple[int, int, int]:
        return tuple(int(part) for part in dequeue(self.links, self.queue, self.at))  # type: ignore[return-value]


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
    assert wire.queue.time_ns[wire.at] == NEVER_NS
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
    assert POOL_PACKET.itemsize == PACKET.itemsize
