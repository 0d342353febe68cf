"""Micro-batches, slow spells, and what they do to an iteration's time."""

import pytest

from paceline.sim.run import simulate
from tests.sim.help.scenes import COMPUTE_S, helped, iterations_of, run, slow
from tests.sim.scenes import facts, job, scene


@pytest.mark.parametrize("policy", ["esa", "switchml", "ring"])
def test_one_micro_batch_is_the_same_as_none(policy: str) -> None:
    plain, cut = (simulate(scene(job(**keys)), policy, check=True) for keys in ({}, {"micro_batches": 1}))
    assert facts(plain) == facts(cut)


@pytest.mark.parametrize("policy", ["esa", "atp", "switchml", "ring"])
@pytest.mark.parametrize("micro_batches", [2, 5, 64])
def test_micro_batches_take_as_long_as_the_whole_and_sums_stay_exact(policy: str, micro_batches: int) -> None:
    whole = run(helped("off", micro_batches=1), policy)
    parts = run(helped("off", micro_batches=micro_batches), policy)
    assert whole.exact
    assert parts.exact
    # Less of the exchange hides behind the backward pass: at most all of it is seen.
    assert 0.99 * iterations_of(whole) <= iterations_of(parts) <= iterations_of(whole) + 0.3


def test_a_slow_worker_is_as_slow_in_parts() -> None:
    result = run(helped("off", micro_batches=8, faults=slow(1, factor=3.0)))
    assert iterations_of(result) == pytest.approx(3.0, rel=0.15)


def spells(**keys: float) -> dict[str, object]:
    return {"slow_spells": [{"job": "a", "probability": 0.5, "factor": 3.0} | keys]}


def test_spells_slow_a_job_by_seed_and_end_again() -> None:
    plain = run(helped("off", iterations=12))
    one, same, other = (run(helped("off", iterations=12, faults=spells()), seed=seed) for seed in (1, 1, 2))
    assert facts(one) == facts(same)
    assert iterations_of(one) != iterations_of(other)
    assert iterations_of(plain) + 0.2 < iterations_of(one) < 3.2


def test_a_spell_that_is_short_costs_only_its_length() -> None:
    """Nearly certain in every iteration, three tenths of one long, three times slower: at most two tenths more."""
    keys = {"probability": 0.999, "shortest": 0.3, "longest": 0.3}
    plain, struck = (run(helped("off", faults=faults)) for faults in ({}, spells(**keys)))
    lost = iterations_of(struck) - iterations_of(plain)
    # The spell begins before the last results of the iteration before have come, so some of it strikes nobody.
    assert 0.1 < lost < 0.21


@pytest.mark.parametrize("policy", ["esa", "ring"])
def test_passes_that_need_a_processor_share_the_cores_of_one_machine(policy: str) -> None:
    def iteration_s(cores: int, processor: float) -> float:
        one = job(workers=4, hosts=[0, 1, 2, 3], processor=processor, ratio=0.02, iterations=4)
        result = simulate(scene(one, hosts={"cores": cores}), policy, check=True)
        assert result.exact
        assert result.jobs[0].mean_iteration_s is not None
        return result.jobs[0].mean_iteration_s

    alone = iteration_s(0, 0.0)
    assert iteration_s(2, 0.0) == iteration_s(0, 1.0) == alone, "devices, or a machine each"
    assert iteration_s(2, 1.0) == pytest.approx(2 * alone, rel=0.1)
    assert iteration_s(1, 1.0) == pytest.approx(4 * alone, rel=0.15)
    assert alone < iteration_s(2, 0.75) < iteration_s(2, 1.0)


def test_compute_time_is_what_the_scenario_says() -> None:
    result = run(helped("off", micro_batches=1))
    assert result.jobs[0].mean_iteration_s == pytest.approx(COMPUTE_S, rel=0.3)
