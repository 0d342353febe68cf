import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.launch.replan import POLICIES, Running, check_policy, latest_ends_s, plan_now
from paceline.schedule.inputs.cluster import Cluster, Server
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.model import Model
from paceline.schedule.policies import by_name

CLUSTER = Cluster((Server("s0", 2), Server("s1", 2), Server("s2", 3)))


def _job(name: str, gpus: int, iterations: int = 10) -> Job:
    return Job(name, gpus, iterations, 1_000_000, backward_s=0.1)


@pytest.mark.parametrize("name", POLICIES)
def test_running_jobs_stay_and_servers_that_are_down_get_nothing(name: str) -> None:
    running = [Running(_job("r", 2), (4, 5), 3.0)]
    outlook = plan_now(
        CLUSTER,
        Model(),
        running,
        [_job("a", 2), _job("b", 1), _job("huge", 6)],
        {"s0"},
        by_name(name),
        "makespan",
    )
    by_job = {decision.job: decision for decision in outlook.decisions}
    assert outlook.too_large == ("huge",)
    assert by_job["r"].gpus == (4, 5)
    assert not by_job["r"].now
    started = [gpu for decision in outlook.decisions if decision.now for gpu in decision.gpus]
    assert len(set(started)) == len(started)
    assert not set(started) & {0, 1, 4, 5}


def test_a_job_that_should_have_ended_goes_before_a_shorter_one() -> None:
    running = [Running(_job("r", 2), (0, 1), 1.0)]
    cluster = Cluster((Server("s0", 2),))
    jobs = [_job("short", 2, 5), _job("long", 2, 10)]

    def order(latest_s: dict[str, float]) -> list[str]:
        policy = by_name("bco-plus", no_later=1.05)
        outlook = plan_now(cluster, Model(), running, jobs, (), policy, "jct", latest_s=latest_s)
        return [decision.job for decision in outlook.decisions]

    assert order({}) == ["r", "short", "long"]
    assert order({"long": 1.3, "short": 9.0}) == ["r", "long", "short"]


def test_ends_are_bounded_by_first_fit_in_the_order_of_the_list() -> None:
    cluster = Cluster((Server("s0", 2),))
    jobs = [_job(f"j{k}", 2, 10 + k) for k in range(4)]
    ends_s = latest_ends_s(cluster, Model(), jobs, by_name("bco-plus", no_later=1.05), "jct")
    assert sorted(ends_s, key=lambda name: ends_s[name]) == ["j0", "j1", "j2", "j3"]
    assert latest_ends_s(cluster, Model(), jobs, by_name("bco-plus"), "jct") == {}


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=6), st.sets(st.sampled_from(["s0", "s1", "s2"])),
    st.sampled_from(POLICIES),
)  # fmt: skip
def test_something_starts_wherever_something_fits(sizes: list[int], down: set[str], name: str) -> None:
    """With nothing running, a plan that started nothing would wait for ever."""
    room = sum(server.gpus for server in CLUSTER.servers if server.name not in down)
    jobs = [_job(f"j{i}", gpus, 1 + i) for i, gpus in enumerate(sizes)]
    outlook = plan_now(CLUSTER, Model(), [], jobs, down, by_name(name), "makespan")
    assert set(outlook.too_large) == {job.name for job in jobs if job.gpus > room}
    assert any(decision.now for decision in outlook.decisions) == any(gpus <= room for gpus in sizes)
    for decision in outlook.decisions:
        assert not {CLUSTER.servers[int(CLUSTER.server_of[gpu])].name for gpu in decision.gpus} & down


def test_a_job_on_a_server_that_went_down_holds_nothing() -> None:
    running = [Running(_job("r", 3), (1, 2, 3), 3.0)]
    outlook = plan_now(CLUSTER, Model(), running, [_job("a", 2)], {"s0"}, by_name("ls"), "makespan")
    assert [decision.job for decision in outlook.decisions] == ["a"]


@pytest.mark.parametrize("name", ["tiresias", "lwf-kappa", "exact", "nonsense"])
def test_policies_that_cannot_be_asked_again(name: str) -> None:
    with pytest.raises(UserError, match="cannot use policy"):
        check_policy(name)
