"""A live switch in this process: sums over real sockets, every policy, faults, shards, two jobs, leases, two levels."""

import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paceline.core.switch.memory import AGGREGATOR
from paceline.errors import UserError
from paceline.live.switch.daemon import LIVE_POLICIES, LiveSwitch, SwitchOptions
from paceline.live.switch.http import ControlServer
from paceline.live.switch.jobs import Events
from paceline.live.switch.metrics import samples
from tests.live.workers import Workers, ask

ROW_BYTES = AGGREGATOR.itemsize + 4 * 64


class Running:
    """A switch and its control plane."""

    def __init__(self, **options: Any) -> None:
        self.log = io.StringIO()
        settings: dict[str, Any] = {"memory_bytes": 256 * ROW_BYTES, "elements": 64, **options}
        self.switch = LiveSwitch(SwitchOptions(**settings), Events(stream=self.log))
        self.control = ControlServer(self.switch)
        self.control.start()
        self.port = self.control.port

    def numbers(self) -> dict[Any, Any]:
        return {(name, *labels): value for name, labels, value in samples(self.switch)}

    def total(self, name: str, *labels: str) -> float:
        return sum(
            value for key, value in self.numbers().items() if key[0] == name and set(labels) <= set(key)
        )

    def lags(self) -> list[tuple[int, float]]:
        """Of each worker of all jobs: contributions, and seconds after the first ones together."""
        return [value for key, value in self.numbers().items() if key[0] == "paceline_arrival_lag_seconds"]

    def close(self) -> None:
        self.control.close()
        self.switch.close()


@contextmanager
def running(**options: Any) -> Iterator[Running]:
    # A long lease, unless it is the test's point: workers may compile between admission and first packet.
    made = Running(**{"lease_s": 600.0, **options})
    try:
        yield made
    finally:
        made.close()


def _reduce(ports: list[int], racks: list[int], chunks: int, **options: Any) -> Workers:
    workers = Workers(ports, racks, **options)
    try:
        workers.run(chunks)
        workers.check(chunks)
        assert workers.forged == 0
    finally:
        workers.close()
    return workers


@pytest.mark.parametrize("policy", LIVE_POLICIES)
def test_every_policy_gives_the_sum(policy: str) -> None:
    with running(policy=policy) as switch:
        workers = _reduce([switch.port], [0, 0, 0], 300)
        assert switch.total("paceline_completions_total") > 0
        assert switch.total("paceline_packets_total", "in") >= 900
        assert [count for count, _ in switch.lags()] == [300, 300, 300]
        assert workers.leave().get("freed", -1) >= 0
        assert switch.total("paceline_jobs") == 0


@pytest.mark.parametrize("policy", LIVE_POLICIES)
def test_the_sum_is_right_whatever_the_network_does(policy: str) -> None:
    with running(policy=policy, drop=0.03, duplicate=0.03, reorder=0.03, shards=2, seed=11) as switch:
        _reduce([switch.port], [0, 0, 0, 0], 300)
        assert switch.total("paceline_faults_injected_total") > 50


def test_a_straggler_lags_also_where_its_chunks_go_straight_to_the_custodian() -> None:
    """Memory is short, the others' contributions were preempted: its own bears the flag that passes the switch by."""
    with running() as switch:
        workers = Workers([switch.port], [0, 0])
        try:
            workers.senders.flights[1, 0].wanted = 0
            workers.run(1, until=lambda: switch.lags()[0][0] == 1, only=0)
            time.sleep(0.1)
            workers.run(1)
            workers.check(1)
            (first, first_s), (second, second_s) = switch.lags()
            assert (first, second) == (1, 1), "what is sent again does not count"
            assert first_s == 0.0
            assert second_s >= 0.1
        finally:
            workers.close()


def test_tags_may_cover_everything() -> None:
    with running(auth="full") as switch:
        _reduce([switch.port], [0, 0], 100)


