"""Help for stragglers, live: a late worker holds no aggregator, leaders run ahead, and sums stay what they are.

Nothing here depends on how fast the machine is: the late worker waits until the others have noticed it.
"""

import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paceline.core import auth, wire
from paceline.core.custodian.program import custodian_for
from paceline.core.help.detect import BANDWIDTH_STRAGGLER, LEADING, learn, new_detection, suspect
from paceline.errors import UserError
from paceline.live.agent.agent import Agent, ReductionError, open_socket
from paceline.live.agent.config import AgentConfig
from paceline.live.agent.state import new_roles
from tests.live.agents import KEY, WAIT_S, Job, RunningSwitch, job_of, running_switch

WORKERS = 3
ELEMENTS = 352
CHUNK_BYTES = wire.HEADER_BYTES + 4 * ELEMENTS
CHUNKS = 200
THETA = 20
CUSTODY: dict[str, Any] = {
    "straggler": "custody",
    "straggler_theta_bytes": THETA * CHUNK_BYTES,
    "straggler_window_s": 0.05,
    "budget_bytes": 2 * CHUNKS * CHUNK_BYTES,
    # A window much smaller than a tensor: without credit, leaders would stand still.
    "window_bytes": 32 * CHUNK_BYTES,
    "silence_s": 60.0,
}
FAULTS = {"drop": 0.02, "duplicate": 0.02, "reorder": 0.02}


def _integers(chunks: int, seed: int, workers: int = WORKERS) -> list[Any]:
    rng = np.random.default_rng(seed)
    # Not a multiple of a packet: the last chunk is shorter than the others.
    return [
        rng.integers(-(1 << 31), 1 << 31, chunks * ELEMENTS - 100, dtype=np.int32) for _ in range(workers)
    ]


def _sum(arrays: list[Any]) -> Any:
    return np.sum([array.astype(np.int64) for array in arrays], axis=0).astype(np.int32)


def _until(holds: Callable[[], bool], what: str, within_s: float = 120.0) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def _straggles(job: Job, late: int) -> Callable[[], bool]:
    return lambda: all(agent.status()["straggler"]["stragglers"] == [late] for agent in job.agents)


def _counter(job: Job, worker: int, name: str) -> int:
    return int(job.agents[worker].status()["counters"][name])


def _used(switch: RunningSwitch, job: Job) -> int:
    number = job.agents[0].config.job
    return sum(int(thread.shard.switch.jobs[0, number].used) for thread in switch.switch.threads)


def _reduce_with_a_late_worker(job: Job, late: int, seed: int, ahead: Callable[[], bool]) -> None:
    """One iteration in which a worker comes only when the others have sent everything without it."""
    workers = len(job.agents)
    arrays = _integers(CHUNKS, seed, workers)
    expected = _sum(arrays)
    early = [worker for worker in range(workers) if worker != late]
    handles = [job.agents[worker].submit(arrays[worker]) for worker in early]
    _until(_straggles(job, late), f"worker {late} is noticed")
    _until(ahead, "the leaders run ahead")
    assert not any(handle.done() for handle in handles)
    handles.append(job.agents[late].submit(arrays[late]))
    for handle in handles:
        handle.wait(WAIT_S)
    for array in arrays:
        assert array.tobytes() == expected.tobytes()


