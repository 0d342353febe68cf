"""The tournament gives the same order as a heap of (time, entity)."""

import heapq

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.engine.event_queue import NEVER_NS, new_queue, set_time, time_of

changes = st.lists(
    st.tuples(st.integers(0, 12), st.one_of(st.integers(0, 20), st.just(int(NEVER_NS)))), max_size=60
)


class Heap:
    """What the queue must do, the usual way: stale entries stay and are skipped."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []
        self.time_ns: dict[int, int] = {}

    def set_time(self, entity: int, time_ns: int) -> None:
        self.time_ns[entity] = time_ns
        heapq.heappush(self.entries, (time_ns, entity))

    def first(self) -> tuple[int, int] | None:
        while self.entries and self.time_ns[self.entries[0][1]] != self.entries[0][0]:
            heapq.heappop(self.entries)
        return self.entries[0] if self.entries else None


@given(changes)
@settings(deadline=None, max_examples=200)
def test_the_winner_is_the_earliest_and_ties_go_to_the_lower_number(events: list[tuple[int, int]]) -> None:
    queue, heap = new_queue(13), Heap()
    for entity, time_ns in events:
        set_time(queue, entity, time_ns)
        heap.set_time(entity, time_ns)
        first = heap.first()
        assert first is not None
        winner = int(queue.nodes[1].entity)
        assert int(time_of(queue, winner)) == first[0]
        if first[0] != NEVER_NS:
            assert winner == first[1]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40))
@settings(deadline=None, max_examples=100)
def test_taking_the_winner_again_and_again_sorts(times: list[int]) -> None:
    queue = new_queue(len(times))
    for entity, time_ns in enumerate(times):
        set_time(queue, entity, time_ns)
    taken = []
    for _ in times:
        winner = int(queue.nodes[1].entity)
        taken.append((int(time_of(queue, winner)), winner))
        set_time(queue, winner, int(NEVER_NS))
    assert taken == sorted((time_ns, entity) for entity, time_ns in enumerate(times))
    assert queue.nodes[1].time_ns == NEVER_NS


def test_a_new_queue_is_idle_whatever_its_size() -> None:
    for entities in (1, 2, 3, 64, 65):
        queue = new_queue(entities)
        assert queue.nodes.shape[0] >= 2 * entities
        assert queue.nodes[1].time_ns == NEVER_NS
