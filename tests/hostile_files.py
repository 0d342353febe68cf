"""Files as fools and vandals write them: examples with numbers, lines and bytes changed, given to the real readers.

    python -m tests.hostile_files --runs 10000

Each is read, or refused with a `UserError` (one line, exit code 2). Whatever else is raised is a defect: the file is
kept and named. Jobs and traces that can be read are planned, small scenarios begin to run, a profiler's trace becomes
a profile. In JSON any value is replaced by any other besides, in what has no text any byte.
"""

import argparse
import gzip
import json
import random
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from paceline import toml
from paceline.core.priority import priority
from paceline.dashboard.stragglers import load_rules
from paceline.drill.plan import load_drill
from paceline.errors import UserError
from paceline.launch.jobs import load_run_jobs
from paceline.models.chakra import read_chakra
from paceline.models.kineto import read_kineto
from paceline.models.profile import Measured, entry_text, load_profile
from paceline.passport.records import RECORD, Owner
from paceline.passport.verify import read_run, verify
from paceline.schedule import planning
from paceline.schedule.inputs.cluster import Cluster
from paceline.schedule.inputs.discover import Found, from_nodes, from_ray, from_slurm, to_toml
from paceline.schedule.inputs.jobs import check_fits, load_jobs
from paceline.schedule.inputs.sources import ClusterSource
from paceline.schedule.inputs.traces import read_trace, with_models
from paceline.schedule.model import Job, Problem
from paceline.schedule.policies import by_name
from paceline.sim.build.arrays import build
from paceline.sim.engine.loop import run
from paceline.sim.scenario import Scenario, load_scenario
from tests.models import test_chakra as chakra
from tests.models import test_kineto as kineto

