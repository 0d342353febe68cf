"""Random small problems and plans for the property tests."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from paceline.schedule.inputs.cluster import Cluster, Server, SwitchMemory
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.model import CONTENTION, Model, Problem


@st.composite
def clusters(draw: st.DrawFn, largest: int = 5) -> Cluster:
    sizes = draw(st.lists(st.integers(1, largest), min_size=1, max_size=4))
    racks = draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=len(sizes), max_size=len(sizes)))
    memory = draw(st.sampled_from([None, SwitchMemory(slots=64, payload=256, round_trip=1e-5)]))
    servers = tuple(Server(f"s{i}", g, r) for i, (g, r) in enumerate(zip(sizes, racks, strict=True)))
    return Cluster(servers, intra_bps=draw(st.sampled_from([1e11, 1e13])), inter_bps=1e10, switch=memory)


@st.composite
def problems(
    draw: st.DrawFn,
    jobs_max: int = 8,
    arrivals: bool = True,
    in_network: bool = True,
    slotted: bool | None = None,
) -> Problem:
    cluster = draw(clusters())
    jobs = []
    for i in range(draw(st.integers(1, jobs_max))):
        job = Job(
            f"j{i}",
            draw(st.integers(1, cluster.gpus_total)),
            draw(st.integers(1, 60)),
            draw(st.sampled_from([0, 1_000_000, 50_000_000, 200_000_000])),
            batch=draw(st.integers(1, 4)),
            forward_s=draw(st.floats(0.0, 0.05)),
            backward_s=draw(st.floats(0.01, 0.3)),
            arrival_s=draw(st.floats(0.0, 10.0)) if arrivals else 0.0,
            exchange=draw(st.sampled_from(["ring", "in-network"])) if in_network else "ring",
        )
        jobs.append(job)
    model = Model(
        alpha=draw(st.floats(0.0, 1.0)),
        xi1=draw(st.sampled_from([0.3, 1.0])),
        xi2_s=draw(st.floats(0.0, 0.01)),
        f=CONTENTION[draw(st.sampled_from(sorted(CONTENTION)))],
    )
    problem = Problem(cluster, tuple(jobs), model)
    if slotted is False or (slotted is None and draw(st.booleans())):
        return problem
    # A slot must hold an iteration of every job wherever it runs.
    slot_s = float(problem.tau_max.max()) * draw(st.floats(1.01, 4.0))
    return replace(problem, model=replace(model, slot_s=slot_s))


@st.composite
def plans(draw: st.DrawFn, problem: Problem) -> tuple[list[int], list[list[int]], list[float]]:
    """Any order, any GPUs, some jobs held back: times in units."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    total = problem.cluster.gpus_total
    order = [int(j) for j in rng.permutation(len(problem.jobs))]
    gpus = [sorted(int(g) for g in rng.permutation(total)[: job.gpus]) for job in problem.jobs]
    not_before = [float(rng.integers(0, 4)) * float(rng.integers(0, 2)) for _ in problem.jobs]
    return order, gpus, not_before
