"""Hostile datagrams beside a running job, and what one job can do to another: nothing."""

import time

import numpy as np
import pytest

from paceline.core import auth, wire
from paceline.live.net import sockets, udp
from tests.live.hostile import attack
from tests.live.switch.test_daemon import ROW_BYTES, Running, running
from tests.live.workers import ask

REASONS = {
    "truncated", "bad_magic", "length_and_count_disagree", "unknown_job", "bad_tag", "wrong_source",
}  # fmt: skip


def _held(outcome: dict[str, object], datagrams: int) -> None:
    drops = outcome["drops"]
    assert isinstance(drops, dict)
    assert set(drops) >= REASONS, drops
    # Nearly all of what was sent was dropped for a reason; replays are served, and change nothing.
    assert sum(drops.values()) > 0.5 * datagrams, drops
    assert outcome["attacker_slots"] == 0
    assert int(str(outcome["grown_kib"])) < 8_000


@pytest.mark.parametrize("policy", ["esa", "atp", "switchml"])
def test_a_job_is_right_under_attack(policy: str) -> None:
    _held(attack(6_000, policy=policy), 6_000)


@pytest.mark.slow
def test_a_job_is_right_under_a_million_hostile_datagrams() -> None:
    _held(attack(1_000_000), 1_000_000)


class Rogue:
    """A job that was admitted like any other, and sends what it likes under its own key."""

    def __init__(self, switch: Running, **admission: int) -> None:
        self.switch = switch
        self.answer = ask(switch.port, "POST", "/v1/jobs", {"name": "rogue", "workers": 2, **admission})[1]
        self.job = self.answer["job"]
        self.socket = sockets.open_socket("127.0.0.1")
        for worker in (0, 1):
            path = f"/v1/jobs/{self.job}/workers/{worker}"
            ask(
                switch.port, "PUT", path, {"address": f"127.0.0.1:{self.socket.port}"}, key=self.answer["key"]
            )
        self.to = ("127.0.0.1", self.answer["shards"][0])
        self.packet = wire.new_packets(1)[0]
        self.packet.kind, self.packet.job, self.packet.mask = wire.GRADIENT, self.job, 1
        self.packet.fan_in, self.packet.fan_in_upper, self.packet.level = 2, 1, 1

    def send(self, values: object = None, **fields: int) -> None:
        for name, value in fields.items():
            setattr(self.packet, name, value)
        data = np.frombuffer(wire.encode(self.packet, values), dtype=np.uint8).copy()
        auth.seal(*auth.key_words(bytes.fromhex(self.answer["key"])), data, 0, len(data), False)
        self.socket.socket.sendto(data.tobytes(), self.to)

    def wait_for(self, name: str, *labels: str, at_least: float) -> None:
        deadline = time.monotonic() + 20
        while self.switch.total(name, "rogue", *labels) < at_least:
            assert time.monotonic() < deadline, self.switch.numbers()
            time.sleep(0.01)

    def received(self, inbox: udp.Inbox) -> list[bytes]:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            count = udp.receive(self.socket.fd, inbox)
            if count:
                parts = [inbox.segments[i] for i in range(count)]
                return [inbox.data[part.start : part.start + part.length].tobytes() for part in parts]
            time.sleep(0.01)
        raise AssertionError("nothing came")

    def close(self) -> None:
        self.socket.close()


def test_a_job_cannot_take_more_aggregators_than_it_may() -> None:
    with running(memory_bytes=64 * ROW_BYTES) as switch:
        rogue = Rogue(switch, slots_max=5)
        for index in range(64):
            rogue.send(chunk=index, index=index, count=4)
        rogue.wait_for("paceline_fallbacks_total", at_least=59)
        assert switch.total("paceline_slots_used", "rogue") == 5
        rogue.close()


def test_a_job_cannot_preempt_above_its_priority() -> None:
    with running(memory_bytes=64 * ROW_BYTES) as switch:
        victim = Rogue(switch)
        victim.send(chunk=1, index=7, count=4, priority=100)
        victim.wait_for("paceline_slots_used", at_least=1)
        rogue = Rogue(switch, priority_max=12)
        for chunk in range(3):  # each failed try halves the holder's priority: 100, 50, 25
            rogue.send(chunk=chunk, index=7, count=4, priority=255)
        rogue.wait_for("paceline_fallbacks_total", at_least=3)
        assert switch.total("paceline_preemptions_total") == 0
        slot = switch.switch.threads[0].shard.switch.memory.slots[7]
        assert (int(slot.job), int(slot.chunk)) == (victim.job, 1)
        rogue.close()
        victim.close()


