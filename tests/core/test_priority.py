"""ESA's priority: a monotone function into 1..255."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.core.priority import (
    MIDDLE,
    SERVICE_BULK,
    SERVICE_URGENT,
    STEPS_PER_OCTAVE,
    priority,
    sending_order,
    service_of,
)

times = st.floats(1e-9, 1e6)
ratios = st.floats(1e-6, 1e6)
layers = st.integers(1, 500)


@given(st.floats(0, 1e12), st.floats(0, 1e12), layers, st.data())
def test_it_is_never_zero_and_fits_a_byte(
    left_s: float, ratio: float, count: int, data: st.DataObject
) -> None:
    assert 1 <= priority(left_s, ratio, data.draw(st.integers(0, count - 1)), count) <= 255


@given(times, times, ratios)
def test_less_time_left_never_lowers_it(a: float, b: float, ratio: float) -> None:
    assert priority(min(a, b), ratio, 0, 1) >= priority(max(a, b), ratio, 0, 1)


@given(times, ratios, ratios)
def test_more_communication_never_lowers_it(left_s: float, a: float, b: float) -> None:
    assert priority(left_s, max(a, b), 0, 1) >= priority(left_s, min(a, b), 0, 1)


@given(times, ratios, layers, st.data())
def test_a_layer_nearer_the_input_never_has_less(
    left_s: float, ratio: float, count: int, data: st.DataObject
) -> None:
    layer = data.draw(st.integers(0, count - 1))
    assert priority(left_s, ratio, 0, count) >= priority(left_s, ratio, layer, count)


def test_its_scale_is_logarithmic() -> None:
    assert priority(1.0, 1.0, 0, 1) == MIDDLE
    assert priority(0.5, 1.0, 0, 1) == MIDDLE + STEPS_PER_OCTAVE
    assert priority(1.0, 0.25, 0, 1) == MIDDLE - 2 * STEPS_PER_OCTAVE
    assert priority(1.0, 1.0, 1, 1) == MIDDLE - STEPS_PER_OCTAVE


def test_the_network_is_told_how_urgent_a_job_is() -> None:
    """A job of a minute goes before any other traffic, one of a day behind it; of unknown ones nothing is said."""
    minute, day = (priority(seconds, 1.0, 0, 1) for seconds in (60, 86_400))
    assert [service_of(number) for number in (minute, MIDDLE, day, 0)] == [
        SERVICE_URGENT,
        0,
        SERVICE_BULK,
        SERVICE_BULK,
    ]
    bands = [{SERVICE_BULK: 0, 0: 1, SERVICE_URGENT: 2}[service_of(n)] for n in range(256) if n != MIDDLE]
    assert bands == sorted(bands)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.floats(0.1, 10), st.data())
def test_every_chunk_is_sent_once_and_never_behind_a_less_urgent_one_that_could_wait(
    chunks: list[int], chunk_ns: float, data: st.DataObject
) -> None:
    """Backward passes end with the first layer; the link is never idle while anything is ready."""
    passes = data.draw(st.lists(st.floats(0.1, 100), min_size=len(chunks), max_size=len(chunks)))
    ready_ns = [sum(passes[layer:]) for layer in range(len(chunks))]
    order = sending_order(chunks, ready_ns, chunk_ns)
    assert [order.count(layer) for layer in range(len(chunks))] == chunks
    left, now_ns = list(chunks), 0.0
    for layer in order:
        waiting = [other for other, count in enumerate(left) if count]
        now_ns = max(now_ns, min(ready_ns[other] for other in waiting))
        assert layer == min(other for other in waiting if ready_ns[other] <= now_ns)
        left[layer] -= 1
        now_ns += chunk_ns


def test_what_is_slow_to_send_lets_the_first_layer_overtake() -> None:
    assert sending_order([3, 3], [10, 0], 4) == [1, 1, 1, 0, 0, 0]
    assert sending_order([3, 3], [5, 0], 4) == [1, 1, 0, 0, 0, 1]
    assert sending_order([1, 1, 1], [2, 1, 0], 10) == [2, 0, 1]
