"""Files as fools and vandals write them: examples with numbers, lines and bytes changed, given to the real readers.

    python -m tests.hostile_files --runs 10000

Each is read, or refused with a `UserError` (one line, exit code 2). Whatever else is raised is a defect: the file is
kept and named. A job file that can be read is planned, a scenario's experiment is built.
"""

import argparse
import random
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from paceline.errors import UserError
from paceline.schedule import planning
from paceline.schedule.inputs.cluster import Cluster
from paceline.schedule.inputs.jobs import check_fits, load_jobs
from paceline.schedule.inputs.sources import ClusterSource
from paceline.schedule.inputs.traces import read_trace
from paceline.schedule.model import Problem
from paceline.schedule.policies import by_name
from paceline.sim.scenario import load_scenario

ROOT = Path(__file__).resolve().parent.parent
NUMBERS = (
    "inf", "-inf", "nan", "0", "-1", "1e308", "1e400", "9223372036854775808", "-0.0", "1e-320", '"1e400GB"',
    '""', "true", "[]", "{}", '"inf s"', '"-3 ms"', "0x7fffffffffffffff", '"99999999999 GB"', "1_000", "'\\u0000'",
)  # fmt: skip
TRACES = {
    "philly": '[{"jobid": "a", "submitted_time": "2017-10-03 17:04:03", "status": "Pass", "attempts": [{"start_time": '
    '"2017-10-03 17:04:08", "end_time": "2017-10-03 17:06:28", "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}]}]}]',
    "helios": "job_id,user,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
    "1,u,4,8,1,COMPLETED,2020-04-01 00:00:09,2020-04-01 00:00:10,2020-04-01 01:00:10,3600,1\n",
    "pai": "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
    "j,worker,2,Terminated,100.0,900.0,600,29,100,V100\n",
    "swf": "; MaxProcs: 8\n1 0 5 100 4 -1 -1 4 200 -1 1 1 1 1 1 -1 -1 -1\n",
}


PROFILE = """\
workers = 4
samples = 32
steps = 20
forward = "1 ms"
backward = "2 ms"
jitter = 0.05
gradient = 3000

[[layers]]
name = "out"
size = 1000
released = "0.5 ms"

[[layers]]
name = "in"
size = 2000
released = "2 ms"
"""


def the_cluster() -> Cluster:
    return ClusterSource.read(str(ROOT / "examples/plan/cluster.toml")).file.cluster()


def read_scenario(path: Path) -> None:
    load_scenario(path)


def read_cluster(path: Path) -> None:
    ClusterSource.read(str(path)).file.cluster()


def plan_jobs(path: Path) -> None:
    cluster = the_cluster()
    jobs = load_jobs(path, cluster.gpus_total)[:20]
    check_fits(jobs, cluster.gpus_total, str(path))
    planning.plan(Problem(cluster, jobs), by_name("sjf-bco", seed=0, budget_s=0.1), "makespan")


def plan_profile(path: Path) -> None:
    """A job list whose one job names the profile."""
    jobs = path.with_suffix(".jobs.toml")
    entry = (
        f'[[jobs]]\nname = "a"\ngpus = 2\niterations = 10\nprofile = "{path.name}"\nexchange = "in-network"\n'
    )
    jobs.write_text(entry, encoding="utf-8")
    try:
        plan_jobs(jobs)
    finally:
        jobs.unlink()


def trace_reader(form: str) -> Callable[[Path], None]:
    return lambda path: (read_trace(f"{form}:{path}"), None)[1]


KINDS: dict[str, tuple[list[str], str, Callable[[Path], None]]] = {
    "scenario": (
        [(ROOT / f"examples/simulate/{name}.toml").read_text() for name in ("quick", "faults", "straggler")],
        ".toml",
        read_scenario,
    ),
    "cluster": (
        [(ROOT / f"examples/{name}/cluster.toml").read_text() for name in ("plan", "run")],
        ".toml",
        read_cluster,
    ),
    "jobs": ([(ROOT / "examples/plan/jobs.toml").read_text()], ".toml", plan_jobs),
    "profile": ([PROFILE], ".toml", plan_profile),
    "csv": ([(ROOT / "examples/plan/small-jobs.csv").read_text()], ".csv", plan_jobs),
    **{
        form: ([text], ".json" if form == "philly" else ".csv", trace_reader(form))
        for form, text in TRACES.items()
    },
}


def spoiled(text: str, chance: random.Random) -> bytes:
    """The text with one to three things wrong."""
    for _ in range(chance.randint(1, 3)):
        lines = text.splitlines()
        at = chance.randrange(max(1, len(lines)))
        what = chance.randrange(6)
        if what <= 2 and lines:
            words = [
                word
                for word in lines[at].replace(",", " , ").split()
                if word[:1].isdigit() or word[:1] == '"'
            ]
            if words:
                lines[at] = lines[at].replace(chance.choice(words).strip(), chance.choice(NUMBERS), 1)
        elif what == 3 and lines:
            lines.pop(at)
        elif what == 4 and lines:
            lines.insert(at, chance.choice(lines))
        elif lines:
            cut = chance.randrange(len(lines[at]) + 1)
            lines[at] = (
                lines[at][:cut]
                + chance.choice(("\x00", "é", "=", "[[", '"', "🦉", "\t", ",", "-"))
                + lines[at][cut:]
            )
        text = "\n".join(lines) + "\n"
    data = bytearray(text.encode())
    if chance.random() < 0.1 and data:
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def attack(kind: str, runs: int, seed: int, folder: Path) -> tuple[int, list[str]]:
    """How many were refused; and what was raised that is no refusal."""
    texts, suffix, reader = KINDS[kind]
    chance = random.Random(f"{kind} {seed}")
    refused, raised = 0, []
    for run in range(runs):
        path = folder / f"{kind}-{seed}-{run}{suffix}"
        path.write_bytes(spoiled(chance.choice(texts), chance))
        try:
            reader(path)
        except UserError:
            refused += 1
        except Exception:
            raised.append(f"{path}\n{traceback.format_exc(limit=-3)}")
            continue
        path.unlink()
    return refused, raised


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10_000, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=sorted(KINDS), help="one kind")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="paceline-files-"))
    bad = 0
    for kind in [options.only] if options.only else KINDS:
        refused, raised = attack(kind, options.runs, options.seed, folder)
        bad += len(raised)
        print(f"{kind:10s} {options.runs} files, {refused} refused, {len(raised)} raised", flush=True)
        for each in raised[:3]:
            print(each)
    if not bad:
        folder.rmdir()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