def _reduce_until_all_lead(job: Job) -> None:
    """Iterations so small that nobody can be behind in them."""
    end = time.monotonic() + 120
    seed = 1000
    while any(agent.status()["straggler"]["helping"] for agent in job.agents):
        assert time.monotonic() < end, "everyone leads again"
        arrays = _integers(THETA // 2, seed, len(job.agents))
        expected = _sum(arrays)
        for result in job.reduce(arrays):
            assert result.tobytes() == expected.tobytes()
        seed += 1
        time.sleep(0.02)


@pytest.mark.parametrize(("policy", "late"), [("esa", 2), ("atp", 2), ("esa", 0)])
def test_a_late_worker_holds_no_aggregator_and_leads_again(policy: str, late: int) -> None:
    """The coordinator itself (worker 0) may be the one who is late."""
    with (
        running_switch(policy=policy, seed=late, **FAULTS) as switch,
        job_of(WORKERS, switch, **CUSTODY) as job,
    ):
        leader = 1
        for turn in (1, 2):
            base = _counter(job, leader, "credits")

            def ahead(base: int = base) -> bool:
                return _used(switch, job) == 0 and _counter(job, leader, "credits") >= base + CHUNKS

            _reduce_with_a_late_worker(job, late, turn, ahead)
        _reduce_until_all_lead(job)
        # Windows are as they were: more than one of them goes through.
        arrays = _integers(CHUNKS, 5)
        for result in job.reduce(arrays):
            assert result.tobytes() == _sum(arrays).tobytes()
        _reduce_with_a_late_worker(job, late, 3, lambda: True)
        kinds = [event["event"] for event in job.agents[0].status()["events"]]
        assert kinds[:2] == ["compute straggler", "epoch"]
        assert "leads again" in kinds
        event = next(e for e in job.agents[0].status()["events"] if e["event"] == "compute straggler")
        assert event["worker"] == late
        assert f"theta {THETA} chunks" in event["reason"]
        other = [event["reason"] for event in job.agents[1].status()["events"]]
        names = ", ".join(str(worker) for worker in range(WORKERS) if worker != late)
        assert other[0] == f"epoch 1: workers {names} complete sums without the others"
        assert "epoch 2: all workers complete sums" in other


@pytest.mark.parametrize(("policy", "late"), [("esa", 1), ("atp", 0)])
def test_of_two_workers_the_other_goes_on_alone(policy: str, late: int) -> None:
    """Its own contributions pass the switch by, and wait with itself."""
    leader = 1 - late
    with (
        running_switch(policy=policy, seed=late, **FAULTS) as switch,
        job_of(2, switch, **CUSTODY) as job,
    ):
        for turn in (1, 2):
            base = _counter(job, leader, "credits")

            def ahead(base: int = base) -> bool:
                return _used(switch, job) == 0 and _counter(job, leader, "credits") >= base + CHUNKS

            _reduce_with_a_late_worker(job, late, turn, ahead)
        _reduce_until_all_lead(job)
        events = job.agents[0].status()["events"]
        assert [event["event"] for event in events[:2]] == ["compute straggler", "epoch"]
        assert events[0]["worker"] == late
        assert events[1]["reason"] == f"epoch 1: workers {leader} complete sums without the others"


def test_without_a_switch_custodians_keep_for_the_late() -> None:
    with job_of(WORKERS, None, **CUSTODY) as job:
        _reduce_with_a_late_worker(job, 1, 1, lambda: _counter(job, 0, "credits") >= CHUNKS)
        _reduce_until_all_lead(job)
        assert job.agents[2].status()["counters"]["role_changes"] == 2


def test_floats_are_the_same_with_and_without_help() -> None:
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(40_000).astype(np.float32) for _ in range(WORKERS)]
    with job_of(WORKERS, None) as job:
        expected = job.reduce(arrays)[0].tobytes()
    with running_switch(**FAULTS) as switch, job_of(WORKERS, switch, **CUSTODY) as job:
        _reduce_with_a_late_worker(job, 2, 1, lambda: True)
        assert job.agents[0].status()["straggler"]["helping"]
        for result in job.reduce(arrays):
            assert result.tobytes() == expected


def test_a_straggler_that_never_comes_is_named() -> None:
    with job_of(WORKERS, None, **{**CUSTODY, "timeout_s": 4.0, "linger_s": 0.0}) as job:
        handles = [job.agents[worker].submit(_integers(CHUNKS, 1)[worker]) for worker in (0, 1)]
        _until(_straggles(job, 2), "worker 2 is noticed")
        job.agents[2].close()
        for handle in handles:
            with pytest.raises(ReductionError, match="worker 2"):
                handle.wait(60)


def test_two_jobs_of_which_one_waits() -> None:
    """What waits for a straggler is not in the switch, so another job finds its aggregators."""
    memory = 64 * (56 + 4 * ELEMENTS)
    with (
        running_switch(policy="atp", memory_bytes=memory) as switch,
        job_of(WORKERS, switch, **CUSTODY) as job,
        job_of(WORKERS, switch) as other,
    ):
        _reduce_with_a_late_worker(job, 2, 1, lambda: _used(switch, job) == 0)
        arrays = _integers(THETA, 9)
        for result in other.reduce(arrays):
            assert result.tobytes() == _sum(arrays).tobytes()