ROOT = Path(__file__).resolve().parent.parent
NUMBERS = (
    "inf", "-inf", "nan", "0", "-1", "1e308", "1e400", "9223372036854775808", "-0.0", "1e-320", '"1e400GB"',
    '""', "true", "[]", "{}", '"inf s"', '"-3 ms"', "0x7fffffffffffffff", '"99999999999 GB"', "1_000", "'\\u0000'",
    "9" * 400, "9" * 5000, "[" * 3000, '"\\ud800"',
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

[[exchange]]
name = "switch"
step = "5 ms"
spread = 0.2
workers = 4
cores = 2
"""


RULES = '[stragglers]\nmedian = 0.75\nbest = 0.5\nlag_min_ms = 1.0\ncallback = "json:dumps"\n'
RAY = (
    '[{"node_id": "a", "node_ip": "10.0.0.1", "node_name": "m1", "state": "ALIVE", '
    '"resources_total": {"CPU": 8.0, "GPU": 4.0}}]'
)
SLURM = (
    "NodeName=n01 Arch=x86_64 Gres=gpu:a100:4(S:0-1),nic:2 State=IDLE\n"
    "NodeName=n02 Arch=x86_64 Gres=gpu:8 State=MIXED+PLANNED\nNodeName=login Gres=(null) State=IDLE\n"
)
TOPOLOGY = (
    "SwitchName=top Switches=left,right\nSwitchName=left Nodes=n[01-01],login LinkSpeed=100000000\n"
    "SwitchName=right Nodes=n02 # the new rack\n"
)
NODES = "name,gpus,rack,link\nn0,8,a,100 Gbit/s\nn1,4,a,\nn2,8,b,25 Gbit/s\n"
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, 10**400, 1e308, 5e-324, "", "\ud800", "a\nb", "9" * 5000, [], {}, [[]], {"a": None},
    "2017",
)  # fmt: skip
SCENARIO_MAX = 4_000_000
"""Bytes of gradients in all: a scenario with more is read only."""


def write_cluster(read: Callable[[str], Found]) -> Callable[[Path], None]:
    """What another system knows of a cluster, if it can be read, gives a cluster file that can be read."""

    def through(path: Path) -> None:
        text = to_toml(read(toml.read_text(path)), None)
        made = path.with_suffix(".cluster.toml")
        try:
            made.write_text(text, encoding="utf-8")
            read_cluster(made)
        finally:
            made.unlink(missing_ok=True)

    return through


def the_cluster() -> Cluster:
    return ClusterSource.read(str(ROOT / "examples/plan/cluster.toml")).file.cluster()


def begin_scenario(path: Path) -> None:
    """Read, and let it take its first steps if it is small."""
    scenario = load_scenario(path)
    if _size_of(scenario) <= SCENARIO_MAX:
        setup = build(scenario, "esa", scenario.seed, False, priority)
        run(setup.world, 2000, setup.room, scenario.horizon)


def _size_of(scenario: Scenario) -> float:
    return sum(job.workers * (job.size or SCENARIO_MAX) + 1000 * job.workers for job in scenario.job)


def read_cluster(path: Path) -> None:
    ClusterSource.read(str(path)).file.cluster()


def plan_jobs(path: Path) -> None:
    cluster = the_cluster()
    _plan(cluster, load_jobs(path, cluster.gpus_total)[:20], path)


def _plan(cluster: Cluster, jobs: tuple[Job, ...], path: Path) -> None:
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
    def read(path: Path) -> None:
        cluster = the_cluster()
        _plan(cluster, with_models(read_trace(f"{form}:{path}"), 1, 20), path)

    return read


def write_profile(read: Callable[[Path], Measured]) -> Callable[[Path], None]:
    """A trace that can be read gives a profile that can be read."""

    def through(path: Path) -> None:
        text = entry_text(read(path))
        made = path.with_suffix(".profile.toml")
        try:
            made.write_text(text, encoding="utf-8")
            load_profile(made)
        finally:
            made.unlink(missing_ok=True)

    return through


def a_trace() -> bytes:
    """Of the PyTorch profiler."""
    events = [*kineto.step(1e9), *kineto.step(1e9 + 400, 1, 40.0)]
    return json.dumps({"traceEvents": events, "distributedInfo": {"world_size": 4}}, indent=0).encode()


def a_graph() -> bytes:
    """Of Chakra."""
    messages = [chakra.data(1, b"0.0.4"), *chakra.passes(2)]
    return b"".join(chakra.varint(len(each)) + each for each in messages)


def a_passport() -> bytes:
    records = np.zeros(4, RECORD)
    records["number"] = range(4)
    return json.dumps(asdict(Owner("a", "b", 0, 2))).encode() + b"\n" + records.tobytes()


def a_run() -> str:
    """A job file for `paceline run` that does not depend on where it is."""
    return (ROOT / "examples/run/jobs.toml").read_text().replace("examples/", "./")


Reader = Callable[[Path], None]


def _examples(pattern: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((ROOT / "examples").glob(pattern))]


KINDS: dict[str, tuple[list[bytes], str, Reader]] = {
    "scenario": (
        [data for name in ("quick", "faults", "straggler") for data in _examples(f"simulate/{name}.toml")],
        ".toml",
        begin_scenario,
    ),
    "cluster": ([*_examples("plan/cluster.toml"), *_examples("run/cluster.toml")], ".toml", read_cluster),
    "jobs": (_examples("plan/jobs.toml"), ".toml", plan_jobs),
    "run": ([a_run().encode()], ".toml", lambda path: (load_run_jobs(path, 64), None)[1]),
    "profile": ([PROFILE.encode()], ".toml", plan_profile),
    "drill": (_examples("drills/*.toml"), ".toml", lambda path: (load_drill(path), None)[1]),
    "rules": ([RULES.encode()], ".toml", lambda path: (load_rules(path), None)[1]),
    "csv": (_examples("plan/small-jobs.csv"), ".csv", plan_jobs),
    **{
        form: ([text.encode()], ".json" if form == "philly" else ".csv", trace_reader(form))
        for form, text in TRACES.items()
    },
    "ray": ([RAY.encode()], ".json", write_cluster(lambda text: from_ray(text, "ray"))),
    "slurm": (
        [SLURM.encode()],
        ".txt",
        write_cluster(lambda text: from_slurm(text, TOPOLOGY, "nodes", "topology")),
    ),
    "topology": (
        [TOPOLOGY.encode()],
        ".conf",
        write_cluster(lambda text: from_slurm(SLURM, text, "nodes", "conf")),
    ),
    "nodes": ([NODES.encode()], ".csv", write_cluster(lambda text: from_nodes(text, "nodes"))),
    "kineto": ([a_trace(), gzip.compress(a_trace())], ".json", write_profile(read_kineto)),
    "chakra": ([a_graph()], ".et", write_profile(read_chakra)),
    "passport": ([a_passport()], ".passport", lambda path: (verify(read_run(path)), None)[1]),
}


def spoiled(data: bytes, chance: random.Random) -> bytes:
    """The same with one to three things wrong."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return spoiled_bytes(data, chance)
    if text[:1] in "[{" and chance.random() < 0.6:
        try:
            return json.dumps(spoiled_value(json.loads(text), chance)).encode()
        except ValueError:
            pass
    return spoiled_text(text, chance)


def spoiled_value(value: Any, chance: random.Random) -> Any:
    """One value somewhere inside is another."""
    if chance.random() < 0.15 or not isinstance(value, dict | list) or not value:
        return chance.choice(VALUES)
    changed = value.copy()
    at = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
    if isinstance(value, dict) and chance.random() < 0.1:
        del changed[at]
    else:
        changed[at] = spoiled_value(value[at], chance)
    return changed


def spoiled_bytes(data: bytes, chance: random.Random) -> bytes:
    """Bytes changed, inserted or cut off."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(max(1, len(changed)))
        what = chance.randrange(4)
        if what <= 1 and changed:
            changed[at] = chance.randrange(256)
        elif what == 2:
            changed[at:at] = chance.randbytes(chance.randint(1, 9))
        else:
            del changed[at : at + chance.randint(1, 9)]
    return bytes(changed)


def spoiled_text(text: str, chance: random.Random) -> bytes:
    """A text with numbers, lines and letters changed."""
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
    for number in range(runs):
        path = folder / f"{kind}-{seed}-{number}{suffix}"
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