def test_two_jobs_share_little_memory_preempt_each_other_and_are_both_right() -> None:
    with running(memory_bytes=12 * ROW_BYTES) as switch:
        wrong: list[BaseException] = []

        def work(priority: int) -> None:
            try:
                _reduce([switch.port], [0, 0], 400, priority=priority, name=f"priority {priority}")
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(priority,)) for priority in (50, 200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not wrong
        assert switch.total("paceline_fallbacks_total") > 0


def test_a_job_that_falls_silent_is_evicted_and_its_aggregators_are_free() -> None:
    with running(lease_s=4.0) as switch:
        workers = Workers([switch.port], [0, 0])
        workers.racks = [0]  # the second worker is gone: nothing can complete
        workers.run(20, until=lambda: switch.total("paceline_slots_used") > 0)
        used = switch.total("paceline_slots_used")
        assert used > 0
        before = switch.total("paceline_slot_seconds_total")
        time.sleep(0.2)
        workers.run(20, until=lambda: switch.total("paceline_slot_seconds_total") > before)
        assert switch.total("paceline_slot_seconds_total") >= before + 0.2 * used
        workers.close()
        deadline = time.monotonic() + 60
        while switch.switch.registry.jobs() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert switch.total("paceline_evictions_total") == 1
        slots = switch.switch.threads[0].shard.switch.memory.slots
        assert (slots.job == -1).all()
        assert "evicted" in switch.log.getvalue()
        assert ask(switch.port, "POST", f"/v1/jobs/{workers.job}/lease", {}, key=workers.key)[0] == 404


def test_packets_keep_a_job_alive_without_a_lease_call() -> None:
    with running(lease_s=3.0) as switch:
        workers = Workers([switch.port], [0, 0])
        for part in range(1, 7):
            workers.run(part * 20)
            time.sleep(0.8)
        workers.check(120)
        assert switch.total("paceline_jobs") == 1
        workers.close()


@pytest.mark.parametrize("policy", LIVE_POLICIES)
def test_two_rack_switches_under_an_upper_one(policy: str) -> None:
    with running(policy=policy, upper=True, shards=2) as upper:
        place = ("127.0.0.1", upper.port)
        faults = {"drop": 0.01, "duplicate": 0.01, "reorder": 0.01}
        with (
            running(policy=policy, upstream=place, **faults) as left,
            running(policy=policy, upstream=place) as right,
        ):
            _reduce([left.port, right.port], [0, 0, 1, 1, 1], 200)
            assert upper.total("paceline_completions_total") > 0
            assert (
                left.total("paceline_jobs")
                == right.total("paceline_jobs")
                == upper.total("paceline_jobs")
                == 1
            )


def test_a_rack_switch_gives_a_restarted_upper_switch_its_jobs_back() -> None:
    upper = Running(upper=True)
    port = upper.port
    try:
        with running(upstream=("127.0.0.1", port), lease_s=1.5) as left:
            workers = Workers([left.port], [0, 0], admission={"racks": 2})
            upper.close()
            upper = Running(upper=True, port=port)
            deadline = time.monotonic() + 20
            while not upper.switch.registry.jobs() and time.monotonic() < deadline:
                ask(left.port, "POST", f"/v1/jobs/{workers.job}/lease", {}, key=workers.key)
                time.sleep(0.1)
            (job,) = upper.switch.registry.jobs()
            assert (job.number, job.key.hex()) == (workers.job, workers.key)
            workers.close()
    finally:
        upper.close()


def test_draining_waits_for_the_jobs() -> None:
    with running(drain_s=20.0) as switch:
        workers = Workers([switch.port], [0])
        ended: list[bool] = []
        drain = threading.Thread(target=lambda: ended.append(switch.switch.drain()))
        drain.start()
        deadline = time.monotonic() + 10
        while not switch.switch.registry.draining and time.monotonic() < deadline:
            time.sleep(0.01)
        assert ask(switch.port, "GET", "/healthz")[0] == 503
        status, answer = ask(switch.port, "POST", "/v1/jobs", {"name": "late", "workers": 1})
        assert (status, "no new jobs" in answer["error"]) == (503, True)
        workers.run(10)
        workers.leave()
        drain.join(20)
        assert ended == [True]
        workers.close()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"policy": "none"}, "--policy: unknown policy 'none'; known: switchml, atp, esa"),
        ({"shards": 0}, "--shards: 0 is not within"),
        ({"auth": "none"}, "--auth: 'none' is neither"),
        ({"drop": 1.0}, "--drop: a probability"),
        ({"host": "0.0.0.0"}, "--listen: 0.0.0.0 can be reached from outside: give --token-file"),
        ({"memory_bytes": 100}, "--memory: 100 bytes hold 0 aggregators"),
        ({"upper": True, "upstream": ("127.0.0.1", 1)}, "--upstream: an upper switch has no upstream"),
    ],
)
def test_mistakes_are_told_in_one_line(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        LiveSwitch(SwitchOptions(**options), Events())


def test_a_full_capture_becomes_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "packets.pcap"
    limit = 1 << 20
    with running(pcap=path, pcap_bytes=limit, lease_s=1.0) as switch:
        workers = Workers([switch.port], [0, 0], count=64)
        deadline = time.monotonic() + 60.0
        chunks = 0
        while not Path(f"{path}.1").exists() and time.monotonic() < deadline:
            chunks += 2_000
            workers.run(chunks)
        workers.close()
    assert limit <= Path(f"{path}.1").stat().st_size < 4 * limit, "a batch or two more than it may be"
    assert path.stat().st_size >= 24, "a new one has its header"
    assert "packets were not captured" in switch.log.getvalue()


def test_aggregators_are_as_wide_as_the_packets_of_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wider ones would lie half empty: 4 MiB hold 508 of 2,048 integers, and five times as many of 352."""
    monkeypatch.setattr("paceline.live.net.sockets.interface_mtu", lambda host: 1500)
    with running(elements=0, memory_bytes=4 << 20) as switch:
        assert switch.switch.elements == 352
        assert switch.switch.slots == (4 << 20) // (AGGREGATOR.itemsize + 4 * 352) > 5 * 508
