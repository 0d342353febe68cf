"""Several jobs on one live switch and the same limited links: what each gets, beside Gloo in the same run.

    python -m benchmarks.sharing                    the whole table (root; half an hour on a quiet machine)
    python -m benchmarks.sharing --only "2 jobs"    rows whose name has these words
    python -m benchmarks.sharing --only "2 jobs, 200 Mbit/s, 4MiB, esa, agents" --repeat 20
    python -m benchmarks.sharing --json table.json

Four servers are namespaces with links of 200 Mbit/s or 1 Gbit/s both ways; the switch is at their hub. Every job has a
worker on each server. A step is a sleep of 0.3 s for the device and the gradients of an MLP of 3.16 million
parameters (12.6 MB). `ddp` is DistributedDataParallel in a process a rank; `agents` are the bare agents, all jobs of a
server in one process, where two cores cannot carry 16 or 32 processes with PyTorch. Gloo runs the same jobs as
processes without a model.

What is printed, for each row:

    s/step     mean over steps and jobs                median    of a job's steps, mean over jobs
    worst      the longest step over its job's median
    x Gloo     steps a second over Gloo's, mean over jobs; and for the job that gains least
    Jain       fairness of the jobs' rates             line      share of the links' rate that carried gradients
    fallback   share of contributions that found no aggregator
    cores      how many of this machine's cores were busy
    simulated  s/step of the packet simulator for the same jobs, links and memory, and its error
"""

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.sharing_run import HOSTS, Measured, Setting, measure
from benchmarks.sharing_simulated import simulated_step_s
from paceline.bench.processes import ChildError
from paceline.errors import UserError

MEMORY = ("64KiB", "512KiB", "4MiB", "64MiB")
RATES = (200e6, 1e9)
STEPS = {200e6: 8, 1e9: 24}
"""About ten seconds of two jobs. Jobs need a few steps until one computes while the other sends."""
COLLAPSED = 10.0
"""A step of so many medians is a collapse."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    setting: Setting
    step_s: float
    median_s: float
    worst: float
    over_gloo: float
    least_over_gloo: float
    jain: float
    line: float
    fallback: float
    cores: float
    wrong: int
    simulated_s: float | None

    @property
    def error(self) -> float | None:
        return None if self.simulated_s is None else self.simulated_s / self.step_s - 1.0


def rows() -> list[Setting]:
    """The table's rows, those with the same Gloo beside each other."""
    made = []
    for rate in RATES:
        made += [Setting(jobs, rate, kind="ddp") for jobs in (1, 2)]
        for jobs in (1, 2, 4, 8):
            made += [Setting(jobs, rate, memory) for memory in (MEMORY if jobs > 1 else ("4MiB",))]
            if jobs > 1:
                made += [Setting(jobs, rate, memory, "esa") for memory in MEMORY]
            made += [Setting(jobs, rate, memory, "atp") for memory in MEMORY[2:]]
            made += [Setting(jobs, rate, memory, "switchml") for memory in MEMORY[:3]]
            made += [Setting(jobs, rate, loss=0.005)]
            if jobs == 2:
                made += [Setting(jobs, rate, racks=2)]
    return [replace(setting, steps=STEPS[setting.rate_bps]) for setting in made]


def judge(setting: Setting, ours: Measured, gloo: Measured, simulate: bool) -> Row:
    """From what was measured to a line of the table."""
    means = [statistics.mean(steps) for steps in ours.steps]
    medians = [statistics.median(steps) for steps in ours.steps]
    ratios = [statistics.mean(theirs) / own for theirs, own in zip(gloo.steps, means, strict=True)]
    rates = [1.0 / mean for mean in means]
    bits = 8.0 * setting.gradient_bytes * setting.jobs * setting.steps
    return Row(
        setting,
        statistics.mean(means),
        statistics.mean(medians),
        max(max(steps) / median for steps, median in zip(ours.steps, medians, strict=True)),
        statistics.mean(ratios),
        min(ratios),
        sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates)),
        bits / setting.rate_bps / max(sum(steps) for steps in ours.steps),
        ours.fallback,
        ours.cores,
        ours.wrong + gloo.wrong,
        simulated_step_s(setting) if simulate else None,
    )


def show(row: Row) -> str:
    predicted = "" if row.simulated_s is None else f"{row.simulated_s:6.2f} ({row.error:+.0%})"
    wrong = f"  WRONG: {row.wrong} numbers" if row.wrong else ""
    return (
        f"{row.setting.name:52s} {row.step_s:7.2f} {row.median_s:6.2f} {row.worst:6.1f} "
        f"{row.over_gloo:7.2f} {row.least_over_gloo:6.2f} {row.jain:6.3f} {row.line:6.2f} "
        f"{row.fallback:7.1%} {row.cores:6.1f}  {predicted}{wrong}"
    )


HEAD = (
    f"{'':52s} {'s/step':>7s} {'median':>6s} {'worst':>6s} {'x Gloo':>7s} {'least':>6s} {'Jain':>6s} {'line':>6s} "
    f"{'fallbk':>7s} {'cores':>6s}  simulated"
)


def run(settings: list[Setting], repeat: int, simulate: bool) -> tuple[list[Row], list[str]]:
    """Measure and print; the rows, and what failed."""
    print(HEAD, flush=True)
    done: list[Row] = []
    failed: list[str] = []
    gloo: dict[Setting, Measured] = {}
    for setting in settings:
        for _ in range(repeat):
            beside = setting.like_gloo()
            try:
                if beside not in gloo:
                    gloo[beside] = measure(beside)
                row = judge(setting, measure(setting), gloo[beside], simulate)
            except ChildError as error:
                failed.append(f"{setting.name}: {error}")
                print(f"{setting.name:52s} FAILED: {error}", flush=True)
                continue
            done.append(row)
            print(show(row), flush=True)
    return done, failed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", default=[], help="rows whose name has these words; may be repeated"
    )
    parser.add_argument("--repeat", type=int, default=1, help="each row so many times")
    parser.add_argument("--steps", type=int, help="8 at 200 Mbit/s and 24 at 1 Gbit/s, unless given")
    parser.add_argument("--list", action="store_true", help="names of the rows, and nothing else")
    parser.add_argument("--no-simulator", action="store_true")
    parser.add_argument("--json", type=Path, help="the rows, for scripts")
    options = parser.parse_args()
    words = options.only or [""]
    chosen = [s for s in rows() if any(each in s.name for each in words)]
    if options.steps:
        chosen = [replace(setting, steps=options.steps) for setting in chosen]
    if options.list or not chosen:
        print("\n".join(setting.name for setting in (chosen or rows())))
        return 0 if options.list else 2
    began = time.time()
    try:
        done, failed = run(chosen, options.repeat, not options.no_simulator)
    except UserError as error:
        sys.exit(str(error))
    collapsed = [row for row in done if row.worst > COLLAPSED]
    print(
        f"{len(done)} rows in {time.time() - began:.0f} s on {HOSTS} servers; {len(failed)} failed, "
        f"{len(collapsed)} collapsed, {sum(row.wrong > 0 for row in done)} with a wrong sum"
    )
    if options.json:
        document: list[dict[str, Any]] = [{"name": row.setting.name, **asdict(row)} for row in done]
        options.json.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return 1 if failed or collapsed or any(row.wrong for row in done) else 0


if __name__ == "__main__":
    sys.exit(main())
