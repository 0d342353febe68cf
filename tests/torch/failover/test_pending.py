"""Reductions under way: whatever any worker may still lack, every worker still keeps."""

import random

import numpy as np
import pytest

pytest.importorskip("torch")

from paceline.torch.failover.pending import PendingReduction, ReductionQueue


def _entry(size: int, value: float = 1.0) -> PendingReduction:
    return PendingReduction(
        np.full(size, value, np.float32), "float32", "sum", 128, 60.0, lambda _error: None
    )


def test_reductions_begin_in_order_and_within_the_limits() -> None:
    queue = ReductionQueue(count_max=3, bytes_max=1000)
    entries = [_entry(10) for _ in range(5)]
    for entry in entries:
        queue.add(entry)
    begun = []
    while (entry := queue.may_begin()) is not None:
        queue.begin(entry, 0.0)
        begun.append(entry.seq)
    assert begun == [0, 1, 2], "three at a time"
    queue.finish(entries[1])
    assert queue.may_begin() is None, "the oldest is still under way"
    queue.finish(entries[0])
    assert queue.may_begin() is entries[3]
    large = ReductionQueue(count_max=10, bytes_max=100)
    for size in (10, 10, 1000, 1):
        large.add(_entry(size))
    assert [large.get(seq).floor for seq in range(4)] == [-1, -1, 1, 2]  # type: ignore[union-attr]


def test_inputs_are_kept_as_they_were() -> None:
    queue = ReductionQueue()
    entry = _entry(4, 7.0)
    queue.add(entry)
    queue.begin(entry, 0.0)
    entry.array[:] = 99
    assert entry.kept is not None
    assert entry.kept.tolist() == [7] * 4
    queue.begin(entry, 1.0)  # again: from the input
    assert entry.array.tolist() == [7] * 4


@pytest.mark.parametrize("seed", range(30))
def test_what_one_lacks_all_keep(seed: int) -> None:
    """Workers that begin and finish at random, under the rule that nobody finishes what not all have begun."""
    chance = random.Random(seed)
    count_max = chance.randint(1, 5)
    queues = [ReductionQueue(count_max=count_max, bytes_max=400) for _ in range(3)]
    sizes = [chance.choice([1, 5, 20, 50, 200]) for _ in range(60)]
    added = [0, 0, 0]
    while any(queue.lowest_open < len(sizes) for queue in queues):
        worker = chance.randrange(3)
        queue = queues[worker]
        move = chance.randrange(3)
        if move == 0 and added[worker] < len(sizes):
            queue.add(_entry(sizes[added[worker]]))
            added[worker] += 1
        elif move == 1 and (entry := queue.may_begin()) is not None:
            queue.begin(entry, 0.0)
        elif move == 2:
            ready = [e for e in queue.under_way() if all(other.next_to_begin > e.seq for other in queues)]
            if ready:
                queue.finish(chance.choice(ready))
        start = min(other.lowest_open for other in queues)
        for other in queues:
            for seq in range(start, other.next_to_begin):
                kept = other.get(seq)
                assert kept is not None
                assert kept.kept is not None, f"worker forgot {seq}, which another may still ask for"
