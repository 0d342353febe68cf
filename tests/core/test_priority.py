"""ESA's priority: a monotone function into 1..255."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.core.priority import (
    MIDDLE,
    SERVICE_BULK,
    SERVICE_URGENT,
    STEPS_PER_OCTAVE,
    priority,
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
