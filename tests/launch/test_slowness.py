"""Which servers are slow: by their ranks, by jobs inside one server, never by what a wrong file says alone."""

from paceline.launch.slowness import SLOW, JobOnServers, verdicts


def slow(*observations: JobOnServers) -> dict[str, float]:
    """The servers that are slow, and how much."""
    found = verdicts(observations)
    return {server: round(verdict.factor, 3) for server, verdict in found.items() if verdict.factor > 1.0}


def ranks(job: str, **paces_s: float) -> JobOnServers:
    return JobOnServers(job, job, tuple(paces_s), paces_s=paces_s)


def inside(job: str, server: str, factor: float, kind: str = "") -> JobOnServers:
    return JobOnServers(job, kind or job, (server,), factor)


def test_ranks_of_one_job_compare_its_servers() -> None:
    assert slow(ranks("a", s0=0.1, s1=0.25)) == {"s1": 2.5}
    assert slow(ranks("a", s0=0.1, s1=0.3, s2=0.1)) == {"s1": 3.0}
    assert slow(ranks("a", s0=0.1, s1=0.1 * (SLOW - 0.01))) == {}
    assert slow(ranks("a", s0=0.1, s1=0.0)) == {}, "a rank that has computed nothing"
    assert slow(ranks("a", s0=0.1)) == {}, "nothing to compare with"


def test_a_job_inside_one_server_is_compared_with_what_jobs_do_elsewhere() -> None:
    assert slow(inside("a", "s0", 2.5)) == {}, "alone: the job's file may be wrong"
    assert slow(inside("a", "s0", 2.5), inside("b", "s1", 1.0)) == {"s0": 2.5}
    # All files are wrong alike: none of the servers is to blame.
    assert slow(inside("a", "s0", 2.5), inside("b", "s1", 2.6), inside("c", "s2", 2.4)) == {}
    # A twin elsewhere knows better than jobs of other kinds.
    seen = (inside("a-0", "s0", 2.5, "a"), inside("a-1", "s1", 2.4, "a"), inside("b", "s2", 1.0))
    assert slow(*seen) == {}


def test_a_server_is_cleared_by_the_first_job_that_runs_well_there() -> None:
    wrong_file = inside("a", "s0", 2.5)
    assert slow(wrong_file, inside("b", "s1", 1.0)) == {"s0": 2.5}
    assert slow(wrong_file, inside("b", "s1", 1.0), inside("c", "s0", 1.02)) == {}
    assert slow(wrong_file, inside("b", "s1", 1.0), ranks("c", s0=0.1, s1=0.1)) == {}


def test_a_job_over_servers_says_nothing_by_its_iterations_alone() -> None:
    wide = JobOnServers("wide", "wide", ("s0", "s1"), 4.0)
    assert slow(wide, inside("b", "s2", 1.0)) == {}


def test_every_verdict_has_its_reason() -> None:
    found = verdicts([ranks("a", s0=0.1, s1=0.25), inside("b", "s2", 3.0), inside("c", "s0", 1.0)])
    assert "ranks of a compute 0.25 s there, 0.1 s on its other servers" in found["s1"].reason
    assert "b computes 3 times as long as its file says there, c 1 elsewhere" in found["s2"].reason
