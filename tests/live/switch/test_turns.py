"""A job's share of a shard: a flood of one job is dropped beyond its share, by the shard and then by the kernel."""

import socket
import threading
import time
from collections.abc import Callable

import numpy as np

from paceline.core import wire
from paceline.core.auth import key_words, seal
from paceline.live.switch.police import KEEP_MIN, ShardPolice, filter_program, set_filter
from paceline.live.switch.shard_state import DROP_SHARE, Shard, admit, grant, new_shard
from paceline.live.switch.turns import DROP_UNITS, SHARE, TURN_NS, end_turn, may_be_served, spend
from tests.live.agents import job_of, running_switch, tensors_of

FLOODER, NEIGHBOUR = 0, 1


def _shard(fd: int, jobs: int = 2) -> Shard:
    shard = new_shard(
        fd,
        level=1,
        slots=8,
        jobs=jobs,
        width=32,
        policy=0,
        stale_ns=10**8,
        seed=1,
        full_tag=False,
        faults=(0.0, 0.0, 0.0),
        pcap_fd=-1,
        pcap_bytes=0,
        address=0,
    )
    for job in range(jobs):
        admit(shard, job, key_words(bytes(16)), 2, 1, epoch=0, now_ns=0)
        grant(shard, job, 255, 8, 0, 0)
    return shard


def _sockets() -> tuple[socket.socket, socket.socket]:
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))
    receiver.setblocking(False)
    return receiver, socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def _fill(receiver: socket.socket, sender: socket.socket) -> None:
    """Packets until the queue has no room."""
    for _ in range(2000):
        sender.sendto(bytes(1000), receiver.getsockname())


def test_a_crowded_shard_gives_each_job_its_share_and_one_that_keeps_up_limits_nobody() -> None:
    receiver, sender = _sockets()
    shard = _shard(receiver.fileno())
    now = 10 * TURN_NS
    shard.cells[0].turn_ns = now
    for turn in range(6):
        assert may_be_served(shard, FLOODER, now), "five turns with a long queue make it crowded"
        if turn == 0:
            _fill(receiver, sender)
        spend(shard.jobs[FLOODER], 900)
        spend(shard.jobs[NEIGHBOUR], 100)
        now += TURN_NS
        end_turn(shard, now)
    left = int(shard.jobs[FLOODER].left)
    assert abs(left - SHARE * 1000) <= 1
    spend(shard.jobs[FLOODER], left)
    assert not may_be_served(shard, FLOODER, now)
    assert may_be_served(shard, NEIGHBOUR, now)
    assert int(shard.jobs[FLOODER].work_ns) > 8 * int(shard.jobs[NEIGHBOUR].work_ns)
    # The queue is gone: nobody is limited any more.
    while True:
        try:
            receiver.recv(2000)
        except BlockingIOError:
            break
    spend(shard.jobs[FLOODER], DROP_UNITS)
    now += TURN_NS
    end_turn(shard, now)
    shard.jobs[FLOODER].left = 0
    assert may_be_served(shard, FLOODER, now)
    receiver.close()
    sender.close()


def test_jobs_that_flood_together_share_what_one_would_have() -> None:
    """One shard, six jobs that flood it and one that wants a little: that one is not limited, the six are."""
    receiver, sender = _sockets()
    shard = _shard(receiver.fileno(), jobs=8)
    _fill(receiver, sender)
    now = TURN_NS
    shard.cells[0].turn_ns = now
    little, idle = 6, 7
    for _ in range(6):
        for flooder in range(6):
            spend(shard.jobs[flooder], 160)
        spend(shard.jobs[little], 40)
        now += TURN_NS
        end_turn(shard, now)
    left = [int(shard.jobs[job].left) for job in range(8)]
    assert len(set(left)) == 1, "a part of the turn, the same for all"
    assert abs(left[idle] - SHARE * 1000 / 6) <= 1
    for flooder in range(6):
        spend(shard.jobs[flooder], 160)
        assert not may_be_served(shard, flooder, now)
    spend(shard.jobs[little], 40)
    assert may_be_served(shard, little, now)
    receiver.close()
    sender.close()


def test_a_job_alone_is_never_limited() -> None:
    receiver, sender = _sockets()
    shard = _shard(receiver.fileno())
    _fill(receiver, sender)
    now = TURN_NS
    for _ in range(20):
        spend(shard.jobs[FLOODER], 1000)
        now += TURN_NS
        end_turn(shard, now)
    shard.jobs[FLOODER].left = 0
    assert may_be_served(shard, FLOODER, now)
    receiver.close()
    sender.close()


