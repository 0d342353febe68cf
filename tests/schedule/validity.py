"""What every schedule must satisfy, checked from its placements alone."""

import itertools

from paceline.schedule.plan import Schedule


def check(schedule: Schedule) -> None:
    """No GPU twice at a time, every job once and complete with exactly its GPUs, nobody before arrival."""
    problem = schedule.problem
    assert [p.job for p in schedule.placements] == [job.name for job in problem.jobs]
    spans: dict[int, list[tuple[float, float, str]]] = {}
    for job, placement in zip(problem.jobs, schedule.placements, strict=True):
        assert placement.reason, placement.job
        assert placement.segments, placement.job
        assert placement.start_s >= job.arrival_s - 1e-9
        for before, after in itertools.pairwise(placement.segments):
            assert before.end_s <= after.start_s + 1e-9
        for segment in placement.segments:
            assert len(set(segment.gpus)) == len(segment.gpus) == job.gpus
            assert all(0 <= gpu < problem.cluster.gpus_total for gpu in segment.gpus)
            assert segment.end_s > segment.start_s
            for gpu in segment.gpus:
                spans.setdefault(gpu, []).append((segment.start_s, segment.end_s, placement.job))
    for gpu, held in spans.items():
        held.sort()
        for (_, end, one), (start, _, other) in itertools.pairwise(held):
            assert end <= start + 1e-9 * max(1.0, end), f"GPU {gpu}: {one} and {other}"
