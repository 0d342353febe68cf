"""What an exchange costs processors: found from a whole step of a profile, and carried to other links."""

from pathlib import Path
from typing import Any

import pytest

from paceline.models.profile import Measured, entry_text, exchange_of
from paceline.sim.overhead import CLOSE, matching
from paceline.sim.run import simulate
from tests.sim.scenes import facts, job, scene

GLOO_S, SWITCH_S = 0.012, 0.006
FREE = {"rate": "100 Gbit/s", "hosts": 4, "queue": "64 MB"}
LIMITED = {"rate": "100 Mbit/s", "hosts": 4, "delay": "20 us", "elements": 362, "ecn": "100 MB"}


def profiled(folder: Path, spread: float = 0.0, **keys: Any) -> dict[str, Any]:
    """A job of four workers whose passes take 2 ms; on one machine with two cores its steps took longer."""
    gloo_s = [GLOO_S * (1 + spread * (i - 50) / 50) for i in range(101)]
    steps = (exchange_of("gloo", gloo_s, 4, 2), exchange_of("switch", [SWITCH_S], 4, 2))
    seen = Measured(
        "a test", 4, 1, [(0.001, [0.0005, 0.001])], ["b", "a"], [100_000, 100_000], 50_000, exchange=steps
    )
    path = folder / "p.toml"
    path.write_text(entry_text(seen))
    return {"name": "a", "profile": str(path), "workers": 4, "iterations": 16, "overlap": "ddp"} | keys


def step_s(policy: str, *jobs: dict[str, Any], **sections: Any) -> float:
    result = simulate(scene(*jobs, **sections), policy)
    assert result.jobs[0].mean_iteration_s is not None
    return result.jobs[0].mean_iteration_s


def test_the_smallest_that_is_long_enough_is_found() -> None:
    assert matching(lambda ns: 1.0 + ns * 1e-6, 1.5) == pytest.approx(500_000, rel=2 * CLOSE)
    assert matching(lambda ns: max(1.0, ns * 1e-6), 3.0) == pytest.approx(3_000_000, rel=2 * CLOSE)
    assert matching(lambda ns: 2.0 + ns, 1.5) == 0


@pytest.mark.parametrize(
    ("policy", "measured_s"), [("ring", GLOO_S), ("esa-plus", SWITCH_S), ("atp", SWITCH_S)]
)
@pytest.mark.parametrize("spread", [0.0, 0.8])
def test_on_such_a_machine_a_step_takes_as_long_as_measured(
    tmp_path: Path, policy: str, measured_s: float, spread: float
) -> None:
    found_s = step_s(policy, profiled(tmp_path, spread), network=FREE, hosts={"cores": 2})
    assert found_s == pytest.approx(measured_s, rel=0.03)


@pytest.mark.parametrize("policy", ["ring", "esa-plus"])
def test_workers_with_a_machine_each_do_not_wait_for_each_others_cores(tmp_path: Path, policy: str) -> None:
    crowded_s = step_s(policy, profiled(tmp_path), network=FREE, hosts={"cores": 2})
    assert 0.002 < step_s(policy, profiled(tmp_path), network=FREE) < 0.75 * crowded_s


def test_a_ring_on_slow_links_hides_it_and_a_sum_in_the_network_does_not(tmp_path: Path) -> None:
    """A ring's messages cross links while others are handled; a gradient goes to the switch after its own."""
    plain = {"overhead": "0 s"}
    ring_s = step_s("ring", profiled(tmp_path), network=LIMITED, hosts={"cores": 2})
    bare_s = step_s("ring", profiled(tmp_path, **plain), network=LIMITED, hosts={"cores": 2})
    assert bare_s < ring_s < bare_s + 0.5 * (GLOO_S - 0.002)
    sum_s = step_s("esa", profiled(tmp_path), network=LIMITED, hosts={"cores": 2})
    bare_s = step_s("esa", profiled(tmp_path, **plain), network=LIMITED, hosts={"cores": 2})
    assert sum_s > bare_s + 0.5 * (SWITCH_S - 0.002)


@pytest.mark.parametrize("policy", ["ring", "esa", "switchml"])
def test_sums_stay_exact(policy: str) -> None:
    one = job(overhead="30 us", overhead_spread=0.3, iterations=3)
    result = simulate(scene(one, faults={"loss": 0.01}, hosts={"cores": 2}), policy, check=True)
    assert result.exact


def test_a_profile_without_steps_costs_nothing(tmp_path: Path) -> None:
    given = profiled(tmp_path)
    path = Path(given["profile"])
    path.write_text(path.read_text().partition("\n[[exchange]]")[0])
    without, zero = (
        facts(simulate(scene(one, network=LIMITED), "ring")) for one in (given, {**given, "overhead": "0 s"})
    )
    assert without == zero
