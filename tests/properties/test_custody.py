"""A job that helps its stragglers, on a network at its worst: every run ends, every sum is exact.

A part of what `python -m tests.properties.custody` runs; and the same runs with a rule left out, which must fail.
"""

import random

import pytest

from tests.properties import wild as network
from tests.properties.coordinator import Coordinator, MissingError
from tests.properties.custody import MODES, POLICIES, is_good, outcome, wild
from tests.properties.wild import Wild


@pytest.mark.parametrize("first", range(0, 150, 15))
def test_every_run_ends_with_every_sum_exact(first: int) -> None:
    ends = [outcome(seed, check_every=40 if seed % 15 == 7 else 0)[:2] for seed in range(first, first + 15)]
    assert [end for end in ends if not is_good(end[1])] == []


def test_a_run_that_failed_once() -> None:
    """A worker carried a micro-batch, and another in the next iteration, and no pull reached it any more."""
    assert Wild(1242, "always-preempt", 1, "takeover", "").run() == "ok"


def test_seeds_vary_all_that_makes_runs_hard() -> None:
    runs = [wild(seed) for seed in range(96)]
    shapes = {(run.policy, run.racks, run.boss.help_mode) for run in runs}
    assert shapes == {(policy, racks, mode) for policy in POLICIES for racks in (1, 2) for mode in MODES}
    troubles = {what for run in runs for _, what in run.troubles}
    assert troubles == {"role", "forget", "death", "switch"}
    parts = [part for run in runs for by_worker in run.boss.plan.parts for part in by_worker.values()]
    assert any(not part.whole and not part.batches for part in parts), "nobody is silent"
    assert any(not part.whole and part.batches for part in parts), "nobody keeps a share of its own"
    assert any(part.whole and part.batches for part in parts), "nobody helps"
    assert any(run.boss.plan.custody for run in runs)


def test_faults_strike_and_help_is_used() -> None:
    runs = [wild(seed) for seed in range(0, 48, 2)]
    for run in runs:
        run.run()
    total = {name: sum(run.tally[name] for run in runs) for name in runs[0].tally}
    assert all(total.values()), total
    assert sum(int(run.senders.state.credits.sum()) for run in runs) > 100
    assert sum(int(run.senders.state.queries.sum()) for run in runs) > 100


@pytest.mark.parametrize(
    ("rules", "end"), [("no query", "livelock"), ("no answer", "livelock"), ("overlap", "wrong")]
)
def test_a_rule_left_out_is_missed(rules: str, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seeds are good with all the rules: see above."""
    monkeypatch.setattr(network, "STEPS_MAX", 6_000)
    ends = [wild(seed, rules).run().split(":")[0] for seed in range(14)]
    assert ends.count(end) >= 3, ends


def test_all_dead_is_an_error_that_names_them() -> None:
    run = wild(0)
    run.troubles = [(5, "death")] * run.count
    assert (
        run.run() == f"missing: no worker is left: {', '.join(str(w) for w in range(run.count))} are missing"
    )


def test_a_rack_without_survivors_and_without_helpers_is_an_error_that_names_who_is_missing() -> None:
    boss = Coordinator(random.Random(1), [0, 1, 1], 2, 1, "both")
    boss.dead = {1, 2}
    with pytest.raises(MissingError, match=r"worker [12] is missing"):
        boss.decide()


def test_without_a_leader_the_job_goes_on_without_custody() -> None:
    """Everyone straggles: nobody could be a custodian for the leaders, so all are."""
    found = 0
    for seed in range(200):
        boss = Coordinator(random.Random(seed), [0] * 3, 2, 1, "both")
        if len(boss.plan.stragglers) == 3:
            found += 1
            assert not boss.plan.custody
            assert boss.plan.leaders == [0, 1, 2]
    assert found > 0


@pytest.mark.parametrize("seed", range(300))
def test_parts_are_everyones_each_once(seed: int) -> None:
    draw = random.Random(seed)
    racks = [w % (1 + seed % 2) for w in range(draw.randint(2, 6))]
    boss = Coordinator(draw, racks, draw.randint(1, 6), 2, MODES[seed % 3])
    for _ in range(4):
        for parts in boss.plan.parts:
            whole = [w for part in parts.values() for w in part.whole]
            shared = [(part.owner, m) for part in parts.values() for m in part.batches]
            everyone = [(w, m) for w in whole for m in range(boss.batches)] + shared
            assert sorted(everyone) == [(w, m) for w in range(len(racks)) for m in range(boss.batches)]
            assert not set(whole) & {owner for owner, _ in shared}
        boss.dead.add(draw.randrange(len(racks)))
        try:
            boss.decide()
        except MissingError:
            return
