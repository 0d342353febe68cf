"""torch's own distributed tests, from its wheel, over Gloo and over Paceline in one run, side by side.

    python -m tests.torch.conformance [--only WORDS] [--paths host,switch,faults] [--ranks 4]

`make conformance` runs all of them: with Gloo; in shared memory; through a switch; through a switch that loses,
doubles and reorders packets. The tests take the backend for Gloo, so that none is left out by its name. A test that
passes over Gloo must pass over every path, but for those in `EXPECTED`, each with its reason. The processes of a world
run test after test, each in a group of its own; a test that does not end costs its world, and a new one goes on.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

from paceline.ports import free_port

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0
"""Of one test."""
GROUP_S = 40.0
"""Of a collective: less, so that a test that waits in vain ends by itself."""

PATHS: dict[str, dict[str, str]] = {
    "gloo": {},
    "host": {},
    "switch": {"PACELINE_HOST_REDUCE": "0"},
    "faults": {"PACELINE_HOST_REDUCE": "0"},
}
FAULTS = ["--drop", "0.01", "--duplicate", "0.01", "--reorder", "0.01"]

EXPECTED: dict[str, str] = {
    "test_monitored_barrier_": "torch.distributed.monitored_barrier asks for the name gloo; the group's own is tested",
    "test_get_backend": "the name is paceline",
    "test_ddp_has_finalized": "is made to crash a process",
}
"""How a test's name begins, and why it may fail over Paceline."""


# --- a rank ----------------------------------------------------------------------------------------------------


def run_rank(folder: Path, backend: str, names: list[str]) -> None:
    """Run these tests, and write down after each how it went on this rank."""
    import torch.distributed as dist
    from torch.testing._internal.distributed import distributed_test

    import paceline.torch  # noqa: F401

    class Case(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # type: ignore
        def setUp(self) -> None:
            pass

        def tearDown(self) -> None:
            pass

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port = int(os.environ["MASTER_PORT"])
    meeting = dist.TCPStore("127.0.0.1", port, size, rank == 0, timedelta(seconds=LIMIT_S))
    with (folder / f"told-{rank}").open("a") as told:
        for name in names:
            own = folder / name
            for part in ("barrier", "test_dir", "init_dir"):
                (own / part).mkdir(parents=True, exist_ok=True)
            os.environ["TEMP_DIR"] = str(own)
            distributed_test.Barrier.barrier_id = 0
            case = Case(name)
            case.rank, case.file_name = rank, str(own / "file")
            dist.init_process_group(
                backend,
                store=dist.PrefixStore(name, meeting),
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=GROUP_S),
            )
            state = _state(case, name)
            told.write(json.dumps([name, *state]) + "\n")
            told.flush()
            # Nobody goes on before all have ended this one.
            meeting.add(f"ended {name}", 1)
            while int(meeting.add(f"ended {name}", 0)) < size:
                time.sleep(0.002)
            if dist.is_initialized():
                dist.destroy_process_group()


def _state(case: Any, name: str) -> tuple[str, str]:
    from torch.testing._internal.common_utils import SEED, set_rng_seed

    set_rng_seed(SEED)  # as torch's own setUp does: some tests compare random tensors of different ranks
    try:
        getattr(case, name)()
    except unittest.SkipTest as reason:
        return "skip", str(reason)
    except SystemExit as end:
        return ("pass" if end.code == 0 else "skip"), f"exit code {end.code}"
    except BaseException:
        return "fail", traceback.format_exc()[-1500:]
    return "pass", ""


# --- a path ----------------------------------------------------------------------------------------------------


def run_path(path: str, names: list[str], ranks: int, folder: Path) -> dict[str, tuple[str, str]]:
    """How each test ends over this path: pass, skip, fail or hang, and why."""
    results: dict[str, tuple[str, str]] = {}
    with ExitStack() as stack:
        env = dict(PATHS[path])
        if path in ("switch", "faults"):
            from tests.torch.test_switch import Switch

            # A first start compiles for longer than a test may take.
            subprocess.run([sys.executable, "-m", "paceline.launch.warm"], cwd=ROOT, check=True, timeout=1200)
            switch = stack.enter_context(Switch(folder, *(FAULTS if path == "faults" else []), compiled=True))
            env["PACELINE_SWITCH"] = switch.address
        world = 0
        while left := [name for name in names if name not in results]:
            world += 1
            part = folder / f"world-{world}"
            part.mkdir()
            results |= _run_world("gloo" if path == "gloo" else "paceline", left, ranks, part, env)
    return results


