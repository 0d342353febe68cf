"""Charts as SVG: marks where the figures say, names escaped, and few bytes however much is shown."""

import re
import xml.etree.ElementTree as ET

import pytest

from paceline.report.chart import COLOURS, Chart, GanttBar
from paceline.report.draw import svg

NAMESPACE = "{http://www.w3.org/2000/svg}"
SMALL_BYTES = 150_000


def _drawn(chart: Chart) -> ET.Element:
    return ET.fromstring(svg(chart, "figure-1"))


def _marks(drawn: ET.Element, tag: str) -> list[ET.Element]:
    """Those that have a title: not the frame's."""
    return [
        element for element in drawn.iter(NAMESPACE + tag) if element.find(NAMESPACE + "title") is not None
    ]


def _number(element: ET.Element, name: str) -> float:
    return float(element.attrib[name])


def _text(element: ET.Element) -> str:
    return "".join(element.itertext())


def test_bars_are_as_high_as_their_values_and_stand_side_by_side() -> None:
    chart = Chart("title", y="ms")
    chart.bars("one", ["a", "b"], [1.0, 2.0])
    chart.bars("two", ["a", "b"], [4.0, None])
    bars = _marks(_drawn(chart), "rect")
    heights = [_number(bar, "height") for bar in bars]
    assert heights == pytest.approx([heights[0], 2 * heights[0], 4 * heights[0]], abs=0.2)
    first, second = _number(bars[0], "x"), _number(bars[2], "x")
    assert second >= first + _number(bars[0], "width")
    assert [_text(bar) for bar in bars] == ["a, one: 1", "b, one: 2", "a, two: 4"]


def test_stacked_bars_stand_on_each_other() -> None:
    chart = Chart(stacked=True)
    chart.bars("waiting", ["a"], [1.0])
    chart.bars("running", ["a"], [3.0], texts=["4 s"])
    lower, upper = _marks(_drawn(chart), "rect")
    assert _number(upper, "y") + _number(upper, "height") == pytest.approx(_number(lower, "y"), abs=0.2)
    assert _number(upper, "y") > 0


def test_areas_stand_on_each_other_and_fill_the_range() -> None:
    chart = Chart(y_range=(0.0, 4.0), x_range=(0.0, 2.0))
    chart.area("one", [0.0, 1.0, 2.0], [1, 1, 1])
    chart.area("two", [0.0, 1.0, 2.0], [3, 0, 3])
    one, two = (path.attrib["d"] for path in _marks(_drawn(chart), "path"))
    top_of_one = set(re.findall(r"V([\d.]+)", one))
    assert top_of_one & set(re.findall(r"[V ]([\d.]+)", two)), "the second begins where the first ends"


def test_a_long_area_has_no_more_points_than_pixels_can_show() -> None:
    chart = Chart()
    times = [i / 1000 for i in range(200_000)]
    chart.area("job", times, [i % 7 for i in range(200_000)])
    assert len(svg(chart)) < SMALL_BYTES


def test_many_gantt_bars_become_one_shape_a_colour() -> None:
    chart = Chart(rows=[(0.5, "server")], y_range=(100.0, 0.0))
    chart.spans("jobs", [GanttBar(i / 7, 3.0, i % 100, 1, f"job-{i}", "why " * 20) for i in range(30_000)])
    drawn = svg(chart)
    assert len(drawn) < 800_000
    assert not _marks(ET.fromstring(drawn), "rect")


def test_a_gantt_bar_lies_on_its_rows_with_its_name_where_there_is_room() -> None:
    chart = Chart(rows=[(1.0, "a"), (3.0, "b")], y_range=(4.0, 0.0), x_range=(0.0, 10.0), height=200)
    chart.spans(
        "x", [GanttBar(0, 10, 0, 2, "wide", "why"), GanttBar(0, 0.01, 2, 2, "narrow", "too")], COLOURS[1]
    )
    drawn = _drawn(chart)
    wide, narrow = _marks(drawn, "rect")
    assert _number(wide, "y") < _number(narrow, "y")
    assert _number(wide, "width") > 100 * _number(narrow, "width")
    texts = [_text(text) for text in drawn.iter(NAMESPACE + "text")]
    assert "wide" in texts
    assert "narrow" not in texts
    assert "a" in texts


def test_hatched_bars_share_one_pattern() -> None:
    chart = Chart(rows=[(0.5, "a")], y_range=(1.0, 0.0))
    chart.spans("x", [GanttBar(0, 1, 0, 1, hatched=True)])
    chart.spans("y", [GanttBar(1, 1, 0, 1, hatched=True)])
    drawn = svg(chart, "figure-7")
    assert drawn.count('id="figure-7-hatch"') == 1
    assert drawn.count("url(#figure-7-hatch)") == 2


def test_log_axes_have_powers_of_ten() -> None:
    chart = Chart(log=True)
    chart.dots("x", [1.0, 10.0, 10_000.0], [1.0, 10.0, 10_000.0])
    drawn = _drawn(chart)
    at = [_number(dot, "cx") for dot in drawn.iter(NAMESPACE + "circle")]
    assert at[2] - at[1] == pytest.approx(3 * (at[1] - at[0]), abs=0.5)
    assert {"1", "100", "10,000"} <= {_text(text) for text in drawn.iter(NAMESPACE + "text")}


def test_a_line_in_steps_stops_where_the_axis_ends_and_breaks_where_nothing_is_known() -> None:
    chart = Chart(x_range=(0.0, 2.0), y_range=(0.0, 2.0))
    chart.line("one", [0.0, 1.0, 5.0], [1.0, 2.0, 0.0], steps=True)
    chart.line("two", [0.0, 1.0, 2.0], [1.0, None, 2.0])
    paths = [path.attrib["d"] for path in _drawn(chart).iter(NAMESPACE + "path") if "fill" in path.attrib]
    assert paths[0].endswith("H944.0")
    assert paths[1].count("M") == 2


@pytest.mark.parametrize("empty", [Chart(), Chart("t", rows=[(0.5, "a")]), Chart(log=False, stacked=True)])
def test_nothing_to_show_is_drawn_too(empty: Chart) -> None:
    _drawn(empty)


def test_equal_values_and_names_with_signs_are_no_trouble() -> None:
    chart = Chart("<script>", "a & b", "c")
    chart.line("<b>", [1.0, 1.0], [0.0, 0.0])
    chart.bars('"x"', ["<i>"], [0.0])
    assert "<script>" not in svg(chart)
    _drawn(chart)