class Puppet:
    """A worker made of a socket: it says what the test wants, and loses what the test wants lost."""

    def __init__(self, sock: socket.socket, worker: int, target: tuple[str, int]) -> None:
        self.sock, self.worker, self.target = sock, worker, target
        sock.settimeout(60.0)

    def hear(self) -> Any:
        """The next that worker 0 says about roles."""
        while True:
            packet = wire.decode(self.sock.recv(65536))
            if packet.kind == wire.ROLE:
                return packet

    def wait_for(self, kind: int, chunk: int) -> bytes:
        """The payload of the next packet of this kind about this chunk."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            data = self.sock.recv(65536)
            packet = wire.decode(data)
            if packet.kind == kind and packet.chunk == chunk:
                return data[wire.HEADER_BYTES :]
        raise AssertionError(f"no {kind} about chunk {chunk}")

    def report(self, computed: int, epoch: int) -> None:
        progress = {"chunk": computed, "mask": computed, "share": computed, "window": 32}
        self.say(kind=wire.REPORT, epoch=epoch, **progress)

    def say(self, payload: Any = None, **fields: int) -> None:
        packet = wire.new_packets(1)[0]
        packet.fan_in = packet.fan_in_upper = packet.level = packet.job = 1
        packet.worker, packet.count = self.worker, 0 if payload is None else len(payload)
        for name, value in fields.items():
            setattr(packet, name, value)
        data = np.frombuffer(wire.encode(packet, payload), dtype=np.uint8).copy()
        auth.seal(*auth.key_words(KEY), data, 0, len(data), False)
        self.sock.sendto(data.tobytes(), self.target)


def test_a_role_is_told_until_it_is_known() -> None:
    # Puppets have plain sockets, which get datagrams one by one.
    sockets = [open_socket(), *(socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))]
    for sock in sockets[1:]:
        sock.bind(("127.0.0.1", 0))
    peers = [sock.getsockname() for sock in sockets]
    config = AgentConfig(0, WORKERS, peers, 1, KEY, elements=ELEMENTS, linger_s=0.0, **CUSTODY)
    agent = Agent(config, sockets[0])
    puppets = [Puppet(sockets[worker], worker, peers[0]) for worker in (1, 2)]
    agent.submit(np.ones(CHUNKS * ELEMENTS, dtype=np.int32))
    # Who has never said anything is not judged: it may not know of roles at all.
    for _ in range(10):
        assert puppets[0].hear().epoch == 0
        puppets[0].report(CHUNKS, 0)
    assert puppets[1].hear().epoch == 0
    heard = puppets[0].hear()
    end = time.monotonic() + 60
    while heard.epoch == 0 and time.monotonic() < end:
        puppets[0].report(CHUNKS, 0)
        puppets[1].report(0, 0)
        heard = puppets[0].hear()
    assert (heard.epoch, int(heard.mask)) == (1, 0b011)
    # Nobody says that he knows: it is told again, and nothing else is decided meanwhile.
    for _ in range(5):
        puppets[0].report(CHUNKS, 0)
        puppets[1].report(0, 0)
        heard = puppets[0].hear()
        assert (heard.epoch, int(heard.mask)) == (1, 0b011)
    for puppet in puppets:
        puppet.report(CHUNKS, 1)
    assert agent.epoch == 1
    assert agent.status()["straggler"] == {
        "mode": "custody",
        "helping": True,
        "leaders": [0, 1],
        "stragglers": [2],
    }
    agent.close()
    for sock in sockets[1:]:
        sock.close()


def test_a_custodian_that_holds_the_result_as_a_worker_gives_it() -> None:
    """In an epoch custodians are others: who has a result from the last may be asked for it by itself alone."""
    chunk = next(
        c for c in range(99) if [custodian_for(c, 2, np.uint64(0), epoch) for epoch in (0, 1)] == [1, 0]
    )
    sockets = [open_socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)]
    sockets[1].bind(("127.0.0.1", 0))
    peers = [sock.getsockname() for sock in sockets]
    config = AgentConfig(0, 2, peers, 1, KEY, elements=ELEMENTS, linger_s=0.0, timeout_s=WAIT_S)
    with Agent(config, sockets[0]) as agent, sockets[1]:
        puppet = Puppet(sockets[1], 1, peers[0])
        agent.submit(np.ones((chunk + 1) * ELEMENTS, dtype=np.int32))
        result = np.arange(ELEMENTS, dtype=np.int32)
        flags = {"chunk": chunk, "fan_in": 2}
        puppet.wait_for(wire.PARTIAL, chunk)
        puppet.say(result, kind=wire.RESULT, custodian=1, **flags)
        _until(lambda: agent.status()["counters"]["results"] == 1, "the agent has the result of epoch 0")
        puppet.say(result, kind=wire.PARTIAL, flag=wire.FLUSH, custodian=0, mask=0b10, epoch=1, **flags)
        assert puppet.wait_for(wire.RESULT, chunk) == result.tobytes(), (
            "the custodian gives what the worker has"
        )


def test_words_of_a_worker_are_answered_or_dropped_by_their_kind() -> None:
    sockets = [open_socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)]
    sockets[1].bind(("127.0.0.1", 0))
    peers = [sock.getsockname() for sock in sockets]
    config = AgentConfig(0, 2, peers, 1, KEY, elements=ELEMENTS, linger_s=0.0, timeout_s=WAIT_S)
    with Agent(config, sockets[0]) as agent, sockets[1]:
        puppet = Puppet(sockets[1], 1, peers[0])
        puppet.say(kind=wire.LEAVES, chunk=1 << 40)
        assert puppet.wait_for(wire.HAS, 0) == b""
        # Nobody watches, nobody helps, and there is no ring: what tells of that is not expected.
        for kind in (wire.RECEIPT, wire.REPORT, wire.ROLE):
            puppet.say(kind=kind, chunk=1 << 40, epoch=60_000, mask=3, share=3)
        _until(lambda: agent.status()["counters"]["drop_wrong_kind"] == 3, "three are dropped")
        assert agent.status()["epoch"] == 0


def test_off_is_off() -> None:
    with job_of(WORKERS, None) as job:
        job.reduce(_integers(30, 1))
        time.sleep(0.3)
        status = job.agents[0].status()
        assert status["straggler"]["mode"] == "off"
        assert (status["counters"]["reports"], status["epoch"]) == (0, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("straggler", "magic"),
        ("straggler_theta_bytes", 0),
        ("straggler_window_s", 0.0),
        ("straggler_windows", 0),
        ("straggler_clean", 0),
        ("budget_bytes", 0),
    ],
)
def test_mistakes_are_told(field: str, value: Any) -> None:
    with pytest.raises(UserError, match=field):
        AgentConfig(0, 1, [("127.0.0.1", 1)], 1, KEY, **{field: value})


def test_switchml_cannot_help() -> None:
    with pytest.raises(UserError, match="switchml"):
        AgentConfig(
            0,
            1,
            [("127.0.0.1", 1)],
            1,
            KEY,
            switch=("127.0.0.1", [9]),
            policy="switchml",
            straggler="custody",
        )


THETA_CHUNKS = 60
WINDOW = 32


def _report(sent: int, finished: int = 100) -> Any:
    report = new_roles(2, 8, THETA_CHUNKS, 2, 2).reports[1]
    report.sent, report.finished, report.window = finished + sent, finished, WINDOW
    return report


@pytest.mark.parametrize(("sent", "lags"), [(0, True), (7, True), (8, False), (32, False), (40, False)])
def test_who_has_not_got_out_a_quarter_of_what_others_have_is_suspected(sent: int, lags: bool) -> None:
    lag = suspect(_report(sent), THETA_CHUNKS, WINDOW)
    assert (lag > THETA_CHUNKS) == lags
    assert 0 <= lag <= 4 * THETA_CHUNKS // 3


def _until_it_counts(report: Any) -> int:
    return next(window for window in range(1, 1000) if suspect(report, THETA_CHUNKS, WINDOW) > THETA_CHUNKS)


def _helped(report: Any, behind: int) -> None:
    """A stay in help mode, and its end."""
    worker = new_detection(1, THETA_CHUNKS).workers[0]
    for role, windows in [(BANDWIDTH_STRAGGLER, 0), (BANDWIDTH_STRAGGLER, behind), (LEADING, 0)]:
        worker.role, worker.behind_windows = role, windows
        learn(report, worker)


def test_a_suspicion_that_proved_wrong_has_to_last_twice_as_long_the_next_time() -> None:
    """Who merely began last looks like a slow link, and would be helped again and again."""
    report = _report(0)
    lasted = []
    for _ in range(12):
        lasted.append(_until_it_counts(report))
        _helped(report, behind=0)
    assert lasted == [1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256, 256]
    _helped(report, behind=1)
    assert _until_it_counts(report) == 1


def test_a_suspicion_begins_anew_when_the_window_is_out() -> None:
    report = _report(0)
    report.doubts = 2
    assert [suspect(report, THETA_CHUNKS, WINDOW) > THETA_CHUNKS for _ in range(3)] == [False] * 3
    report.sent += WINDOW
    assert suspect(report, THETA_CHUNKS, WINDOW) == 0
    report.sent -= WINDOW
    assert _until_it_counts(report) == 4
