"""A profile held against limited links: `paceline profile` of `examples/train_ddp.py`, then the same script live.

    python -m benchmarks.profile                           100 and 200 Mbit/s, Gloo and the switch (root; a few minutes)
    python -m benchmarks.profile --hidden 1024 --rates 100 --ranks 3
    python -m benchmarks.profile --rounds 3                where other work comes and goes, and steps are short

The script is profiled on this machine (`--switch`: over Gloo on loopback, then over a switch there). The simulator gets
that profile, links and the live agent's and switch's constants (those of `benchmarks.ring` and `benchmarks.sharing`),
and predicts a step; then the script runs in namespaces on such links. A row is the mean of the steps after the first
few. All ranks and the switch share this machine's processors, in the profile, live and in the simulator.
"""

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import ring, sharing_simulated
from benchmarks.sharing_run import HOSTS, Setting, rank_environment, start_switches
from paceline.bench.processes import ChildError, Children
from paceline.emulation import namespaces
from paceline.emulation.namespaces import BURST_BYTES
from paceline.models.profile import load_profile
from paceline.schedule.inputs.jobs import BUCKET_BYTES
from paceline.sim.run import simulate
from paceline.sim.scenario import Scenario, ScenarioJob

SCRIPT = Path(__file__).parents[1] / "examples" / "train_ddp.py"
SKIPPED = 4
"""Steps that are not counted: DDP builds its buckets anew, windows open."""
MEASURED_S = 6.0
"""So long steps are measured, live and in the profile: what else the machine does comes and goes by seconds."""
STEPS_MIN, STEPS_MAX = 40, 1200
SIMULATED_STEPS = 20
_TIMEOUT_S = 300.0
_MBIT = 1e6
_SEEDS = (1, 2, 3)


class Cell(NamedTuple):
    """A width on a link."""

    hidden: int
    ranks: int
    backend: str
    mbit: float


def measure_profile(folder: Path, hidden: int, ranks: int, steps: int) -> Path:
    """What `paceline profile` writes of the script, on this machine."""
    out = folder / f"ddp-{hidden}.toml"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    script = [str(SCRIPT), "--backend", "gloo", "--hidden", str(hidden), "--steps", str(steps + 2 * SKIPPED)]
    command = [sys.executable, "-c", "from paceline.cli import main; main()", "profile", "--switch"]
    command += ["--steps", str(steps), "--out", str(out)]
    subprocess.run(
        [*command, "--", *torchrun, *script], check=True, timeout=_TIMEOUT_S, stdout=subprocess.DEVNULL
    )
    return out


def live_step_s(backend: str, rate_bps: float, hidden: int, ranks: int, steps: int) -> float:
    """Seconds a step of the script itself, in namespaces with limited links."""
    setting = Setting(1, rate_bps, kind="ddp", backend=backend)
    with namespaces.star(ranks, rate_bps) as star, Children() as children:
        folder = children.folder / "meeting"
        folder.mkdir()
        token = secrets.token_hex(16)
        try:
            switches = start_switches(setting, star, children, folder, token) if backend == "paceline" else []
            command = [sys.executable, str(SCRIPT), "--backend", backend, "--hidden", str(hidden)]
            command += ["--steps", str(steps + SKIPPED), "--json"]
            told = None
            for rank in range(ranks):
                environment = {**os.environ, **rank_environment(star, rank, 0, switches, token)}
                environment["WORLD_SIZE"] = str(ranks)
                inside = namespaces.inside(star.workers[rank], command)
                pipe = children.start(f"rank-{rank}", inside, environment, pipe=rank == 0)
                told = told or pipe
            for rank in range(ranks):
                children.wait(f"rank-{rank}", _TIMEOUT_S)
            assert told is not None
            ends = json.loads(told.read())["ends"]
        finally:
            children.end()
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
    return float(ends[-1] - ends[SKIPPED]) / (len(ends) - 1 - SKIPPED)


def scenario_of(profile: Path, backend: str, rate_bps: float, ranks: int, steps: int) -> Scenario:
    """The script on such links; its layers, times, buckets and overheads are the profile's."""
    setting = Setting(1, rate_bps, steps=steps)
    like = ring.scenario_of(setting) if backend == "gloo" else sharing_simulated.scenario_of(setting)
    job = ScenarioJob(
        name="ddp",
        profile=str(profile),
        workers=ranks,
        hosts=list(range(ranks)),
        iterations=steps,
        overlap="ddp",
    )
    # A gradient that fits into the links' token buckets is not limited by them.
    network = like.network.model_copy(update={"hosts": ranks, "burst": BURST_BYTES})
    transport = like.transport.model_copy(update={"bucket": load_profile(profile).bucket or BUCKET_BYTES})
    # All servers are this machine.
    hosts = like.hosts.model_copy(update={"cores": len(os.sched_getaffinity(0))})
    changed = {"job": [job], "network": network, "transport": transport, "hosts": hosts}
    return like.model_copy(update=changed)


