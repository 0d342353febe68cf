"""The figures of a run's report: who ran where, how long jobs took, switch memory, paths."""

import itertools
from collections.abc import Sequence
from typing import Any

from paceline.report.page import COLOURS, figure_layout
from paceline.report.run.read import RunData, Use

PATH_COLOURS = {"switch": COLOURS[2], "custodian": COLOURS[4], "ring": COLOURS[1], "host": COLOURS[5]}
WAIT_COLOUR = "#c9d1da"
JOBS_AS_BARS_MAX = 40
_LEGEND_JOBS_MAX = 24


def colour_of(run: RunData) -> dict[str, str]:
    """A job has the same colour in every figure."""
    return {job["name"]: COLOURS[i % len(COLOURS)] for i, job in enumerate(run.jobs)}


def gantt(run: RunData, until_s: float | None = None, title: str = "") -> Any:
    """A row a slot; a job is a rectangle on each of its servers."""
    import plotly.graph_objects as go

    colours = colour_of(run)
    until_s = until_s or run.end_s
    figure = go.Figure()
    for name in colours:
        tries = [each for each in run.tries if each.job == name]
        bars = [(each, low, count) for each in tries for low, count in _neighbours(run, each.gpus)]
        if not bars:
            continue
        figure.add_bar(
            orientation="h",
            name=name,
            base=[each.start_s for each, _, _ in bars],
            x=[max(each.end_s - each.start_s, until_s / 500) for each, _, _ in bars],
            y=[low + (count - 1) / 2 for _, low, count in bars],
            width=[count * 0.92 for _, _, count in bars],
            text=[name] * len(bars),
            textposition="inside",
            insidetextanchor="middle",
            hovertext=[
                f"<b>{name}</b>, attempt {each.number}: {each.outcome or 'running'}<br>{', '.join(each.servers)}<br>"
                f"{each.start_s:.1f} to {each.end_s:.1f} s<br>{each.reason}"
                for each, _, _ in bars
            ],
            hoverinfo="text",
            marker={
                "color": colours[name],
                "line": {"width": 0.6, "color": "white"},
                "pattern": {"shape": ["" if each.outcome in ("done", "") else "/" for each, _, _ in bars]},
            },
        )
    layout = figure_layout(title, "seconds since the run began", "", height=_gantt_height(run.slots))
    figure.update_layout(
        **layout, barmode="overlay", uniformtext={"minsize": 8, "mode": "hide"}, showlegend=False
    )
    figure.update_layout(margin={"l": 90, "r": 20, "t": 60 if title else 34, "b": 50})
    figure.update_xaxes(range=[0, until_s * 1.01])
    _server_axis(figure, run)
    return figure


def _server_axis(figure: Any, run: RunData) -> None:
    first, ticks = 0, []
    for server in run.servers:
        ticks.append(first + (server["slots"] - 1) / 2)
        first += server["slots"]
        if first < run.slots and len(run.servers) <= 200:
            figure.add_hline(y=first - 0.5, line_width=0.7, line_color="#9aa4b2")
    names = [server["name"] for server in run.servers]
    figure.update_yaxes(
        tickvals=ticks, ticktext=names, range=[run.slots - 0.5, -0.5], showgrid=False, zeroline=False
    )


def _gantt_height(slots: int) -> int:
    return int(min(2000.0, 120.0 + min(34.0, max(6.0, 640.0 / max(slots, 1))) * slots))


def _neighbours(run: RunData, gpus: Sequence[int]) -> list[tuple[int, int]]:
    """Slots as runs (first, length) of neighbours on one server."""
    edges, first = set(), 0
    for server in run.servers:
        edges.add(first)
        first += server["slots"]
    runs: list[tuple[int, int]] = []
    for gpu in gpus:
        if runs and gpu == runs[-1][0] + runs[-1][1] and gpu not in edges:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((gpu, 1))
    return runs


def completion(run: RunData) -> Any:
    """Waiting and running by job; many jobs as a distribution."""
    import plotly.graph_objects as go

    figure = go.Figure()
    done = [(job, jct_s) for job in run.jobs if (jct_s := run.jct_s(job)) is not None]
    if len(done) > JOBS_AS_BARS_MAX:
        ends = sorted(jct_s for _, jct_s in done)
        shares = [(i + 1) / len(ends) for i in range(len(ends))]
        figure.add_scatter(x=ends, y=shares, mode="lines", line={"shape": "hv"})
        figure.update_layout(**figure_layout("", "seconds", "share of jobs", yaxis_range=[0, 1]))
        return figure
    names = [job["name"] for job, _ in done]
    ran_s = [_ran_s(run, job["name"]) for job, _ in done]
    waited_s = [max(0.0, jct_s - ran) for (_, jct_s), ran in zip(done, ran_s, strict=True)]
    figure.add_bar(name="waiting", x=names, y=waited_s, marker_color=WAIT_COLOUR, hovertemplate="%{y:.3g} s")
    figure.add_bar(
        name="running",
        x=names,
        y=ran_s,
        marker_color=COLOURS[0],
        hovertemplate="%{y:.3g} s",
        text=[f"{jct_s:.3g} s" for _, jct_s in done],
        textposition="outside",
        cliponaxis=False,
    )
    layout = figure_layout(
        "", "", "seconds", barmode="stack", height=360, margin={"l": 70, "r": 20, "t": 30, "b": 40}
    )
    figure.update_layout(**layout)
    return figure


