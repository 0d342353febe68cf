"""Gantt charts: a planned schedule as text and as a figure, a run as a figure.

In the terminal, few jobs get a line each (dots: waiting, blocks: running, shaded when spread); many jobs
get a line a server, shaded by how many of its GPUs are busy. A figure has a row a GPU (slot), so a job is a
rectangle on each server it uses. In a schedule colours tell the number of GPUs, in a run they tell the job.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from paceline.report.chart import COLOURS, Chart, GanttBar
from paceline.report.run.read import RunData
from paceline.schedule.model import Floats
from paceline.schedule.plan import Schedule
from paceline.units import format_seconds

JOB_LINES_MAX = 32
_SHADES = " ░▒▓█"


def text_gantt(schedule: Schedule, width: int = 100) -> str:
    """The chart as lines of at most `width` characters."""
    by_job = len(schedule.placements) <= JOB_LINES_MAX
    lines = _job_lines(schedule, width) if by_job else _server_lines(schedule, width)
    return "\n".join(lines)


def _axis(label: int, bars: int, end_s: float) -> str:
    left, right = "0", format_seconds(end_s)
    return " " * label + " " + left + " " * max(1, bars - len(left) - len(right)) + right


def _job_lines(schedule: Schedule, width: int) -> list[str]:
    cluster = schedule.problem.cluster
    label = min(24, max(len(p.job) for p in schedule.placements))
    wheres = ["+".join(f"{s}:{n}" for s, n in cluster.by_server(p.gpus).items()) for p in schedule.placements]
    room = min(26, max(len(where) for where in wheres))
    bars = max(20, width - label - room - 3)
    scale = bars / schedule.makespan_s
    lines = [_axis(label, bars, schedule.makespan_s)]
    order = sorted(range(len(wheres)), key=lambda i: (schedule.placements[i].start_s, i))
    for i in order:
        placement = schedule.placements[i]
        row = [" "] * bars
        arrival = schedule.problem.jobs[i].arrival_s
        _fill(row, arrival * scale, placement.end_s * scale, "·")
        for segment in placement.segments:
            spread = len({int(cluster.server_of[g]) for g in segment.gpus}) > 1
            _fill(row, segment.start_s * scale, segment.end_s * scale, "▒" if spread else "█")
        where = wheres[i] if len(wheres[i]) <= room else wheres[i][: room - 1] + "…"
        lines.append(f"{placement.job[:label]:<{label}} {''.join(row)} {where}".rstrip())
    lines.append(f"{'':<{label}} █ on one server   ▒ spread over several   · waiting")
    return lines


def _fill(row: list[str], begin: float, end: float, mark: str) -> None:
    first = min(int(begin), len(row) - 1)
    for i in range(first, max(first + 1, min(len(row), round(end)))):
        row[i] = mark


def _server_lines(schedule: Schedule, width: int) -> list[str]:
    cluster = schedule.problem.cluster
    label = min(20, max(len(server.name) for server in cluster.servers) + 5)
    bars = max(20, width - label - 7)
    busy = np.zeros((len(cluster.servers), bars))
    spread = np.zeros((len(cluster.servers), bars))
    edges = np.linspace(0.0, schedule.makespan_s, bars + 1)
    for placement in schedule.placements:
        for segment in placement.segments:
            servers = cluster.server_of[list(segment.gpus)]
            covered = _covered(edges, segment.start_s, segment.end_s)
            for s, count in zip(*np.unique(servers, return_counts=True), strict=True):
                busy[s] += covered * count
                if len(set(servers.tolist())) > 1:
                    spread[s] += covered * count
    lines = [_axis(label, bars, schedule.makespan_s)]
    shown = list(range(len(cluster.servers)))[:48]
    for s in shown:
        server = cluster.servers[s]
        share = busy[s] / server.gpus
        row = "".join(_SHADES[min(4, int(np.ceil(value * 4 - 1e-9)))] for value in share)
        name = f"{server.name[: label - 4]} x{server.gpus}"
        lines.append(f"{name:<{label}} {row} {share.mean():4.0%}")
    if len(shown) < len(cluster.servers):
        lines.append(f"{'':<{label}} ... and {len(cluster.servers) - len(shown)} more servers")
    lines.append(f"{'':<{label}} a line a server; the darker, the more of its GPUs are busy")
    return lines


def _covered(edges: Floats, begin: float, end: float) -> Floats:
    # Share of each bin that lies within [begin, end].
    inside = np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin)
    return np.asarray(np.clip(inside, 0.0, None) / (edges[1] - edges[0]))


def schedule_figure(schedule: Schedule) -> Chart:
    """A schedule, with a row a GPU."""
    cluster, problem = schedule.problem.cluster, schedule.problem
    unit, scale = axis_unit(schedule.makespan_s)
    sizes = sorted({job.gpus for job in problem.jobs})
    bars: dict[int, list[GanttBar]] = {size: [] for size in sizes}
    for job, placement in zip(problem.jobs, schedule.placements, strict=True):
        for segment in placement.segments:
            where = ", ".join(f"{n} on {s}" for s, n in cluster.by_server(segment.gpus).items())
            text = (
                f"{placement.job}: {job.gpus} GPUs\n{where}\n{segment.start_s / scale:.4g} to"
                f" {segment.end_s / scale:.4g} {unit}\n{placement.reason}"
            )
            start, length = segment.start_s / scale, (segment.end_s - segment.start_s) / scale
            bars[job.gpus] += [
                GanttBar(start, length, first, count, placement.job, text)
                for first, count in slot_runs([server.gpus for server in cluster.servers], segment.gpus)
            ]
    named = [
        (f"{size} GPU{'s' if size > 1 else ''}", COLOURS[colour % len(COLOURS)], bars[size])
        for colour, size in enumerate(sizes)
    ]
    total = cluster.gpus_total
    # Thick rows for a small cluster, thin ones for a large, and an end to it.
    height = int(min(2400.0, 160.0 + min(16.0, max(4.2, 520.0 / total)) * total))
    title = f"{schedule.policy}: {len(problem.jobs)} jobs on {total} GPUs, a row a GPU"
    chart = _chart(named, [(server.name, server.gpus) for server in cluster.servers])
    chart.title, chart.x, chart.height = title, f"time ({unit})", height
    chart.x_range = (0.0, 1.01 * schedule.makespan_s / scale)
    return chart


def run_figure(run: RunData, until_s: float | None = None) -> Chart:
    """A run, with a row a slot; attempts that were lost, stopped or failed are hatched."""
    until_s = until_s or run.end_s
    sizes = [server["slots"] for server in run.servers]
    named = []
    for name, colour in job_colours(run).items():
        bars = [
            GanttBar(
                each.start_s,
                max(each.end_s - each.start_s, until_s / 500),
                first,
                count,
                name,
                f"{name}, attempt {each.number}: {each.outcome or 'running'}\n{', '.join(each.servers)}"
                f"\n{each.start_s:.1f} to {each.end_s:.1f} s\n{each.reason}",
                each.outcome not in ("done", ""),
            )
            for each in run.tries
            if each.job == name
            for first, count in slot_runs(sizes, each.gpus)
        ]
        if bars:
            named.append((name, colour, bars))
    height = int(min(2000.0, 120.0 + min(34.0, max(6.0, 640.0 / max(run.slots, 1))) * run.slots))
    chart = _chart(named, [(server["name"], server["slots"]) for server in run.servers])
    chart.x, chart.height, chart.legend = "seconds since the run began", height, False
    chart.x_range = (0.0, until_s * 1.01)
    return chart


def job_colours(run: RunData) -> dict[str, str]:
    """A job has the same colour in every figure of a run."""
    return {job["name"]: COLOURS[i % len(COLOURS)] for i, job in enumerate(run.jobs)}


def _chart(named: Iterable[tuple[str, str, list[GanttBar]]], servers: Sequence[tuple[str, int]]) -> Chart:
    """Bars by name and colour, over an axis of servers and their slots."""
    first = np.concatenate(([0], np.cumsum([slots for _, slots in servers]))).astype(float).tolist()
    chart = Chart(
        rows=[
            ((first[s] + first[s + 1]) / 2, servers[s][0])
            for s in range(0, len(servers), -(-len(servers) // 60))
        ],
        borders=first[1:-1] if len(servers) <= 200 else (),
        y_range=(first[-1], 0.0),
    )
    for name, colour, bars in named:
        chart.spans(name, bars, colour)
    return chart


def slot_runs(sizes: Sequence[int], slots: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending slots as runs (first, length) of neighbours on one server; `sizes` are the servers' slots."""
    borders = set(np.cumsum(sizes).tolist())
    runs: list[tuple[int, int]] = []
    for slot in slots:
        if runs and slot == sum(runs[-1]) and slot not in borders:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((slot, 1))
    return runs


def axis_unit(seconds: float) -> tuple[str, float]:
    """The unit in which a span of time reads well, and its seconds."""
    for unit, scale in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2.5 * scale:
            return unit, scale
    return "s", 1.0