def simulated_step_s(profile: Path, backend: str, rate_bps: float, ranks: int) -> float:
    """Seconds a step by packets, mean over seeds."""
    policy = "ring" if backend == "gloo" else Setting().policy
    scenario = scenario_of(profile, backend, rate_bps, ranks, SIMULATED_STEPS)
    found = []
    for seed in _SEEDS:
        result = simulate(scenario, policy, seed=seed)
        if result.avg_jct_s is None:
            raise RuntimeError(f"the simulation did not end: {result.failed}")
        found.append(result.avg_jct_s / SIMULATED_STEPS)
    return statistics.mean(found)


def _steps_for(step_s: float) -> int:
    return round(min(STEPS_MAX, max(STEPS_MIN, MEASURED_S / step_s)))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", default="100,200", help="Mbit/s, separated by commas")
    parser.add_argument("--hidden", default="128,512", help="widths of the model, separated by commas")
    parser.add_argument("--backends", default="gloo,paceline")
    parser.add_argument("--ranks", type=int, default=HOSTS)
    parser.add_argument("--steps", type=int, default=600, help="that the profile sees")
    parser.add_argument(
        "--rounds", type=int, default=1, help="profile and run all so often; means at the end"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the profiles are kept")
    parser.add_argument("--json", action="store_true", help="one JSON object a row")
    options = parser.parse_args(arguments)
    rows: dict[Cell, list[tuple[float, float]]] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="paceline-profile-") as name:
            for _ in range(options.rounds):
                for cell, live_s, predicted_s in _round(options, options.keep or Path(name)):
                    rows.setdefault(cell, []).append((live_s, predicted_s))
                    _tell(cell, rows[cell][-1:], options.json)
    except ChildError as error:
        sys.exit(str(error))
    if options.rounds > 1:
        print(f"# means of {options.rounds} rounds", flush=True)
        for cell, pairs in rows.items():
            _tell(cell, pairs, options.json)


def _round(options: argparse.Namespace, folder: Path) -> Iterator[tuple[Cell, float, float]]:
    """Each width profiled and run on each link: live and predicted seconds a step."""
    for hidden in (int(each) for each in options.hidden.split(",")):
        profile = measure_profile(folder, hidden, options.ranks, options.steps)
        seen = load_profile(profile)
        print(
            f"hidden {hidden}: {seen.gradient / 1e6:.3g} MB, forward {1e3 * seen.forward:.2f} ms, "
            f"backward {1e3 * seen.backward:.2f} ms, jitter {seen.jitter:.0%}, no limit: "
            + ", ".join(f"{each.name} {1e3 * each.step:.2f} ms" for each in seen.exchange),
            file=sys.stderr,
        )
        for backend in options.backends.split(","):
            for mbit in (float(each) for each in options.rates.split(",")):
                predicted_s = simulated_step_s(profile, backend, _MBIT * mbit, options.ranks)
                steps = _steps_for(predicted_s)
                live_s = live_step_s(backend, _MBIT * mbit, hidden, options.ranks, steps)
                yield Cell(hidden, options.ranks, backend, mbit), live_s, predicted_s


def _tell(cell: Cell, pairs: Sequence[tuple[float, float]], as_json: bool) -> None:
    live_s, predicted_s = (statistics.mean(column) for column in zip(*pairs, strict=True))
    error = predicted_s / live_s - 1
    if as_json:
        row = {**cell._asdict(), "rounds": len(pairs), "live_ms": 1e3 * live_s, "predicted_ms": 1e3 * predicted_s,
               "error": error}  # fmt: skip
        print(json.dumps(row), flush=True)
        return
    print(
        f"hidden {cell.hidden:5} x{cell.ranks} {cell.backend:9s} {cell.mbit:5.0f} Mbit/s  live {1e3 * live_s:8.2f} ms"
        f"  predicted {1e3 * predicted_s:8.2f} ms  {error:+.1%}",
        flush=True,
    )


if __name__ == "__main__":
    main()
