"""What a chart shows: bars, lines, stacked areas, dots and Gantt bars. `draw` makes SVG of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

COLOURS = (
    "#2f6fdf", "#e4572e", "#2a9d5c", "#8b5cf6", "#d99a00", "#0e9aa7", "#c2417b", "#6b7280",
    "#7a9e1f", "#a0522d", "#4c566a", "#e07be0", "#1f4e79", "#b8860b", "#5f9ea0", "#cd5c5c",
)  # fmt: skip
"""Told apart on white by people with the common kinds of colour blindness as well, in this order."""
Values = Sequence[float | None]


@dataclass(frozen=True)
class GanttBar:
    """A bar of a Gantt chart: some neighbouring rows, for a time."""

    start: float
    length: float
    row: float
    """Its first row."""
    rows: float
    label: str = ""
    hover: str = ""
    hatched: bool = False


@dataclass(frozen=True)
class Series:
    kind: str
    name: str
    colour: str
    x: Sequence[float | str] = ()
    y: Values = ()
    low: Values = ()
    """Lower ends of error bars; none if empty."""
    high: Values = ()
    texts: Sequence[str] = ()
    """Beside bars, or under the mouse over dots."""
    spans: Sequence[GanttBar] = ()
    dash: str = ""
    width: float = 2.0
    steps: bool = False
    dots: bool = False


@dataclass
class Chart:
    """One chart. Series without a colour get the next of `COLOURS`; `draw.svg` draws them in the order of adding."""

    title: str = ""
    x: str = ""
    y: str = ""
    height: int = 400
    stacked: bool = False
    """Bars of one label above each other rather than side by side."""
    log: bool = False
    """Both axes are logarithmic."""
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    x_ticks: Sequence[float] = ()
    rows: Sequence[tuple[float, str]] = ()
    """Labels of a Gantt chart's rows, from above; they replace the figures of the upright axis."""
    borders: Sequence[float] = ()
    """Lines between rows."""
    legend: bool = True
    series: list[Series] = field(default_factory=list)

    def bars(
        self,
        name: str,
        labels: Sequence[str],
        values: Values,
        colour: str = "",
        texts: Sequence[str] = (),
        low: Values = (),
        high: Values = (),
    ) -> None:
        self._add("bars", name, colour, x=labels, y=values, texts=texts, low=low, high=high)

    def line(
        self,
        name: str,
        x: Sequence[float | str],
        y: Values,
        colour: str = "",
        dash: str = "",
        width: float = 2.0,
        steps: bool = False,
        dots: bool = False,
        low: Values = (),
        high: Values = (),
    ) -> None:
        shape = {"dash": dash, "width": width, "steps": steps, "dots": dots}
        self._add("line", name, colour, x=x, y=y, low=low, high=high, **shape)

    def area(self, name: str, x: Sequence[float], y: Values, colour: str = "") -> None:
        """A part of a stack, in steps; all areas of a chart have the same x."""
        self._add("area", name, colour, x=x, y=y)

    def dots(
        self,
        name: str,
        x: Sequence[float],
        y: Values,
        colour: str = "",
        radius: float = 3.0,
        texts: Sequence[str] = (),
    ) -> None:
        self._add("dots", name, colour, x=x, y=y, width=radius, texts=texts)

    def spans(self, name: str, spans: Sequence[GanttBar], colour: str = "") -> None:
        self._add("spans", name, colour, spans=spans)

    def _add(self, kind: str, name: str, colour: str, **rest: object) -> None:
        chosen = colour or COLOURS[len(self.series) % len(COLOURS)]
        self.series.append(Series(kind, name, chosen, **rest))  # type: ignore[arg-type]
