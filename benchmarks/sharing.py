"""Several jobs on one live switch and the same limited links: what each gets, beside Gloo in the same run.

    python -m benchmarks.sharing                    the whole table (root; half an hour on a quiet machine)
    python -m benchmarks.sharing --only "2 jobs"    rows whose name has these words, or is just that
    python -m benchmarks.sharing --only "2 jobs, 200 Mbit/s, 4MiB, esa-plus, agents" --repeat 20 --gloo-every 20
    python -m benchmarks.sharing --json runs.json --only "8 jobs"    adds to the runs in a file
    python -m benchmarks.sharing --json runs.json --simulate-only    adds what the simulator says of the rows there
    python -m benchmarks.sharing --json runs.json --table            the table of all that is in the file

Four servers are namespaces with links of 200 Mbit/s or 1 Gbit/s both ways; the switch is at their hub. Every job has a
worker on each server. A step is a sleep of 0.3 s for the device and the gradients of an MLP of 3.16 million
parameters (12.6 MB). `ddp` is DistributedDataParallel in a process a rank; `agents` are the bare agents, all jobs of a
server in one process, where two cores cannot carry 16 or 32 processes with PyTorch. Gloo runs the same jobs as
processes without a model; it is measured first, and again after every few rows, and all of its runs count.

What is printed, for each row:

    s/step     mean over steps and jobs                median    of a job's steps, mean over jobs
    worst      the longest step over its job's median
    x Gloo     steps a second over Gloo's, mean over jobs; and for the slowest job of any run, over Gloo's mean
    Jain       fairness of the jobs' rates             line      share of the links' rate that carried gradients
    fallback   share of contributions that found no aggregator
    cores      how many cores the processes of the row kept busy
    runs       ours / Gloo's
    simulated  s/step of the packet simulator for the same jobs, links and memory, and its error
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.sharing_run import HOSTS, Setting, measure
from benchmarks.sharing_simulated import simulated_step_s
from benchmarks.sharing_table import COLLAPSED, HEAD, Records, judge, markdown, show
from paceline.bench.processes import ChildError
from paceline.errors import UserError

MEMORY = ("64KiB", "512KiB", "4MiB", "64MiB")
RATES = (200e6, 1e9)
STEPS = {200e6: {1: 16, 2: 16, 4: 12, 8: 8}, 1e9: {1: 24, 2: 24, 4: 24, 8: 24}}
"""By rate and number of jobs: about 20 s, or 35 s of eight jobs. Jobs need a few steps until one computes while another
sends; these count, for us and for Gloo."""
GLOO_EVERY = 4
"""Gloo is measured again after so many runs of ours, if no other number is asked for; those of earlier calls count."""


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
            made += [Setting(jobs, rate, memory, "switchml") for memory in MEMORY]
            made += [Setting(jobs, rate, loss=0.005)]
            if jobs == 2:
                made += [Setting(jobs, rate, racks=2)]
    return [replace(setting, steps=STEPS[setting.rate_bps][setting.jobs]) for setting in made]


def run(
    settings: list[Setting], repeat: int, gloo_every: int, records: Records, path: Path | None
) -> tuple[list[str], int]:
    """Measure and print; what failed, and how many runs had a step that stood out far."""
    print(HEAD, flush=True)
    failed: list[str] = []
    collapsed = 0
    for setting in settings:
        for _ in range(repeat):
            beside = setting.like_gloo()
            try:
                if records.beside(beside) >= gloo_every * len(records.runs.get(beside.name, [])):
                    records.add(beside, measure(beside))
                ours = measure(setting)
            except ChildError as error:
                failed.append(f"{setting.name}: {error}")
                print(f"{setting.name:52s} FAILED: {error}", flush=True)
                continue
            records.add(setting, ours)
            row = judge(setting, [ours], records.runs[beside.name], records.simulated.get(setting.name))
            collapsed += row.worst > COLLAPSED
            print(show(row), flush=True)
            if path:
                records.save(path)
    return failed, collapsed


def simulate(settings: list[Setting], records: Records, path: Path | None) -> None:
    """What the simulator says of each row that was not asked before."""
    for setting in settings:
        if setting.name not in records.simulated:
            seconds = simulated_step_s(setting)
            print(f"{setting.name:52s} {'' if seconds is None else f'{seconds:6.2f}'}", flush=True)
            if seconds is not None:
                records.simulated[setting.name] = seconds
        if path:
            records.save(path)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        help="rows whose name has these words, or is just that; may be repeated",
    )
    parser.add_argument("--repeat", type=int, default=1, help="each row so many times")
    parser.add_argument(
        "--gloo-every", type=int, default=GLOO_EVERY, help="Gloo again after so many runs of ours"
    )
    parser.add_argument("--steps", type=int, help="for every row; by default as many as take about 20 s")
    parser.add_argument("--list", action="store_true", help="names of the rows, and nothing else")
    parser.add_argument("--no-simulator", action="store_true", help="measure only")
    parser.add_argument("--simulate-only", action="store_true", help="measure nothing, simulate")
    parser.add_argument("--table", action="store_true", help="measure nothing, print the table in Markdown")
    parser.add_argument("--json", type=Path, help="a file of runs: read if it is there, added to, written")
    options = parser.parse_args()
    words = options.only or [""]
    names = {setting.name for setting in rows()}
    chosen = [
        s for s in rows() if any(each == s.name or (each in s.name and each not in names) for each in words)
    ]
    if options.steps:
        chosen = [replace(setting, steps=options.steps) for setting in chosen]
    if options.list or not chosen:
        print("\n".join(setting.name for setting in (chosen or rows())))
        return 0 if options.list else 2
    records = Records.load(options.json) if options.json else Records()
    if options.table:
        print(markdown(records.rows(chosen)))
        return 0
    if not options.no_simulator:
        simulate(chosen, records, options.json)
    if options.simulate_only:
        return 0
    began = time.time()
    try:
        failed, collapsed = run(chosen, options.repeat, options.gloo_every, records, options.json)
    except UserError as error:
        sys.exit(str(error))
    wrong = sum(row.wrong > 0 for row in records.rows(chosen))
    print(
        f"{time.time() - began:.0f} s on {HOSTS} servers; {len(failed)} failed, {collapsed} collapsed, "
        f"{wrong} rows with a wrong sum"
    )
    return 1 if failed or collapsed or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
