"""Iterations are cut into micro-batches where that pays, and nowhere else."""

from typing import Any

import pytest

from tests.sim.help.scenes import helped, iterations_of, kinds, run, slow

SENDS_MUCH = {"size": 200_000, "ratio": 0.5}


def heavy(mode: str, **sections: Any) -> Any:
    """A job that sends half as long as it computes: cut, it would hide next to nothing of that."""
    parts = 1 if mode == "off" else 8
    sections |= {"switch": {"slots": 512}, "job": SENDS_MUCH}
    return helped(mode, workers=6, iterations=6, micro_batches=parts, **sections)


@pytest.mark.parametrize("mode", ["takeover", "both"])
def test_a_job_that_sends_much_pays_nothing_while_nobody_straggles(mode: str) -> None:
    off, ready = run(heavy("off")), run(heavy(mode))
    assert ready.exact
    assert iterations_of(ready) == pytest.approx(iterations_of(off), rel=0.01)


def test_it_is_cut_as_soon_as_somebody_is_slow_enough() -> None:
    off, helps = (run(heavy(mode, faults=slow(2, factor=3.0))) for mode in ("off", "takeover"))
    assert helps.exact
    assert helps.jobs[0].claims["first"] > 0
    assert iterations_of(helps) < 0.9 * iterations_of(off)


@pytest.mark.parametrize("mode", ["takeover", "both"])
def test_a_slow_link_costs_the_exchange_of_one_iteration(mode: str) -> None:
    """It is noticed while everyone waits for the first exchange, and what comes next is not cut."""
    faults = {"other_traffic": [{"host": 1, "rate": "80 Gbit/s", "direction": "from"}]}
    off, noticed = (
        run(helped(how, iterations=8, micro_batches=parts, faults=faults), "atp")
        for how, parts in (("off", 1), (mode, 4))
    )
    assert noticed.exact
    assert iterations_of(noticed) < 1.02 * iterations_of(off)
    assert "iterations 1 to 8 are not cut" in noticed.decisions[0].reason


def test_after_a_while_cutting_is_tried_again() -> None:
    """The link is free again when the job is: the next straggler is helped at once."""
    flow = {"host": 1, "rate": "80 Gbit/s", "direction": "from", "end": "60 us"}
    result = run(helped("takeover", iterations=14, micro_batches=4, faults={"other_traffic": [flow]}), "atp")
    assert result.exact
    said = [decision.reason for decision in result.decisions if decision.kind == "takeover"]
    assert len(said) == 1
    slow_too = helped(
        "takeover", iterations=14, micro_batches=4, faults={"other_traffic": [flow], **slow(2, factor=3.0)}
    )
    assert run(slow_too, "atp").jobs[0].claims["first"] > 0


def test_a_straggler_that_is_hardly_slow_is_not_worth_it() -> None:
    """With two micro-batches an iteration, a helper would be done later than the straggler itself."""
    off, left_alone = (
        run(helped(mode, workers=6, iterations=6, micro_batches=parts, faults=slow(2, factor=1.4)))
        for mode, parts in (("off", 1), ("takeover", 2))
    )
    assert left_alone.exact
    assert left_alone.jobs[0].claims["first"] == 0
    assert iterations_of(left_alone) == pytest.approx(iterations_of(off), rel=0.02)
    reasons = [decision.reason for decision in left_alone.decisions if decision.kind == "takeover"]
    assert reasons
    assert "not worth it" in reasons[0]


def test_with_both_custody_is_for_what_takeover_does_not_reach() -> None:
    caught_up = run(helped("both", workers=6, micro_batches=8, faults=slow(2)))
    assert caught_up.exact
    assert caught_up.jobs[0].claims["first"] > 0
    assert "epoch" not in kinds(caught_up)
    flow = {"host": 1, "rate": "95 Gbit/s", "direction": "from"}
    job = {"size": 400_000, "ratio": 1.0}
    held_up = run(helped("both", job=job, faults={"other_traffic": [flow]}, switch={"slots": 512}))
    assert held_up.exact
    assert {"bandwidth straggler", "epoch"} <= kinds(held_up)
    assert held_up.transport["credits"] > 0
