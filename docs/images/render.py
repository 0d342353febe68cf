"""The picture in the README, from a real run: `python docs/images/render.py` (needs chromium).

The example scenario under three policies, each at its best window of 8, 16, 24, 32, 48 and 64.
"""

import subprocess
import tempfile
from pathlib import Path

from plotly.subplots import make_subplots

from paceline.report.page import COLOURS
from paceline.sim.scenario import load_scenario
from paceline.sim.run import simulate

HERE = Path(__file__).parent
WINDOWS = (8, 16, 24, 32, 48, 64)
SIZE = (1000, 620)


def best(policy):
    """The run at the window that suits the policy best."""
    runs = []
    for window in WINDOWS:
        changes = (f"policy.{policy}.transport.window={window}", "transport.window_min=4")
        scenario = load_scenario(HERE.parent.parent / "examples/simulate/quick.toml", changes)
        runs.append((simulate(scenario, policy), window))
    return min(runs, key=lambda run: run[0].avg_jct_s)


def main():
    runs = {policy: best(policy) for policy in ("esa", "switchml", "atp")}
    titles = [
        f"<b>{policy}</b>: jobs end after {1e3 * run.avg_jct_s:.2f} ms on average (window {window})"
        for policy, (run, window) in runs.items()
    ]
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, subplot_titles=titles, vertical_spacing=0.09)
    for row, (run, _) in enumerate(runs.values(), 1):
        for j, job in enumerate(run.jobs):
            figure.add_scatter(
                x=[1e3 * t for t in run.occupancy.time_s],
                y=run.occupancy.slots_by_job[j],
                name=job.name,
                stackgroup=str(row),
                line={"width": 0, "shape": "hv", "color": COLOURS[j]},
                fillcolor=COLOURS[j],
                showlegend=row == 1,
                row=row,
                col=1,
            )
        figure.update_yaxes(range=[0, 128], tickvals=[0, 64, 128], gridcolor="#e5e7eb", row=row, col=1)
    figure.update_yaxes(title="aggregators held", row=2, col=1)
    figure.update_xaxes(gridcolor="#e5e7eb")
    figure.update_xaxes(title="milliseconds", row=3, col=1)
    figure.update_layout(
        width=SIZE[0],
        height=SIZE[1],
        margin={"l": 70, "r": 20, "t": 80, "b": 50},
        title={"text": "Four jobs share one switch with 128 aggregators: memory held over time", "x": 0.02},
        legend={"orientation": "h", "y": -0.09, "x": 1, "xanchor": "right", "traceorder": "normal"},
        font={"family": "sans-serif", "size": 14},
        plot_bgcolor="white",
    )
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(
            f"<body style='margin:0'>{figure.to_html(full_html=False, config={'staticPlot': True})}"
        )
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--virtual-time-budget=8000",
        ]
        target = HERE / "switch-memory.png"
        command = [
            "chromium",
            *flags,
            f"--window-size={SIZE[0]},{SIZE[1]}",
            f"--screenshot={target}",
            page.as_uri(),
        ]
        subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    main()
