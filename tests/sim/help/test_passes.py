"""Takeover: leaders compute micro-batches of a straggler, and every sum stays exact."""

import pytest

from tests.sim.help.scenes import helped, iterations_of, kinds, run, slow
from tests.sim.scenes import facts

POLICIES = ("esa-plus", "esa", "atp", "always-preempt", "coin-flip", "switchml")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("factor", [1.5, 2.5, 4.0])
def test_the_others_take_over_and_the_sums_are_exact(policy: str, factor: float) -> None:
    scenario = helped("takeover", workers=8, micro_batches=16, faults=slow(2, factor=factor))
    result = run(scenario, policy)
    assert result.exact, result.failed
    bound = 8 / (7 + 1 / factor)
    # What is sent takes a twentieth of an iteration, and hides behind the last micro-batch's backward pass in part.
    assert bound < iterations_of(result) < bound + 0.25
    assert result.jobs[0].claims["first"] > 0
    assert {"compute straggler", "claim"} <= kinds(result)


def test_every_decision_has_its_reason_and_figures() -> None:
    result = run(helped("takeover", workers=8, micro_batches=16, faults=slow(2)))
    first = result.decisions[0]
    assert (first.kind, first.worker, first.job) == ("compute straggler", 2, "a")
    assert "behind the leaders' median" in first.reason
    claim = next(decision for decision in result.decisions if decision.kind == "claim")
    assert "micro-batch 15 of worker 2: worker" in claim.reason
    assert "helps worker 2, which has the most work left" in claim.reason


def test_nobody_helps_where_nobody_straggles() -> None:
    off, takeover = (run(helped(mode, micro_batches=4)) for mode in ("off", "takeover"))
    assert takeover.jobs[0].claims == {"first": 0, "second": 0, "fenced": 0}
    assert takeover.decisions == []
    assert iterations_of(takeover) == iterations_of(off)


@pytest.mark.parametrize("policy", ["esa", "atp"])
def test_two_stragglers_are_helped_at_once(policy: str) -> None:
    off, takeover = (
        run(helped(mode, workers=6, micro_batches=8, iterations=4, faults=slow(1, 4, factor=3.0)), policy)
        for mode in ("off", "takeover")
    )
    assert takeover.exact, takeover.failed
    assert iterations_of(takeover) < 0.75 * iterations_of(off)


def test_a_straggler_that_recovers_leads_again() -> None:
    spells = {"slow_spells": [{"job": "a", "probability": 0.1, "factor": 4.0}]}
    scenario = helped("takeover", workers=6, micro_batches=8, iterations=20, faults=spells)
    result = run(scenario)
    assert result.exact, result.failed
    assert {"compute straggler", "leads again"} <= kinds(result)
    assert iterations_of(result) < iterations_of(run(helped("off", workers=6, iterations=20, faults=spells)))


def test_a_run_is_the_same_every_time() -> None:
    scenario = helped("takeover", workers=6, micro_batches=8, faults=slow(3))
    assert facts(run(scenario)) == facts(run(scenario))