def test_a_job_reads_nothing_of_what_another_left_behind() -> None:
    secret = np.full(64, 0x5EC2E7, dtype=np.int32)
    with running(memory_bytes=2 * ROW_BYTES) as switch:
        victim, rogue, inbox = Rogue(switch), Rogue(switch), udp.new_inbox(4)
        victim.send(secret, chunk=1, index=0, count=64)
        victim.send(secret, chunk=1, index=0, count=64, mask=2, worker=1)
        assert len(victim.received(inbox)[0]) == 64 + 256
        # Two packets of one chunk that disagree on its length, in the aggregator that held the secret.
        rogue.send(np.zeros(64, dtype=np.int32), chunk=1, index=0, count=1)
        rogue.send(np.zeros(64, dtype=np.int32), chunk=1, index=0, count=64, mask=2, worker=1)
        rogue.send(np.zeros(64, dtype=np.int32), chunk=2, index=0, count=64, mask=1, worker=0)
        rogue.send(np.zeros(64, dtype=np.int32), chunk=2, index=0, count=0, mask=2, worker=1)
        rogue.wait_for("paceline_completions_total", at_least=2)
        for data in rogue.received(inbox):
            assert secret[:1].tobytes() not in data
        rogue.close()
        victim.close()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"worker": 2}, "bad_place"),
        ({"custodian": 9}, "bad_place"),
        ({"rack": 1}, "bad_place"),
        ({"fan_in": 3}, "bad_place"),
        ({"fan_in_upper": 2}, "bad_place"),
        ({"count": 65}, "bad_size"),
        ({"epoch": 300}, "epoch_jump"),
        ({"index": 64}, "bad_index"),
        ({"level": 2}, "bad_level"),
    ],
)
def test_what_a_job_does_not_have_it_cannot_name(fields: dict[str, int], reason: str) -> None:
    with running(memory_bytes=64 * ROW_BYTES) as switch:
        rogue = Rogue(switch)
        rogue.send(**{"chunk": 1, "index": 1, "count": 4, **fields})
        rogue.wait_for("paceline_drops_total", reason, at_least=1)
        assert switch.total("paceline_slots_used") == 0
        rogue.close()


def test_what_a_switch_sent_is_no_workers() -> None:
    with running(memory_bytes=64 * ROW_BYTES) as switch:
        rogue = Rogue(switch)
        rogue.send(chunk=1, index=1, count=4, flag=wire.FROM_SWITCH)
        rogue.wait_for("paceline_drops_total", "wrong_source", at_least=1)
        assert switch.total("paceline_slots_used") == 0
        rogue.close()


def test_a_worker_at_another_switch_makes_no_packet_go_round() -> None:
    """One job, admitted at two switches with the same key; each is the other's worker 1."""
    with running(memory_bytes=64 * ROW_BYTES) as one, running(memory_bytes=64 * ROW_BYTES) as other:
        rogue = Rogue(one)
        request = {"name": "x", "workers": 2, "job": rogue.job, "key": rogue.answer["key"]}
        assert ask(other.port, "POST", "/v1/jobs", request)[0] == 201
        for here, there in ((one, other), (other, one)):
            body = {"address": f"127.0.0.1:{there.switch.ports[0]}"}
            path = f"/v1/jobs/{rogue.job}/workers/1"
            assert ask(here.port, "PUT", path, body, key=rogue.answer["key"])[0] == 200
        rogue.send(chunk=1, index=1, count=4, kind=wire.RESULT, mask=3)
        deadline = time.monotonic() + 10.0
        while other.total("paceline_drops_total", "wrong_source") < 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert other.total("paceline_drops_total", "wrong_source") == 1
        assert one.total("paceline_packets_total") <= 4
        rogue.close()


def test_an_old_contribution_and_an_old_epoch_are_dropped() -> None:
    with running(memory_bytes=64 * ROW_BYTES) as switch:
        rogue = Rogue(switch)
        rogue.send(chunk=100_000, index=1, count=4, epoch=3)
        rogue.send(chunk=100_000 - 70_000, index=2, count=4)
        rogue.wait_for("paceline_drops_total", "replayed", at_least=1)
        rogue.send(chunk=100_001, index=2, count=4, epoch=2)
        rogue.wait_for("paceline_drops_total", "old_epoch", at_least=1)
        assert switch.total("paceline_slots_used") == 1
        rogue.close()
