"""A profile held against limited links: `paceline profile` of `examples/train_ddp.py`, then the same script live.

    python -m benchmarks.profile                           100 and 200 Mbit/s, Gloo and the switch (root; a few minutes)
    python -m benchmarks.profile --hidden 1024 --rates 100

The script is profiled with 4 ranks on this machine, over Gloo on loopback. The simulator gets that profile, links and
the live agent's and switch's constants (those of `benchmarks.ring` and `benchmarks.sharing`), and predicts a step; then
the script runs in four namespaces on such links. A row is the median of the steps after the first few.
"""

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import ring, sharing_simulated
from benchmarks.sharing_run import HOSTS, Setting, rank_environment, start_switches
from paceline.bench.processes import ChildError, Children
from paceline.emulation import namespaces
from paceline.models.profile import load_profile
from paceline.schedule.inputs.jobs import BUCKET_BYTES
from paceline.sim.run import simulate
from paceline.sim.scenario import Scenario, ScenarioJob

SCRIPT = Path(__file__).parents[1] / "examples" / "train_ddp.py"
SKIPPED = 4
"""Steps that are not counted: DDP builds its buckets anew, windows open."""
_TIMEOUT_S = 240.0
_MBIT = 1e6
_SEEDS = (1, 2, 3)


def measure_profile(folder: Path, hidden: int) -> Path:
    """What `paceline profile` writes of the script, on this machine."""
    out = folder / f"ddp-{hidden}.toml"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(HOSTS)]
    script = [str(SCRIPT), "--backend", "gloo", "--hidden", str(hidden), "--steps", "40"]
    command = [sys.executable, "-c", "from paceline.cli import main; main()", "profile", "--out", str(out)]
    subprocess.run(
        [*command, "--", *torchrun, *script], check=True, timeout=_TIMEOUT_S, stdout=subprocess.DEVNULL
    )
    return out


def live_step_s(backend: str, rate_bps: float, hidden: int, steps: int) -> float:
    """Seconds a step of the script itself, in namespaces with limited links."""
    setting = Setting(1, rate_bps, kind="ddp", backend=backend)
    with namespaces.star(HOSTS, rate_bps) as star, Children() as children:
        folder = children.folder / "meeting"
        folder.mkdir()
        token = secrets.token_hex(16)
        try:
            switches = start_switches(setting, star, children, folder, token) if backend == "paceline" else []
            command = [sys.executable, str(SCRIPT), "--backend", backend, "--hidden", str(hidden)]
            command += ["--steps", str(steps), "--json"]
            told = None
            for rank in range(HOSTS):
                environment = {**os.environ, **rank_environment(star, rank, 0, switches, token)}
                inside = namespaces.inside(star.workers[rank], command)
                pipe = children.start(f"rank-{rank}", inside, environment, pipe=rank == 0)
                told = told or pipe
            for rank in range(HOSTS):
                children.wait(f"rank-{rank}", _TIMEOUT_S)
            assert told is not None
            ends = json.loads(told.read())["ends"]
        finally:
            children.end()
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
    return float(statistics.median(b - a for a, b in zip(ends[SKIPPED:], ends[SKIPPED + 1 :], strict=False)))


def scenario_of(profile: Path, backend: str, rate_bps: float, steps: int) -> Scenario:
    """The script on such links; its layers, times and buckets are the profile's."""
    setting = Setting(1, rate_bps, steps=steps)
    like = ring.scenario_of(setting) if backend == "gloo" else sharing_simulated.scenario_of(setting)
    job = ScenarioJob(
        name="ddp",
        profile=str(profile),
        workers=HOSTS,
        hosts=list(range(HOSTS)),
        iterations=steps,
        overlap="ddp",
    )
    transport = like.transport.model_copy(update={"bucket": load_profile(profile).bucket or BUCKET_BYTES})
    # All servers are this machine.
    hosts = like.hosts.model_copy(update={"cores": len(os.sched_getaffinity(0))})
    return like.model_copy(update={"job": [job], "transport": transport, "hosts": hosts})


def simulated_step_s(profile: Path, backend: str, rate_bps: float, steps: int) -> float:
    """Seconds a step by packets, mean over seeds."""
    policy = "ring" if backend == "gloo" else Setting().policy
    found = []
    for seed in _SEEDS:
        result = simulate(scenario_of(profile, backend, rate_bps, steps), policy, seed=seed)
        if result.avg_jct_s is None:
            raise RuntimeError(f"the simulation did not end: {result.failed}")
        found.append(result.avg_jct_s / steps)
    return statistics.mean(found)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", default="100,200", help="Mbit/s, separated by commas")
    parser.add_argument("--hidden", default="128,512", help="widths of the model, separated by commas")
    parser.add_argument("--backends", default="gloo,paceline")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="one JSON object a row")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="paceline-profile-") as name:
        for hidden in (int(each) for each in options.hidden.split(",")):
            profile = measure_profile(Path(name), hidden)
            seen = load_profile(profile)
            print(
                f"hidden {hidden}: {seen.gradient / 1e6:.3g} MB, forward {1e3 * seen.forward:.2f} ms, "
                f"backward {1e3 * seen.backward:.2f} ms, jitter {seen.jitter:.0%}",
                file=sys.stderr,
            )
            for backend in options.backends.split(","):
                for rate in (_MBIT * float(each) for each in options.rates.split(",")):
                    try:
                        live_s = live_step_s(backend, rate, hidden, options.steps)
                    except ChildError as error:
                        sys.exit(f"{backend}: {error}")
                    predicted_s = simulated_step_s(profile, backend, rate, options.steps)
                    row = {"hidden": hidden, "backend": backend, "mbit": rate / _MBIT, "live_ms": 1e3 * live_s,
                           "predicted_ms": 1e3 * predicted_s, "error": predicted_s / live_s - 1}  # fmt: skip
                    print(json.dumps(row) if options.json else _line(row), flush=True)


def _line(row: dict[str, float | str]) -> str:
    return (
        f"hidden {row['hidden']:5} {row['backend']:9s} {row['mbit']:5.0f} Mbit/s  live {row['live_ms']:8.2f} ms"
        f"  predicted {row['predicted_ms']:8.2f} ms  {row['error']:+.1%}"
    )


if __name__ == "__main__":
    main()
