"""What packets hold when work has changed hands in every direction: with integers in them, every sum is right."""

from typing import Any

import pytest

from paceline.sim.results import RunResult
from tests.sim.help.scenes import dying, helped, iterations_of, run

FINE = {"window": 0.0625}
TWO_SLOW = [{"job": "a", "worker": 2, "factor": 2.0}, {"job": "a", "worker": 3, "factor": 4.0}]
MANY_SPELLS = {"slow_spells": [{"job": "a", "probability": 0.4, "factor": 3.0}]}


def two_slow(faults: dict[str, Any] | None = None, **sections: Any) -> Any:
    """Two leaders and two stragglers, one of them far behind the other."""
    return helped(
        "takeover", micro_batches=16, help=FINE, faults={"slow": TWO_SLOW, **(faults or {})}, **sections
    )


def owners_of(result: RunResult, rank: int) -> set[int]:
    """Whose micro-batches a worker took."""
    claims = [
        decision.reason
        for decision in result.decisions
        if (decision.kind, decision.worker) == ("claim", rank)
    ]
    return {int(reason.split(" of worker ")[1].split(":")[0]) for reason in claims}


@pytest.mark.parametrize("policy", ["esa", "atp", "switchml"])
def test_a_helper_takes_from_whoever_is_behind(policy: str) -> None:
    result = run(two_slow(iterations=4), policy)
    assert result.exact, result.failed
    assert owners_of(result, 0) == owners_of(result, 1) == {2, 3}
    # Everyone together would take 4 / 2.75 = 1.45 iterations, and what is sent shows by a tenth or two.
    assert iterations_of(result) < 1.7


def test_in_several_racks_too() -> None:
    racks = {"topology": "leaf-spine", "leaves": 2, "placement": "spread"}
    result = run(two_slow(iterations=4, network=racks))
    assert result.exact, result.failed
    assert owners_of(result, 0) == {2, 3}


@pytest.mark.parametrize("policy", ["esa", "atp"])
def test_a_straggler_that_is_done_helps_the_others(policy: str) -> None:
    result = run(
        helped("takeover", workers=6, iterations=20, micro_batches=8, help=FINE, faults=MANY_SPELLS), policy
    )
    assert result.exact, result.failed
    straggles: set[int | None] = set()
    helpers = set()
    for decision in result.decisions:
        if decision.kind == "compute straggler":
            straggles.add(decision.worker)
        elif decision.kind == "leads again":
            straggles.discard(decision.worker)
        elif decision.kind == "claim" and decision.worker in straggles:
            helpers.add(decision.worker)
    assert helpers


@pytest.mark.parametrize("policy", ["esa", "atp"])
@pytest.mark.parametrize("host", [0, 2, 3])
def test_somebody_dies_while_helpers_have_work_of_several(policy: str, host: int) -> None:
    """Before anything was sent, what somebody has of a second owner is computed again; later, a bit waits for it."""
    for time_us in (20, 28, 36, 42, 48, 54):
        result = run(two_slow(dying((host, time_us))), policy)
        assert result.exact, f"at {time_us} us: {result.failed}, {result.wrong} wrong"


def test_nobody_counts_on_a_worker_that_has_sent() -> None:
    """A helper dies, and the straggler that it helped has sent: another helper computes that again."""
    faults = {
        "slow": [
            {"job": "a", "worker": worker, "factor": factor}
            for worker, factor in ((0, 2.0), (4, 2.0), (1, 1.3), (5, 1.3), (2, 1.3))
        ]
    }
    for time_us in (24, 26, 28, 28.73, 30, 32):
        scenario = helped("takeover", workers=6, micro_batches=4, faults=faults | dying((4, time_us)))
        result = run(scenario)
        assert result.exact, f"at {time_us} us: {result.failed}, {result.wrong} wrong"
