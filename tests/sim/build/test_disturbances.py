"""Other traffic on links, and which help goes with which policy."""

from typing import Any

import pytest

from paceline.errors import UserError
from paceline.sim.run import simulate
from paceline.sim.scenario import StragglerMode
from tests.sim.help.scenes import helped
from tests.sim.scenes import job, scene, wire_s

BIG = job(size=400_000, ratio=50.0, workers=2, iterations=2)


def jct(policy: str = "esa", **faults: Any) -> float:
    result = simulate(scene(BIG, faults=faults), policy, check=True)
    assert result.exact
    assert result.avg_jct_s is not None
    return result.avg_jct_s


@pytest.mark.parametrize("direction", ["to", "from"])
@pytest.mark.parametrize("policy", ["esa", "switchml", "ring"])
def test_other_traffic_leaves_a_job_the_rest_of_the_link(policy: str, direction: str) -> None:
    flow = {"host": 1, "rate": "75 Gbit/s", "direction": direction}
    free, shared = jct(policy), jct(policy, other_traffic=[flow])
    ideal_s = 2 * wire_s(scene(BIG), 400_000)
    assert free == pytest.approx(ideal_s, rel=0.7)
    assert 2.5 * ideal_s < shared < 8 * ideal_s


def test_other_traffic_begins_and_ends() -> None:
    flow = {"host": 1, "rate": "90 Gbit/s", "start": "20 us", "end": "40 us"}
    free, briefly, always = (
        jct(),
        jct(other_traffic=[flow]),
        jct(other_traffic=[flow | {"start": 0, "end": 1}]),
    )
    assert free < briefly < always


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"other_traffic": [{"host": 9, "rate": "1 Gbit/s"}]}, "there is no host 9"),
        ({"other_traffic": [{"host": 1, "rate": "100 Gbit/s"}]}, "leave some of the link's rate"),
        ({"other_traffic": [{"host": 1, "rate": "1 Gbit/s"}] * 2}, "one flow a link and direction"),
        ({"slow_spells": [{"job": "b", "probability": 0.1, "factor": 2}]}, "there is no job 'b'"),
        (
            {"slow_spells": [{"job": "a", "probability": 0.1, "factor": 2, "shortest": 3}]},
            "the shortest spell is longer",
        ),
    ],
)
def test_what_cannot_be_is_refused(faults: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        simulate(scene(job(), faults=faults), "esa")


@pytest.mark.parametrize(
    ("policy", "mode", "message"),
    [
        ("ring", "takeover", "job 'a': straggler = 'takeover' needs in-network aggregation; ring has none"),
        ("ps", "custody", "ps has none"),
        ("switchml", "custody", "needs custodians, and switchml has none; 'takeover' works there"),
        ("switchml", "both", "needs custodians"),
    ],
)
def test_help_that_makes_no_sense_is_refused(policy: str, mode: StragglerMode, message: str) -> None:
    with pytest.raises(UserError, match=message):
        simulate(helped(mode), policy)


def test_takeover_needs_parts_and_company() -> None:
    for sections, message in (
        ({"micro_batches": 1}, "at least 2 micro-batches"),
        ({"workers": 1}, "at least 2 workers"),
    ):
        with pytest.raises(UserError, match=message):
            simulate(helped("takeover", **sections), "esa")  # type: ignore[arg-type]
