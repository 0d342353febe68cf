"""Deaths: each ends exactly, or with an error that names who is missing; never in a hang."""

import pytest

from tests.sim.help.scenes import dying, helped, kinds, run, slow

MODES = ("takeover", "both")


@pytest.mark.parametrize("policy", ["esa", "atp"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("time_us", [3, 20, 34, 50, 66, 90])
def test_a_leader_dies_and_the_others_stand_in_for_it(policy: str, mode: str, time_us: float) -> None:
    """While it computes, while it helps, after it has sent: before and after the freeze."""
    result = run(helped(mode, faults={**slow(2), **dying((0, time_us))}), policy)
    assert result.exact, result.failed
    assert result.jobs[0].deaths == 1
    assert {"death", "epoch"} <= kinds(result)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("time_us", [3, 30, 45, 60])
def test_the_straggler_itself_dies(mode: str, time_us: float) -> None:
    result = run(helped(mode, faults={**slow(2), **dying((2, time_us))}))
    assert result.exact, result.failed


@pytest.mark.parametrize("mode", MODES)
def test_all_but_one_die(mode: str) -> None:
    result = run(helped(mode, faults=dying((1, 20), (2, 25), (3, 30))))
    assert result.exact, result.failed
    assert result.jobs[0].deaths == 3


@pytest.mark.parametrize("mode", MODES)
def test_no_leader_is_left_but_a_straggler(mode: str) -> None:
    result = run(helped(mode, workers=2, faults={**slow(1), **dying((0, 40))}))
    assert result.exact, result.failed


def test_nobody_is_left() -> None:
    result = run(helped("both", faults=dying(*((host, 20) for host in range(4)))))
    assert result.failed == "a: no worker is left: 0, 1, 2, 3 died"
    assert result.exact is False


@pytest.mark.parametrize(
    ("policy", "mode", "reason"),
    [
        ("esa", "custody", "a: worker 1 died, and without takeover nobody can stand in for it"),
        ("switchml", "takeover", "a: worker 1 died, and under switchml nobody can stand in for it"),
    ],
)
def test_where_nobody_can_stand_in_the_job_says_who_died(policy: str, mode: str, reason: str) -> None:
    result = run(helped(mode, faults=dying((1, 20))), policy)
    assert result.failed == reason
    assert result.wrong == 0


def test_a_dead_custodian_host_is_named() -> None:
    result = run(helped("takeover", help={"stall": "10 ms"}, faults=dying((4, 10))), "atp")
    assert result.failed == "a: host 4 with its custodian died"


@pytest.mark.parametrize("mode", ["custody", "both"])
def test_with_custody_workers_take_the_place_of_a_dead_custodian(mode: str) -> None:
    result = run(helped(mode, faults={**slow(2), **dying((4, 10))}), "atp")
    assert result.exact, result.failed


@pytest.mark.parametrize("policy", ["esa", "atp"])
def test_an_epoch_never_goes_back_when_the_first_worker_is_dead(policy: str) -> None:
    faults = {**slow(3), **dying((0, 25)), "custodian_forgets": [{"time": "70 us", "job": "a"}]}
    result = run(helped("both", help={"window": 1.0}, faults=faults), policy)
    assert result.exact, result.failed


@pytest.mark.parametrize("policy", ["esa-plus", "esa", "atp", "coin-flip"])
def test_deaths_under_loss_and_state_loss_end(policy: str) -> None:
    for seed in range(5):
        faults = {
            **slow(2),
            **dying((seed % 4, 10 + 17 * seed)),
            "loss": 0.03,
            "duplicate": 0.03,
            "reorder": 0.03,
            "custodian_forgets": [{"time": "55 us", "job": "a"}],
        }
        result = run(helped("both", help={"window": 1.0}, faults=faults), policy, seed=seed)
        assert result.exact, f"seed {seed}: {result.failed}, {result.wrong} wrong"