def _packet(job: int, key: bytes, kind: int = wire.QUERY, count: int = 0) -> bytes:
    packet = wire.new_packets(1)[0]
    wire.clear(packet, kind)
    packet.job, packet.count, packet.fan_in = job, count, 2
    data = np.frombuffer(bytearray(wire.encode(packet)), dtype=np.uint8)
    seal(*key_words(key), data, 0, len(data), False)
    return data.tobytes()


def _drain(receiver: socket.socket) -> list[int]:
    jobs = []
    try:
        while True:
            jobs.append(int(wire.decode(receiver.recv(2000)).job))
    except BlockingIOError:
        return jobs


def test_the_kernel_refuses_a_part_of_one_jobs_packets_and_takes_all_of_the_others() -> None:
    receiver, sender = _sockets()
    assert len(filter_program({3: 0.5, 9: 0.1})) == 12
    mine, other = _packet(3, bytes(16)), _packet(4, bytes(16))
    for keep, low, high in ((0.0, 0, 0), (0.5, 10, 90), (1.0, 100, 100)):
        set_filter(receiver, {3: keep} if keep < 1.0 else {})
        for _ in range(100):
            sender.sendto(mine, receiver.getsockname())
            sender.sendto(other, receiver.getsockname())
        jobs = _drain(receiver)
        assert low <= jobs.count(3) <= high
        assert jobs.count(4) == 100
    set_filter(receiver, {})
    receiver.close()
    sender.close()


def test_what_is_over_the_share_is_refused_and_taken_again_when_it_ends() -> None:
    receiver, sender = _sockets()
    shard = _shard(receiver.fileno())
    police = ShardPolice(receiver, shard)
    jobs = (FLOODER, NEIGHBOUR)
    for job in jobs:
        shard.jobs[job].packets_in = 100
    assert police.look(jobs) == []
    shard.jobs[FLOODER].packets_in += 100
    shard.drops[FLOODER, DROP_SHARE] += 900
    assert police.look(jobs) == [FLOODER]
    assert police.keep == {FLOODER: 0.1}
    for _ in range(30):
        shard.drops[FLOODER, DROP_SHARE] += 1000
        police.look(jobs)
    assert police.keep == {FLOODER: KEEP_MIN}
    for _ in range(30):
        police.look(jobs)
    assert police.keep == {}
    receiver.close()
    sender.close()


class Flood:
    """Two workers of a job that do nothing but send questions, which the switch has to answer."""

    def __init__(self, switch: object, senders: int = 2) -> None:
        control = switch.control  # type: ignore[attr-defined]
        self.admission = control.admit("flood", 2)
        self._sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(senders)]
        for worker, sock in enumerate(self._sockets[:2]):
            sock.bind(("127.0.0.1", 0))
            control.bind(self.admission, worker, sock.getsockname())
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(sock,)) for sock in self._sockets[:2]]

    def _send(self, sock: socket.socket) -> None:
        # A result goes to every worker: each costs a copy for each of them.
        train = _packet(self.admission.job, self.admission.key, wire.RESULT, 300) * 40
        sock.setsockopt(socket.IPPROTO_UDP, 103, len(train) // 40)
        where = (self.admission.host, self.admission.shards[0])
        while not self._stop.is_set():
            try:
                sock.sendto(train, where)
            except OSError:
                time.sleep(0.001)

    def __enter__(self) -> "Flood":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for sock in self._sockets:
            sock.close()


def _until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def test_one_jobs_flood_is_held_to_its_share_and_the_other_job_goes_on() -> None:
    with running_switch(elements=352) as switch, job_of(2, switch) as job:
        arrays = tensors_of(2, 20_000, 1)
        expected = job.reduce(arrays)[0].tobytes()
        shard = switch.switch.threads[0].shard
        with Flood(switch) as flood:
            number = flood.admission.job
            _until(lambda: _reduces(job, arrays, expected) and shard.drops[number, DROP_SHARE] > 0, "dropped")
            _until(lambda: _reduces(job, arrays, expected) and bool(switch.switch.police[0].keep), "refused")
            assert set(switch.switch.police[0].keep) == {number}
            for _ in range(20):
                assert _reduces(job, arrays, expected)
        assert job.admission is not None
        assert 20 * shard.drops[job.admission.job, DROP_SHARE] < shard.drops[number, DROP_SHARE]


def _reduces(job: object, arrays: list[object], expected: bytes) -> bool:
    assert job.reduce(arrays)[0].tobytes() == expected  # type: ignore[attr-defined]
    return True
