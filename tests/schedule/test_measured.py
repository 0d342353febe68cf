import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.schedule.inputs.cluster import Cluster, Server, SwitchMemory
from paceline.schedule.inputs.jobs import Exchange, Job
from paceline.schedule.measured import LEAST, Moment
from paceline.schedule.model import Model

CLUSTER = Cluster(
    tuple(Server(f"s{i}", 2, f"r{i // 2}") for i in range(4)),
    inter_bps=10e9,
    switch=SwitchMemory(slots=256),
    uplink_bps=20e9,
)


def _job(exchange: Exchange = "ring", gpus: int = 4, **more: float) -> Job:
    values = {"forward_s": 0.01, "backward_s": 0.02, "jitter": 0.1, **more}
    return Job("a", gpus, 10, 20_000_000, exchange=exchange, **values)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.05, 20.0), st.sampled_from(["ring", "in-network"]), st.booleans(),
    st.sampled_from([(0,), (0, 1), (0, 2), (0, 2, 4, 6)]),
)  # fmt: skip
def test_the_factor_makes_the_prediction_right(
    factor: float, exchange: Exchange, links: bool, gpus: tuple[int, ...]
) -> None:
    """A job that computes so many times as long as its file says is found out by its iteration alone."""
    model = Model(links=links)
    job = _job(exchange, len(gpus))
    told = Moment(CLUSTER, model, [job], [gpus])
    real_s = Moment(CLUSTER, model, [job.computing(factor)], [gpus]).iteration_s(0)
    found = told.computing_factor(0, real_s)
    again_s = Moment(CLUSTER, model, [job.computing(found)], [gpus]).iteration_s(0)
    assert again_s == pytest.approx(real_s, rel=1e-6)


def test_neighbours_are_not_put_down_to_computing() -> None:
    model, jobs, gpus = Model(links=True), [_job(), _job()], [(0, 2, 4, 6), (1, 3, 5, 7)]
    alone = Moment(CLUSTER, model, jobs[:1], gpus[:1])
    both = Moment(CLUSTER, model, jobs, gpus)
    assert both.iteration_s(0) > 1.05 * alone.iteration_s(0)
    assert both.computing_factor(0, both.iteration_s(0)) == pytest.approx(1.0, rel=0.02)


def test_an_iteration_shorter_than_its_sending_leaves_a_little_computing() -> None:
    moment = Moment(CLUSTER, Model(links=True), [_job()], [(0, 2, 4, 6)])
    assert moment.computing_factor(0, 1e-6) == LEAST


def test_a_job_that_computes_nothing_has_nothing_to_correct() -> None:
    job = _job(forward_s=0.0, backward_s=0.0)
    assert Moment(CLUSTER, Model(links=True), [job], [(0, 2, 4, 6)]).computing_factor(0, 5.0) == 1.0


def test_releases_are_later_on_a_slower_device() -> None:
    job = Job("a", 2, 1, 3, backward_s=0.2, releases=((0.1, 1), (0.2, 2))).computing(2.0)
    assert job.releases == ((0.2, 1), (0.4, 2))
    assert job.compute_s == pytest.approx(0.4)
