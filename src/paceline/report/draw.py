"""Charts as SVG, drawn without a browser and without a script.

A chart is some kilobytes, so that pages stay small and need no network. Text and grid take the colour of what is
around them, light or dark. What a mark stands for is its `<title>`: browsers show it under the mouse.
"""

import html
import math
from collections.abc import Iterable, Sequence

from paceline.report.chart import Chart, GanttBar, Series

WIDTH = 960
DASHES = {"": "", "dash": ' stroke-dasharray="7 4"', "dot": ' stroke-dasharray="2 4"'}
_CHARACTER = 6.8
"""Width of a letter of 12 px, about."""
_HOVERS_MAX = 1500
"""With more bars or dots than this, they are drawn as one shape a colour, without titles."""
_AREA_POINTS_MAX = 480
_SLANTED_MAX = 26
"""Letters of a label that has to be slanted."""


def svg(chart: Chart, name: str = "chart", width: int = WIDTH) -> str:
    """The chart as one SVG element; `name` is its id, once a page."""
    return _Drawing(chart, name, width).svg()


class _Drawing:
    """One chart on its way to SVG: the frame, both scales, then mark by mark."""

    def __init__(self, chart: Chart, name: str, width: int) -> None:
        self.chart, self.name, self.width = chart, name, width
        self.labels = list(
            dict.fromkeys(x for series in chart.series for x in series.x if isinstance(x, str))
        )
        self.stacks = _stack([s for s in chart.series if s.kind == "area"])
        self.legend, legend_rows = self._legend()
        label_px = max((len(text) for _, text in chart.rows), default=0) * _CHARACTER
        self.left = max(64.0, min(200.0, label_px + 14)) if chart.rows else 64.0
        self.right = width - 16.0
        self.top = 10.0 + (24.0 if chart.title else 0.0) + 20.0 * legend_rows
        room = (self.right - self.left) / max(len(self.labels), 1)
        longest = max((len(_plain(label)) for label in self.labels), default=0) * _CHARACTER
        self.slanted = longest > room
        longest = min(longest, _SLANTED_MAX * _CHARACTER)
        foot = 0.62 * longest + 16 if self.slanted else 22.0
        # Slanted labels lie below the chart, and reach to the left of the first of them.
        self.height = chart.height + foot - 22.0
        if self.slanted:
            self.left = max(self.left, 0.78 * longest - room / 2 + 8)
        self.bottom = self.height - foot - (20.0 if chart.x else 2.0)
        self.x0, self.x1 = chart.x_range or self._extent("x")
        self.y0, self.y1 = chart.y_range or self._extent("y")

    def svg(self) -> str:
        chart = self.chart
        parts = [*self._frame(), *self.legend]
        bars = [series for series in chart.series if series.kind == "bars"]
        # Errors and labels lie over all bars.
        over: list[str] = []
        for number, series in enumerate(bars):
            parts.append(self._bars(series, number, bars))
            over.append(self._errors(series, number, len(bars)))
        for series in chart.series:
            if series.kind == "area":
                parts.append(self._area(series))
            elif series.kind == "spans":
                parts.append(self._spans(series))
        for series in chart.series:
            if series.kind == "line":
                parts.append(self._line(series) + self._errors(series, 0, 0))
            elif series.kind == "dots":
                parts.append(self._dots(series))
        return (
            f'<svg id="{html.escape(self.name)}" class="chart" xmlns="http://www.w3.org/2000/svg" role="img"'
            f' viewBox="0 0 {self.width} {self.height:.0f}" font-family="system-ui, sans-serif" font-size="12"'
            f' aria-label="{html.escape(_plain(chart.title or chart.y or self.name))}">'
            + "".join(parts)
            + "".join(over)
            + "</svg>"
        )

    # Scales

    def _extent(self, axis: str) -> tuple[float, float]:
        found: list[float] = []
        for series in self.chart.series:
            if axis == "x":
                found += [float(x) for x in series.x if not isinstance(x, str)]
                found += [end for span in series.spans for end in (span.start, span.start + span.length)]
            elif series.kind == "area":
                found += [top for _, top in self.stacks[series.name]]
            else:
                found += [float(y) for y in (*series.y, *series.high) if y is not None]
                found += [end for span in series.spans for end in (span.row, span.row + span.rows)]
        if axis == "y" and self.chart.stacked:
            found += self._column_tops()
        low, high = min(found, default=0.0), max(found, default=1.0)
        if self.chart.log:
            return low / 1.15, high * 1.15
        if axis == "y" and self.chart.rows:
            return high, low
        if axis == "y":
            texts = any(series.texts for series in self.chart.series if series.kind == "bars")
            low, high = min(low, 0.0), high * (1.09 if texts else 1.03)
        return low, high if high > low else low + 1.0

    def _column_tops(self) -> list[float]:
        tops = dict.fromkeys(self.labels, 0.0)
        for series in self.chart.series:
            for label, value in zip(series.x, series.y, strict=True):
                tops[str(label)] += value or 0.0
        return list(tops.values())

    def _at_x(self, value: float | str) -> float:
        if isinstance(value, str):
            return self.left + (self.labels.index(value) + 0.5) * (self.right - self.left) / len(self.labels)
        return self.left + _share(value, self.x0, self.x1, self.chart.log) * (self.right - self.left)

    def _at_y(self, value: float) -> float:
        return self.bottom - _share(value, self.y0, self.y1, self.chart.log) * (self.bottom - self.top)

    # Frame

    def _frame(self) -> list[str]:
        chart, parts = self.chart, []
        if chart.title:
            parts.append(f'<text x="4" y="18" font-size="15" fill="currentColor">{_text(chart.title)}</text>')
        if chart.rows:
            for border in chart.borders:
                parts.append(_rule(self.left, self._at_y(border), self.right, self._at_y(border), 0.35))
            for at, text in chart.rows:
                parts.append(_label(self.left - 8, self._at_y(at) + 4, text, "end"))
        else:
            for tick in self._ticks(self.y0, self.y1, (self.bottom - self.top) / 52):
                parts.append(_rule(self.left, self._at_y(tick), self.right, self._at_y(tick)))
                parts.append(_label(self.left - 8, self._at_y(tick) + 4, _number(tick), "end"))
        if self.labels:
            parts += [self._category(label) for label in self.labels]
        else:
            for tick in chart.x_ticks or self._ticks(self.x0, self.x1, (self.right - self.left) / 90):
                parts.append(_rule(self._at_x(tick), self.top, self._at_x(tick), self.bottom))
                parts.append(_label(self._at_x(tick), self.bottom + 16, _number(tick), "middle"))
        parts.append(_rule(self.left, self.bottom, self.right, self.bottom, 0.6))
        if chart.x:
            parts.append(_label((self.left + self.right) / 2, self.height - 5, chart.x, "middle", 0.75))
        if chart.y:
            middle = (self.top + self.bottom) / 2
            parts.append(
                f'<text x="13" y="{middle:.0f}" transform="rotate(-90 13 {middle:.0f})" text-anchor="middle"'
                f' fill="currentColor" fill-opacity="0.75">{_text(chart.y)}</text>'
            )
        return parts

    def _ticks(self, low: float, high: float, count: float) -> list[float]:
        if not self.chart.log:
            return _ticks(min(low, high), max(low, high), max(2.0, count))
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        decades = [10.0**power for power in range(first, last + 1)]
        steps = (1, 2, 5) if last - first <= 3 else (1,)
        return [tick * step for tick in decades for step in steps if low <= tick * step <= high]

    def _category(self, label: str) -> str:
        x = self._at_x(label)
        if not self.slanted:
            return _label(x, self.bottom + 16, label, "middle")
        y = self.bottom + 12
        plain = _plain(label)
        short = plain if len(plain) <= _SLANTED_MAX else plain[: _SLANTED_MAX - 1] + "…"
        return (
            f'<text x="{x:.0f}" y="{y:.0f}" transform="rotate(-38 {x:.0f} {y:.0f})" text-anchor="end" font-size="11"'
            f' fill="currentColor">{html.escape(short)}</text>'
        )

    def _legend(self) -> tuple[list[str], int]:
        """Names with their colours, above the chart; rows are as long as the chart is wide."""
        named = list({series.name: series for series in self.chart.series if series.name}.values())
        if not self.chart.legend or len(named) < 2:
            return [], 0
        parts, row, x = [], 0, 4.0
        first = 14.0 + (24.0 if self.chart.title else 0.0)
        for series in named:
            width = 24 + len(_plain(series.name)) * _CHARACTER
            if x > 4.0 and x + width > self.width:
                row, x = row + 1, 4.0
            y = first + 20 * row
            mark = (
                f'<path d="M{x:.0f} {y - 4:.0f}h14" stroke="{series.colour}" stroke-width="{series.width}"'
                f"{DASHES[series.dash]}/>"
                if series.kind == "line"
                else f'<rect x="{x + 2:.0f}" y="{y - 9:.0f}" width="10" height="10" rx="2" fill="{series.colour}"/>'
            )
            parts.append(mark + _label(x + 18, y, series.name, "start"))
            x += width + 10
        return parts, row + 1

    # Marks

    def _bars(self, series: Series, number: int, bars: Sequence[Series]) -> str:
        found = []
        for i, (label, value) in enumerate(zip(series.x, series.y, strict=True)):
            if value is None:
                continue
            x, width = self._bar_place(label, number, len(bars))
            base = 0.0
            if self.chart.stacked:
                base = sum(_value_at(other, label) for other in bars[:number])
            top, foot = self._at_y(base + value), self._at_y(base)
            title = f"{_plain(str(label))}, {series.name}: {_number(value)}"
            found.append(
                f'<rect x="{x:.1f}" y="{min(top, foot):.1f}" width="{width:.1f}" height="{abs(foot - top):.1f}">'
                f"<title>{html.escape(title)}</title></rect>"
            )
            if series.texts and series.texts[i] and width >= 4:
                found.append(
                    f'<text x="{x + width / 2:.1f}" y="{top - 4:.1f}" text-anchor="middle" fill="currentColor"'
                    f' font-size="11">{html.escape(series.texts[i])}</text>'
                )
        return f'<g fill="{series.colour}">{"".join(found)}</g>'

    def _bar_place(self, label: float | str, number: int, of: int) -> tuple[float, float]:
        room = (self.right - self.left) / max(len(self.labels), 1)
        if self.chart.stacked:
            width = min(0.7 * room, 90.0)
            return self._at_x(label) - width / 2, width
        width = min(0.8 * room / of, 70.0)
        return self._at_x(label) + (number - of / 2) * width, 0.94 * width

    def _errors(self, series: Series, number: int, of: int) -> str:
        found = []
        for label, low, high in zip(series.x, series.low, series.high, strict=False):
            if low is None or high is None:
                continue
            x = self._at_x(label)
            if series.kind == "bars":
                left, width = self._bar_place(label, number, of)
                x = left + width / 2
            found.append(f"M{x - 4:.1f} {self._at_y(high):.1f}h8m-4 0V{self._at_y(low):.1f}m-4 0h8")
        return (
            f'<path d="{"".join(found)}" fill="none" stroke="currentColor" stroke-opacity="0.7"/>'
            if found
            else ""
        )

    def _line(self, series: Series) -> str:
        path, marks, pen, before = [], [], "M", 0.0
        shape = 'r="3.2"' if series.dots else 'r="7" fill-opacity="0"'
        for x, y in zip(series.x, series.y, strict=True):
            if y is None or (not isinstance(x, str) and not self.x0 <= x):
                pen = "M"
                continue
            if series.steps and pen == "L":
                path.append(f"H{min(self._at_x(x), self.right):.1f}")
            if not isinstance(x, str) and x > self.x1:
                if not series.steps and pen == "L":
                    path.append(f"L{self.right:.1f} {before:.1f}")
                break
            before = self._at_y(y)
            path.append(f"{pen}{self._at_x(x):.1f} {before:.1f}")
            pen = "L"
            title = f"{series.name}, {_plain(x) if isinstance(x, str) else _number(x)}: {_number(y)}"
            marks.append(
                f'<circle cx="{self._at_x(x):.1f}" cy="{before:.1f}" {shape}>'
                f"<title>{html.escape(title)}</title></circle>"
            )
        shown = "".join(marks) if series.dots or len(marks) <= 120 else ""
        return (
            f'<path d="{"".join(path)}" fill="none" stroke="{series.colour}" stroke-width="{series.width:g}"'
            f' stroke-linejoin="round"{DASHES[series.dash]}/><g fill="{series.colour}">{shown}</g>'
        )

    def _area(self, series: Series) -> str:
        levels = self.stacks[series.name]
        xs = [self._at_x(float(x)) for x in series.x]
        # No more points than the eye can tell apart: a column of pixels has the mean of what falls into it.
        columns: dict[int, list[int]] = {}
        for i, x in enumerate(xs):
            columns.setdefault(
                i if len(xs) <= _AREA_POINTS_MAX else int(x * _AREA_POINTS_MAX / self.width), []
            ).append(i)
        points = [
            (
                xs[part[0]],
                self._at_y(sum(levels[i][0] for i in part) / len(part)),
                self._at_y(sum(levels[i][1] for i in part) / len(part)),
            )
            for part in columns.values()
        ]
        if not points:
            return ""
        rights = [x for x, _, _ in points[1:]] + [points[-1][0]]
        steps = "".join(f"V{top:.1f}H{right:.1f}" for (_, _, top), right in zip(points, rights, strict=True))
        upper = f"M{points[0][0]:.1f} {points[0][1]:.1f}{steps}"
        lower = "".join(f"V{low:.1f}H{x:.1f}" for x, low, _ in reversed(points))
        return f'<path d="{upper}{lower}Z" fill="{series.colour}"><title>{html.escape(series.name)}</title></path>'

    def _dots(self, series: Series) -> str:
        many = len(series.x) > _HOVERS_MAX
        found = []
        for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
            if y is None:
                continue
            text = series.texts[i] if series.texts else f"{_number(float(x))}, {_number(y)}"
            title = "" if many else f"<title>{html.escape(f'{series.name}: {text}')}</title>"
            at = f'cx="{self._at_x(x):.1f}" cy="{self._at_y(y):.1f}"'
            found.append(f'<circle {at} r="{series.width:g}">{title}</circle>')
        return f'<g fill="{series.colour}" fill-opacity="0.7">{"".join(found)}</g>'

    def _spans(self, series: Series) -> str:
        drawn = [(span, self._box(span)) for span in series.spans]
        if sum(len(each.spans) for each in self.chart.series) > _HOVERS_MAX:
            # What falls on the same pixels is drawn once.
            boxes = dict.fromkeys(
                f"M{x:.0f} {y:.1f}h{max(width, 1):.0f}v{height:.1f}h-{max(width, 1):.0f}z"
                for _, (x, y, width, height) in drawn
            )
            return f'<path fill="{series.colour}" d="{"".join(boxes)}"/>'
        found = []
        for span, (x, y, width, height) in drawn:
            box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
            title = f"<title>{html.escape(span.hover)}</title>" if span.hover else ""
            found.append(f"<rect {box}>{title}</rect>")
            if span.hatched:
                found.append(f'<rect {box} fill="url(#{self.name}-hatch)" pointer-events="none"/>')
            if len(span.label) * 0.52 * min(12, height) + 4 < width and height >= 9:
                found.append(
                    f'<text x="{x + width / 2:.1f}" y="{y + height / 2 + 4:.1f}" text-anchor="middle" fill="#fff"'
                    f' font-size="{min(12, height - 1):.0f}" pointer-events="none">{html.escape(span.label)}</text>'
                )
        hatch = (
            f'<pattern id="{self.name}-hatch" width="7" height="7" patternUnits="userSpaceOnUse"'
            ' patternTransform="rotate(45)"><path d="M0 0V7" stroke="#fff" stroke-width="4"'
            ' stroke-opacity="0.6"/></pattern>'
            if any(span.hatched for span in series.spans) and not self._hatched_before(series)
            else ""
        )
        return f'{hatch}<g fill="{series.colour}">{"".join(found)}</g>'

    def _hatched_before(self, series: Series) -> bool:
        before = self.chart.series[: self.chart.series.index(series)]
        return any(span.hatched for each in before for span in each.spans)

    def _box(self, span: GanttBar) -> tuple[float, float, float, float]:
        left, right = self._at_x(span.start), min(self._at_x(span.start + span.length), self.right)
        top, bottom = self._at_y(span.row), self._at_y(span.row + span.rows)
        gap = min(1.0, 0.06 * (bottom - top))
        return left, top + gap / 2, max(right - left - 0.6, 0.8), bottom - top - gap