def _run_world(
    backend: str, names: list[str], ranks: int, folder: Path, env: dict[str, str]
) -> dict[str, tuple[str, str]]:
    """Until all is done, or one test does not end."""
    (folder / "names").write_text("\n".join(names))
    shared = {
        **{
            key: value
            for key, value in os.environ.items()
            if not key.startswith("PACELINE_") or "CACHE" in key
        },
        **env,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
        "BACKEND": "gloo",
        "TEMP_DIR": str(folder),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    command = [sys.executable, "-m", "tests.torch.conformance", "--rank", str(folder), backend]
    processes = []
    for rank in range(ranks):
        with (folder / f"log-{rank}").open("wb") as log:
            more = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(
                subprocess.Popen(command, cwd=ROOT, env={**shared, **more}, stdout=log, stderr=log)
            )
    done, since = 0, time.monotonic()
    try:
        while any(process.poll() is None for process in processes):
            told = _told(folder, ranks)
            if len(told) != done:
                done, since = len(told), time.monotonic()
            broken = any(process.poll() not in (None, 0) for process in processes)
            if broken or time.monotonic() - since > LIMIT_S:
                break
            time.sleep(0.1)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
    told = _told(folder, ranks)
    if len(told) < len(names):
        stopped = next(name for name in names if name not in told)
        logs = [(folder / f"log-{rank}").read_text(errors="replace")[-600:] for rank in range(ranks)]
        codes = [process.returncode for process in processes]
        told[stopped] = ("hang", f"{_parts(folder, ranks, stopped)} codes {codes}\n" + "\n".join(logs))
    return told


def _told(folder: Path, ranks: int) -> dict[str, tuple[str, str]]:
    """What all ranks have told; one failure fails a test, one skip skips it."""
    whole: dict[str, list[tuple[str, str]]] = {}
    for rank in range(ranks):
        path = folder / f"told-{rank}"
        for line in path.read_text().splitlines() if path.exists() else []:
            name, state, reason = json.loads(line)
            whole.setdefault(name, []).append((state, reason))
    return {
        name: min(states, key=lambda told: ("fail", "skip", "pass").index(told[0]))
        for name, states in whole.items()
        if len(states) == ranks
    }


def _parts(folder: Path, ranks: int, name: str) -> list[str]:
    """How a test went on the ranks on which it ended."""
    told = []
    for rank in range(ranks):
        path = folder / f"told-{rank}"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        told += [f"rank {rank}: {state} {reason}" for test, state, reason in lines if test == name]
    return told


# --- all -------------------------------------------------------------------------------------------------------


def all_names(words: list[str]) -> list[str]:
    """The tests that ship with torch, or those with one of these words in their names."""
    os.environ.setdefault("BACKEND", "gloo")
    os.environ.setdefault("WORLD_SIZE", "3")
    os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())
    from torch.testing._internal.distributed import distributed_test

    names = [n for n in dir(distributed_test.DistributedTest._DistTestBase) if n.startswith("test_")]
    return [name for name in names if not words or any(word in name for word in words)]


def compare(names: list[str], paths: list[str], ranks: int, folder: Path) -> list[str]:
    """Run everything; the tests that pass over Gloo and not over a path, with why."""
    results = {}
    for path in ["gloo", *paths]:
        (folder / path).mkdir()
        begin = time.monotonic()
        results[path] = run_path(path, names, ranks, folder / path)
        states = [state for state, _ in results[path].values()]
        counts = ", ".join(f"{states.count(state)} {state}" for state in ("pass", "skip", "fail", "hang"))
        print(f"{path:7} {counts} in {time.monotonic() - begin:.0f} s", flush=True)
    worse = []
    for name in names:
        if results["gloo"][name][0] != "pass":
            continue
        for path in paths:
            state, reason = results[path][name]
            if state == "pass":
                continue
            allowed = next((why for start, why in EXPECTED.items() if name.startswith(start)), "")
            if allowed:
                print(f"{name} over {path}: {state}, as expected: {allowed}")
            else:
                worse.append(f"{name} over {path}: {state}\n{reason}")
    return worse


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="words in the names of tests, with commas")
    parser.add_argument("--paths", default="host,switch,faults")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rank", nargs=2, metavar=("FOLDER", "BACKEND"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        folder = Path(given.rank[0])
        run_rank(folder, given.rank[1], (folder / "names").read_text().split())
        return 0
    folder = Path(tempfile.mkdtemp(prefix="paceline-conformance-"))
    names = all_names([word for word in given.only.split(",") if word])
    worse = compare(names, given.paths.split(","), given.ranks, folder)
    print("\n".join(worse) or "nothing that passes over Gloo fails over Paceline")
    shutil.rmtree(folder, ignore_errors=True)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
