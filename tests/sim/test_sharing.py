"""Jobs that share a switch of programs: they go on where windows are agreed, and not where each worker judges alone.

The old rules stay in the core to show this: what they do here, two live jobs did on a live switch.
"""

from pathlib import Path

import pytest

from paceline.sim.results import RunResult
from paceline.sim.run import simulate
from paceline.sim.scenario import load_scenario

SCENARIO = Path(__file__).parents[2] / "examples/simulate/sharing.toml"
ALONE = (
    "transport.congestion=alone",
    "transport.recovery=resend",
    "transport.in_order=true",
    "custodians.patience=20ms",
    "custodians.patience_max=2s",
)
BOTH_IN_PHASE_S = 8 * (0.3 + 2 * 12.6e6 * 8 / 1e9)
HORIZON_S = 60.0


def _run(policy: str, seed: int, *changes: str) -> RunResult:
    return simulate(load_scenario(SCENARIO, changes), policy, seed=seed, check=True)


def _worst_s(result: RunResult) -> float:
    return max(HORIZON_S if job.jct_s is None else job.jct_s for job in result.jobs)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_two_jobs_collapse_by_the_old_rules_and_not_by_the_new(seed: int) -> None:
    old = _run("esa", seed, *ALONE)
    for policy in ("esa", "esa-plus"):
        new = _run(policy, seed)
        assert new.exact, new.failed
        assert _worst_s(new) < 1.2 * BOTH_IN_PHASE_S
        assert _worst_s(old) > 2 * _worst_s(new)
        assert old.switch["pulls_sent"] > 10 * new.switch["pulls_sent"]


def test_a_job_that_is_alone_again_is_at_full_speed_within_a_second() -> None:
    """Two jobs for two steps, then one of them for eighteen more, beside that one alone from the start."""
    scenario = load_scenario(SCENARIO, ("job.0.iterations=20", "job.1.iterations=2"))
    shared = simulate(scenario, "esa-plus", seed=1)
    alone = simulate(scenario.model_copy(update={"job": scenario.job[:1]}), "esa-plus", seed=1)
    assert alone.makespan_s
    while_shared_s = 2 * 0.1008
    assert _worst_s(shared) < alone.makespan_s + while_shared_s + 1.0
