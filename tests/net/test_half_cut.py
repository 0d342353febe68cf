"""A switch that one worker cannot use: all leave it, say whose packets are lost on which way, and stay away."""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from paceline.emulation.namespaces import DEVICE, Star, ip, star
from tests.live.agents import WAIT_S, Job, job_of, switch_in

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
WORKERS, CUT = 3, 1
NUMBERS = 40_000
Undo = Callable[[], Any]


def _cut_up(links: Star) -> Undo:
    """What the worker sends to the switch is lost."""
    route = ("blackhole", f"{links.hub_address}/32")
    ip("-n", links.workers[CUT], "route", "add", *route)
    return lambda: ip("-n", links.workers[CUT], "route", "delete", *route)


def _cut_down(links: Star) -> Undo:
    """What the switch sends to the worker is lost; the other workers still reach it."""
    route = ("blackhole", f"{links.address(CUT)}/32")
    ip("-n", links.hub, "route", "add", *route)
    return lambda: ip("-n", links.hub, "route", "delete", *route)


def _narrow(links: Star) -> Undo:
    """Packets of full size do not get from the worker to the switch."""
    route = (f"{links.hub_address}/32", "dev", DEVICE, "mtu", "600")
    ip("-n", links.workers[CUT], "route", "add", *route)
    return lambda: ip("-n", links.workers[CUT], "route", "delete", f"{links.hub_address}/32")


CUTS: dict[str, tuple[Callable[[Star], Undo], str, str]] = {
    "up": (
        _cut_up,
        "the switch does not answer|packets to the switch do not arrive",
        "from worker 1 to the switch",
    ),
    "down": (_cut_down, "the switch does not answer", "from the switch to worker 1"),
    "narrow": (_narrow, "packets of full size do not come back", "of full size do not come back .* worker 1"),
}


@pytest.fixture(scope="module")
def links() -> Iterator[Star]:
    with star(WORKERS, 400e6) as made:
        yield made


def _step(job: Job, seed: int) -> float:
    """One exact sum; the seconds it took."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(-(1 << 20), 1 << 20, (WORKERS, NUMBERS), dtype=np.int32)
    total = rows.sum(axis=0, dtype=np.int32)
    began = time.monotonic()
    handles = [agent.submit(row) for agent, row in zip(job.agents, rows, strict=True)]
    for handle in handles:
        handle.wait(WAIT_S)
    took_s = time.monotonic() - began
    assert all(row.tobytes() == total.tobytes() for row in rows)
    return took_s


def _paths(job: Job) -> list[str]:
    return [str(agent.status()["path"]) for agent in job.agents]


def _until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def _changes(job: Job, worker: int) -> list[dict[str, Any]]:
    return [event for event in job.agents[worker].status()["events"] if event["event"] == "path"]


@pytest.mark.parametrize("cut", CUTS)
def test_a_path_that_works_for_some_is_left_by_all_and_not_tried_again_until_it_is_proved(
    links: Star, cut: str, record_property: Callable[[str, object], None]
) -> None:
    make, own, told = CUTS[cut]
    with switch_in(links) as switch, job_of(WORKERS, switch, member=True, star=links) as job:
        for seed in range(5):
            _step(job, seed)
        assert _paths(job) == ["switch"] * WORKERS
        undo = make(links)
        try:
            longest_s = max(_step(job, seed) for seed in range(5, 9))
            record_property("recovery_s", longest_s)
            print(f"{cut}: recovered in {longest_s:.2f} s")
            _until(lambda: _paths(job) == ["custodian"] * WORKERS, "all leave the switch")
            end = time.monotonic() + 4.0
            seed = 9
            while time.monotonic() < end:
                _step(job, seed)
                seed += 1
                time.sleep(0.02)
            # Memberships renew and admit again every second meanwhile; nobody goes back for that.
            assert [len(_changes(job, worker)) for worker in range(WORKERS)] == [1] * WORKERS
        finally:
            undo()
        for worker in range(WORKERS):
            pattern = own if worker == CUT else told
            reason = _changes(job, worker)[0]["reason"]
            assert any(_matches(part, reason) for part in pattern.split("|")), reason
        _until(lambda: _paths(job) == ["switch"] * WORKERS, "proved anew, it is used again by all")
        _step(job, 1000)


def _matches(pattern: str, text: str) -> bool:
    import re

    return re.search(pattern, text) is not None