def _ran_s(run: RunData, name: str) -> float:
    return sum(each.end_s - each.start_s for each in run.tries if each.job == name)


def memory(run: RunData, until_s: float | None = None) -> Any:
    """By job over time: aggregators held, chunks summed in the switch a second, preemptions so far."""
    from plotly.subplots import make_subplots

    colours = colour_of(run)
    of_all = f", of {run.switch_slots}" if run.switch_slots else ""
    figure = make_subplots(
        rows=3,
        cols=1,
        shared_xaxes=True,
        row_heights=[0.36, 0.36, 0.28],
        vertical_spacing=0.09,
        subplot_titles=(
            f"aggregators held{of_all}",
            "chunks summed in the switch, a second",
            "preemptions so far",
        ),
    )
    # A sample without a job has its times too: a job that has left holds nothing.
    times = sorted({run.at(row["time"]) for row in run.switch_samples})
    for i, (job, uses) in enumerate(run.switch_use.items()):
        colour = colours.get(job, COLOURS[(len(colours) + i) % len(COLOURS)])
        common: dict[str, Any] = {"name": job, "legendgroup": job, "mode": "lines"}
        area = {**common, "line": {"width": 0, "shape": "hv", "color": colour}, "fillcolor": colour}
        held = {use.time_s: use.held or 0.0 for use in uses}
        rates = _rates(uses)
        for row, values in ((1, held), (2, rates)):
            figure.add_scatter(
                row=row, col=1, x=times, y=[values.get(time_s, 0.0) for time_s in times], stackgroup=f"row{row}",
                showlegend=row == 1, hovertemplate="%{y:.3g}", **area,
            )  # fmt: skip
        figure.add_scatter(
            row=3, col=1, showlegend=False, x=[use.time_s for use in uses], y=[use.preemptions for use in uses],
            line={"shape": "hv", "color": colour}, hovertemplate="%{y:.0f}", **common,
        )  # fmt: skip
    layout = figure_layout("", height=560, showlegend=len(run.switch_use) <= _LEGEND_JOBS_MAX)
    for key in ("title", "xaxis_title", "yaxis_title"):
        del layout[key]
    figure.update_layout(**layout)
    figure.update_layout(legend={"y": -0.12}, margin={"l": 70, "r": 20, "t": 40, "b": 50})
    figure.update_xaxes(row=3, col=1, title_text="seconds since the run began")
    figure.update_xaxes(range=[0, (until_s or run.end_s) * 1.01])
    figure.update_yaxes(rangemode="tozero")
    figure.update_annotations(font_size=13)
    return figure


def _rates(uses: Sequence[Use]) -> dict[float, float]:
    """Chunks summed a second, from each sample to the next; at the first, the counter began at nothing."""
    found: dict[float, float] = {}
    for before, after in itertools.pairwise(uses):
        gained = (after.sums or 0.0) - (before.sums or 0.0)
        # A job that was admitted anew counts from nothing.
        found[before.time_s] = max(gained, 0.0) / max(after.time_s - before.time_s, 1e-3)
    return found


def paths(run: RunData, until_s: float | None = None) -> Any:
    """A row a job, coloured by the path of its gradients."""
    import plotly.graph_objects as go

    figure = go.Figure()
    order = [job["name"] for job in run.jobs]
    for path in dict.fromkeys(span.what for span in run.paths):
        spans = [span for span in run.paths if span.what == path]
        figure.add_bar(
            orientation="h",
            name=path,
            base=[span.start_s for span in spans],
            x=[max(span.end_s - span.start_s, run.end_s / 500) for span in spans],
            y=[span.job for span in spans],
            width=0.6,
            marker_color=PATH_COLOURS.get(path, COLOURS[7]),
            hovertemplate=f"{path}: from %{{base:.1f}} s",
        )
    shown = [name for name in order if any(span.job == name for span in run.paths)]
    layout = figure_layout("", "seconds since the run began", "", height=120 + 26 * len(shown))
    figure.update_layout(**layout, barmode="overlay", showlegend=True)
    figure.update_layout(legend={"y": 1.0, "yanchor": "bottom"}, margin={"l": 120, "r": 20, "t": 40, "b": 50})
    figure.update_yaxes(categoryorder="array", categoryarray=shown[::-1])
    figure.update_xaxes(range=[0, (until_s or run.end_s) * 1.01])
    return figure
