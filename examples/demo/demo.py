"""The demonstration: six training jobs on an emulated cluster, as people run them today and with Paceline.

    python examples/demo/demo.py OUT

Today: first fit, Gloo. With Paceline: bco-plus, a switch with little memory, takeover. Both runs are real: processes of
PyTorch in network namespaces with limited links. Ends with the figures in OUT/summary.json and a page OUT/report.html.
Where no namespaces can be made, it says so and shows the same workload in the packet simulator.
"""

import json
import subprocess
import sys
from pathlib import Path

from paceline.launch.store import read_run
from paceline.report.run.read import RunData

HERE = Path(__file__).parent
SWITCH_MEMORY = "256KiB"
LOADED = ("torch.distributed", "paceline.torch.takeover")
COMPILED = ("paceline.live.agent.setup", "paceline.torch.warm")
TOLERANCE = 1e-4
"""Of losses, relative. Sums are taken in another order and in fixed point; over the steps of a job that is rounding."""


def main() -> int:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    possible = subprocess.run([sys.executable, "-m", "paceline.emulation.enclosure", "true"], check=False)
    if possible.returncode != 0:
        print(
            "== so the same workload in the packet simulator: a ring, then a switch with takeover", flush=True
        )
        return simulated()
    say("compiling, once a machine: agent, switch, worker and planner, side by side (a minute or more)")
    subprocess.run([sys.executable, "-m", "paceline.launch.warm"], check=True)
    say("six training jobs as people run them today: first fit, Gloo, one slow server")
    train(out / "plain", "--policy", "ff", "--objective", "jct", "--warm", ",".join(LOADED))
    say("the same with Paceline: bco-plus, a switch with little memory, takeover")
    options = (
        "--policy",
        "bco-plus",
        "--objective",
        "jct",
        "--switch",
        "auto",
        "--switch-memory",
        SWITCH_MEMORY,
    )
    train(out / "paceline", *options, "--warm", ",".join(LOADED + COMPILED))
    plain, ours = read_run(out / "plain"), read_run(out / "paceline")
    paceline("report", str(out / "plain"), str(out / "paceline"), "--html", str(out / "report.html"))
    return tell(plain, ours, out)


def say(text: str) -> None:
    print(f"== {text}", flush=True)


def paceline(*arguments: str) -> None:
    subprocess.run([sys.executable, "-c", "from paceline.cli import main; main()", *arguments], check=True)


def train(folder: Path, *options: str) -> None:
    cluster = ("--cluster", str(HERE / "cluster.toml"))
    paceline("run", str(HERE / "jobs.toml"), *cluster, *options, "--out", str(folder))


def simulated() -> int:
    scenario = str(HERE / "scenario.toml")
    helped = [option for i in range(6) for option in ("--set", f"job.{i}.straggler=takeover")]
    paceline("simulate", scenario, "--policy", "ring")
    paceline("simulate", scenario, "--policy", "esa-plus", *helped)
    return 0


def tell(plain: RunData, ours: RunData, out: Path) -> int:
    """The table, the file and the line at the end; 1 if the losses differ."""
    print(f"\n{'':6} {'today, s':^31}   {'with Paceline, s':^31}")
    parts = f"{'queue':>7} {'start':>6} {'train':>7} {'all':>8}"
    print(f"{'job':6} {parts}   {parts}  {'ratio':>6}  loss")
    ratios, agree = [], True
    for before, after in zip(plain.jobs, ours.jobs, strict=True):
        first, second = plain.jct_s(before), ours.jct_s(after)
        losses = [float(run.figure_of(job, "loss")) for run, job in ((plain, before), (ours, after))]
        same = abs(losses[0] - losses[1]) <= TOLERANCE * abs(losses[0])
        agree &= same
        assert first is not None
        assert second is not None
        ratios.append(first / second)
        shown = [
            "{:7.1f} {:6.1f} {:7.1f} {:8.1f}".format(*run.parts_s(job), jct)
            for run, job, jct in ((plain, before, first), (ours, after, second))
        ]
        print(
            f"{before['name']:6} {shown[0]}   {shown[1]}  {first / second:5.2f}x  {'same' if same else losses}"
        )
    assert plain.avg_jct_s is not None
    assert plain.makespan_s is not None
    summary = {
        "avg_jct_ratio": plain.avg_jct_s / (ours.avg_jct_s or 1.0),
        "makespan_ratio": plain.makespan_s / (ours.makespan_s or 1.0),
        "worst_job_ratio": min(ratios),
        "same_losses": agree,
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(f"\nThe report, to be opened in a browser: {(out / 'report.html').resolve()}")
    if not agree:
        print("THE LOSSES DIFFER")
        return 1
    print(
        f"With Paceline the same six jobs, with the same losses, are done {summary['avg_jct_ratio']:.2f} times as fast "
        f"on average, and all of them {summary['makespan_ratio']:.2f} times as fast."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
