"""The picture in the README, from a real run: `python docs/images/render.py` (needs chromium).

The example scenario under three policies, each at its best window of 8, 16, 24, 32, 48 and 64.
"""

import subprocess
import tempfile
from pathlib import Path

from paceline.report.chart import Chart
from paceline.report.draw import svg
from paceline.sim.run import simulate
from paceline.sim.scenario import load_scenario

HERE = Path(__file__).parent
WINDOWS = (8, 16, 24, 32, 48, 64)
SIZE = (1000, 640)


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
    longest_ms = 1e3 * max(run.occupancy.time_s[-1] for run, _ in runs.values())
    drawn = []
    for policy, (run, window) in runs.items():
        chart = Chart(
            f"{policy}: jobs end after {1e3 * run.avg_jct_s:.2f} ms on average (window {window})",
            "milliseconds" if policy == "atp" else "",
            "aggregators held",
            height=195 if policy == "switchml" else 215,
            x_range=(0.0, longest_ms),
            y_range=(0.0, 128.0),
            legend=policy == "esa",
        )
        for j, job in enumerate(run.jobs):
            chart.area(job.name, [1e3 * t for t in run.occupancy.time_s], run.occupancy.slots_by_job[j])
        drawn.append(svg(chart, policy))
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(f"<meta charset=utf-8><body style='margin:8px 12px;background:#fff'>{''.join(drawn)}")
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