def _stack(areas: Iterable[Series]) -> dict[str, list[tuple[float, float]]]:
    """By name, the lower and upper edge at each x: every area stands on those before it."""
    found: dict[str, list[tuple[float, float]]] = {}
    base: list[float] = []
    for series in areas:
        base = base or [0.0] * len(series.x)
        tops = [low + (y or 0.0) for low, y in zip(base, series.y, strict=True)]
        found[series.name] = list(zip(base, tops, strict=True))
        base = tops
    return found


def _value_at(series: Series, label: float | str) -> float:
    for other, value in zip(series.x, series.y, strict=True):
        if other == label:
            return value or 0.0
    return 0.0


def _share(value: float, low: float, high: float, log: bool) -> float:
    if log:
        return math.log(max(value, 1e-300) / low) / math.log(high / low)
    return (value - low) / (high - low)


def _ticks(low: float, high: float, count: float) -> list[float]:
    """Round figures between both ends, about so many."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = min((step * power for step in (1, 2, 5, 10)), key=lambda step: abs(math.log(step / raw)))
    first = math.ceil(low / step - 1e-9)
    return [tick * step for tick in range(first, math.floor(high / step + 1e-9) + 1)]


def _number(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _plain(text: str) -> str:
    return text.removeprefix("<b>").removesuffix("</b>")


def _text(text: str) -> str:
    """Text of the SVG; `<b>...</b>` around all of it is bold."""
    plain = html.escape(_plain(text))
    return plain if plain == html.escape(text) else f'<tspan font-weight="600">{plain}</tspan>'


def _label(x: float, y: float, text: str, anchor: str, opacity: float = 1.0) -> str:
    faint = "" if opacity == 1.0 else f' fill-opacity="{opacity}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor"{faint}>{_text(text)}</text>'


def _rule(x0: float, y0: float, x1: float, y1: float, opacity: float = 0.13) -> str:
    return (
        f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="currentColor" stroke-opacity="{opacity}"/>'
    )
