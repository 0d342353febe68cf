"""Several runs at once give what each gives alone."""

from dataclasses import replace
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.sim.batch import BatchRun, longest_first, simulate_all
from paceline.sim.run import simulate
from paceline.sim.scenario import Scenario


def _scenario() -> Scenario:
    job: dict[str, Any] = {"workers": 3, "iterations": 3, "size": 200_000, "layers": 2, "copies": 2}
    return Scenario.model_validate({"switch": {"slots": 16}, "job": [job]})


RUNS = [BatchRun(policy, seed) for seed in (3, 4) for policy in ("esa", "atp", "ring")]


@pytest.mark.parametrize("processes", [1, 2])
def test_results_are_those_of_single_runs_in_their_order(processes: int) -> None:
    scenario = _scenario()
    told: list[tuple[int, int, int]] = []
    together = simulate_all(
        scenario, RUNS, check=True, processes=processes, tell=lambda *news: told.append(news)
    )
    alone = [simulate(scenario, run.policy, seed=run.seed, check=True) for run in RUNS]
    assert [replace(result, wall_s=0.0) for result in together] == [
        replace(result, wall_s=0.0) for result in alone
    ]
    assert {number for number, done, total in told if done == total} == set(range(len(RUNS)))


def test_what_takes_long_begins_first() -> None:
    policies = ("esa", "atp", "switchml", "ring", "mine", "ps")
    runs = [
        BatchRun(policy, seed, "ring" if policy == "mine" else "") for seed in (1, 2) for policy in policies
    ]
    order = [(runs[k].policy, runs[k].seed) for k in longest_first(runs)]
    assert order[:6] == [(name, seed) for seed in (1, 2) for name in ("ring", "mine")] + [
        ("ps", 1),
        ("ps", 2),
    ]
    assert order[6:] == [
        ("atp", 1),
        ("atp", 2),
        *((policy, seed) for seed in (1, 2) for policy in ("esa", "switchml")),
    ]


def test_a_rule_that_is_a_function_goes_along() -> None:
    def lowest(*_: object) -> int:
        return 1

    results = simulate_all(_scenario(), [BatchRun("mine", 1, "esa", lowest), BatchRun("esa", 1)], processes=2)
    assert [result.policy for result in results] == ["mine", "esa"]


def test_a_mistake_in_one_run_is_told_in_its_words() -> None:
    def wrong(*_: object) -> int:
        raise UserError("a priority of 300 is no integer from 0 to 255", place="--policy")

    with pytest.raises(UserError, match="--policy: a priority of 300"):
        simulate_all(_scenario(), [BatchRun("mine", 1, "esa", wrong), BatchRun("esa", 1)], processes=2)
