import numpy as np
import pytest

from paceline.errors import UserError
from paceline.schedule import planning, why
from paceline.schedule.inputs.cluster import Cluster, Server, SwitchMemory
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.model import Model, Problem
from paceline.schedule.plan import Plan, Schedule
from paceline.schedule.policies import by_name
from paceline.schedule.timeline import judge

SERVERS = tuple(Server(f"s{i}", 2) for i in range(3))
ORDINARY = {"iterations": 50, "gradient_bytes": 200_000_000, "backward_s": 0.05, "exchange": "in-network"}


def _crossed(links: bool = True, slots: int = 64, policy: str = "esa", **more: object) -> Schedule:
    """Two jobs over the same two servers, a third that shares none of them, and one that waits for the first."""
    keys = {**ORDINARY, **more}
    jobs = (
        Job("mine", 2, **keys), Job("rival", 2, **keys), Job("apart", 1, 50, backward_s=0.01),
        Job("later", 2, **keys),
    )  # fmt: skip
    memory = SwitchMemory.model_validate({"slots": slots, "payload": 1024, "policy": policy})
    cluster = Cluster(SERVERS, inter_bps=1e10, switch=memory, delay_s=1e-4)
    problem = Problem(cluster, jobs, Model(links=links))
    gpus = np.array([0, 2, 1, 3, 4, 0, 2], dtype=np.int64)
    plan = Plan(np.arange(4), gpus, np.zeros(4), ["by hand"] * 4)
    return judge(problem, plan, "by hand")


def _seconds(found: why.Why, cause: str) -> float:
    return sum(part.seconds for part in found.parts if part.cause == cause)


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("name", ["mine", "rival", "apart", "later"])
def test_the_parts_add_up_to_the_whole(links: bool, name: str) -> None:
    schedule = _crossed(links, jitter=0.2)
    found = why.of_plan(schedule, name)
    placement = schedule.placements[why.index_of(schedule, name)]
    assert found.total_s == placement.end_s
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.total_s, rel=1e-9)
    assert all(part.seconds >= -1e-9 for part in found.parts)


def test_each_cause_is_what_the_run_saves_without_it() -> None:
    schedule = _crossed(jitter=0.2)
    found = why.of_plan(schedule, "mine")
    (rival,) = [part for part in found.parts if part.cause == "contention"]
    assert rival.note == "with rival", "the job on other servers is not blamed"
    alone = why.ByModel(schedule.problem, schedule.placements, 0)
    mine = schedule.placements[0]
    assert rival.seconds == pytest.approx(mine.end_s - alone(frozenset(), True, True))
    assert rival.seconds > 0.1
    assert _seconds(found, "straggler") > 0
    assert _seconds(why.of_plan(_crossed(), "mine"), "straggler") == 0, "nobody varies"
    assert _seconds(found, "computing") == pytest.approx(50 * 0.05)
    assert _seconds(why.of_plan(schedule, "apart"), "exposed sending") == pytest.approx(0, abs=1e-9)


def test_want_of_memory_is_told_only_where_there_is_any() -> None:
    few, many = (why.of_plan(_crossed(slots=slots, policy="switchml"), "mine") for slots in (16, 1_000_000))
    assert _seconds(few, "switch memory") > 1.0
    assert _seconds(many, "switch memory") == pytest.approx(0, abs=1e-9)
    for found in (few, many):
        assert sum(part.seconds for part in found.parts) == pytest.approx(found.total_s)


def test_who_held_the_gpus_is_named() -> None:
    found = why.of_plan(_crossed(), "later")
    assert found.parts[0].cause == "queue"
    assert found.parts[0].seconds > 0
    assert found.parts[0].note == "its GPUs were held by mine"


def test_plans_that_preempt_and_jobs_that_are_not_there_are_refused() -> None:
    schedule = _crossed()
    with pytest.raises(UserError, match="there is no job 'x'"):
        why.of_plan(schedule, "x")
    jobs = tuple(Job(f"j{i}", 2, 400 if i == 0 else 20, backward_s=1.0, arrival_s=50.0 * i) for i in range(4))
    tiresias = planning.plan(Problem(Cluster((Server("s", 2),)), jobs), by_name("tiresias"))
    if tiresias.preempts:
        with pytest.raises(UserError, match="in pieces"):
            why.of_plan(tiresias, "j0")
