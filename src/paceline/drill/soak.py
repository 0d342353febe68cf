"""A soak: two jobs train over one switch for a while under random drills; at the end everything is looked at.

    python -m paceline.drill.soak --minutes 20 --seed 1 --out out/soak

Each job is a few ranks of DDP with a bit passport, over `paceline switch` on loopback. The switch is killed, stopped
and started again at random, sometimes as one that loses packets, and ranks are stopped for a moment. Then the same two
jobs run once more, as many steps, without a switch and undisturbed: the passports must be the same, bit for bit.
Memory, threads and open files of every rank are compared between its beginning and the end, and the switch must hold
no slot and no job when all have left.
"""

import argparse
import json
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.bench.processes import die_with_parent
from paceline.errors import EXIT_FAILED, EXIT_OK
from paceline.live.switch_client import ControlError, ControlPlane
from paceline.passport.verify import read_run, verify
from paceline.ports import free_port

JOBS = ("first", "second")
RANKS = 2
MEMORY_GROWTH_MAX = 1.25
"""Resident memory at the end, over that after the beginning."""
SETTLED_STEPS = 200
"""After so many steps of a job its processes have what they need: what they hold is noted, and drills begin."""
PACE_S = 0.05
"""Of a step under drills, beside its work: a soak does not need a machine of its own."""
LOSS = 0.02
"""Of a switch that loses packets."""
START_S = 900.0
"""Until a switch answers: the first one on a busy machine compiles."""


@dataclass(frozen=True)
class ProcessFigures:
    """What a process holds."""

    memory_mb: float
    threads: int
    files: int


def figures_of(pid: int) -> ProcessFigures | None:
    """Of a process that is there."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        files = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 (a folder of the kernel's)
    except OSError:
        return None
    memory, threads = re.search(r"VmRSS:\s+(\d+)", status), re.search(r"Threads:\s+(\d+)", status)
    if memory is None or threads is None:
        return None
    return ProcessFigures(int(memory[1]) / 1024, int(threads[1]), files)


@dataclass
class SoakReport:
    """What the soak found."""

    seconds: float = 0.0
    drills: dict[str, int] = field(default_factory=dict)
    """How often each thing was done."""
    steps: dict[str, int] = field(default_factory=dict)
    results: int = 0
    """Reductions whose bits were compared."""
    same_bits: bool = False
    difference: str = ""
    before: dict[str, ProcessFigures] = field(default_factory=dict)
    after: dict[str, ProcessFigures] = field(default_factory=dict)
    slots_left: float = -1.0
    jobs_left: float = -1.0
    problems: list[str] = field(default_factory=list)


class SoakError(Exception):
    """The soak could not go on, in one line."""


class Soak:
    """The processes of a soak; `run` does all of it."""

    def __init__(self, out: Path, minutes: float, seed: int, pace_s: float = PACE_S) -> None:
        self.out, self._seconds, self._random = out, 60 * minutes, random.Random(seed)
        self._pace_s = pace_s
        self._port, self._env = free_port(after=1), dict(os.environ)
        self._token = out / "token"
        self._switch: subprocess.Popen[bytes] | None = None
        self.report = SoakReport()

    def run(self) -> SoakReport:
        """Train under drills, train again undisturbed, compare."""
        self.out.mkdir(parents=True, exist_ok=True)
        self._token.touch(mode=0o600)
        self._token.write_text(secrets.token_hex(16), encoding="utf-8")
        ranks: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self._start_switch()
            self._await_switch()
            for job in JOBS:
                ranks |= self._start_job(
                    job, "struck", {"PACELINE_SWITCH": f"127.0.0.1:{self._port}"}, self._pace_s
                )
            self._settle(ranks)
            self._disturb(ranks)
            self._end_jobs(ranks, "struck")
            self._look_at_switch()
        finally:
            self._stop(ranks)
        self._train_again()
        self._judge()
        return self.report

    # --- processes -------------------------------------------------------------------------------------------

    def _start_switch(self, drop: float = 0.0) -> None:
        command = [sys.executable, "-c", "from paceline.cli import main; main()", "switch"]
        command += [
            "--listen",
            f"127.0.0.1:{self._port}",
            "--token-file",
            str(self._token),
            "--memory",
            "1MiB",
            *(["--drop", str(drop), "--seed", "1"] if drop else []),
        ]
        with (self.out / "switch.log").open("ab") as log:
            self._switch = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, preexec_fn=die_with_parent
            )

    @property
    def _control(self) -> ControlPlane:
        return ControlPlane("127.0.0.1", self._port, self._token.read_text(encoding="utf-8"), 5.0)

    def _await_switch(self, limit_s: float = START_S) -> None:
        until = time.monotonic() + limit_s
        while True:
            try:
                self._control.text("/healthz")
                return
            except ControlError as error:
                if time.monotonic() > until:
                    raise SoakError(f"no switch: {error.reason}; its log is in {self.out}") from None
                time.sleep(0.2)

    def _start_job(
        self, job: str, name: str, env: dict[str, str], pace_s: float
    ) -> dict[str, subprocess.Popen[bytes]]:
        folder = self.out / name
        folder.mkdir(exist_ok=True)
        port = free_port()
        found = {}
        for rank in range(RANKS):
            own = {
                "RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
                "LOCAL_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
                "PACELINE_HOST_REDUCE": "0",
                "PACELINE_JOB": job,
                "PACELINE_TOKEN_FILE": str(self._token),
                "PACELINE_PASSPORT": str(folder / "bits"),
                **env,
            }
            command = [sys.executable, "-m", "paceline.drill.soak_rank"]
            command += [str(folder / f"{job}.steps"), job, str(pace_s)]
            with (folder / f"{job}-{rank}.log").open("wb") as log:
                found[f"{job} rank {rank}"] = subprocess.Popen(
                    command,
                    env={**self._env, **own},
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
        return found

    def _stop(self, ranks: dict[str, subprocess.Popen[bytes]]) -> None:
        for process in [*ranks.values(), *([self._switch] if self._switch else [])]:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(30)

    # --- what happens ----------------------------------------------------------------------------------------

    def _settle(self, ranks: dict[str, subprocess.Popen[bytes]]) -> None:
        """Wait until all have begun, and note what they hold."""
        until = time.monotonic() + START_S
        while any(self._done("struck", job) < SETTLED_STEPS for job in JOBS):
            self._check_alive(ranks)
            if time.monotonic() > until:
                raise SoakError(f"a job did not reach {SETTLED_STEPS} steps; its log is in {self.out}")
            time.sleep(0.2)
        self._note(ranks, self.report.before)

    def _disturb(self, ranks: dict[str, subprocess.Popen[bytes]]) -> None:
        begun = time.monotonic()
        while time.monotonic() - begun < self._seconds:
            self._one_drill(ranks)
            self._check_alive(ranks)
        self._note(ranks, self.report.after)
        self.report.seconds = time.monotonic() - begun

    def _one_drill(self, ranks: dict[str, subprocess.Popen[bytes]]) -> None:
        draw = self._random
        time.sleep(draw.uniform(1.0, 6.0))
        action = draw.choice(["kill switch", "lossy switch", "stop switch", "stop rank", "nothing"])
        self.report.drills[action] = self.report.drills.get(action, 0) + 1
        assert self._switch is not None
        if action in ("kill switch", "lossy switch"):
            self._switch.kill()
            self._switch.wait(30)
            time.sleep(draw.uniform(0.0, 4.0))
            self._start_switch(LOSS if action == "lossy switch" else 0.0)
            self._await_switch()
        elif action in ("stop switch", "stop rank"):
            struck = self._switch if action == "stop switch" else draw.choice(list(ranks.values()))
            struck.send_signal(signal.SIGSTOP)
            time.sleep(draw.uniform(0.1, 3.0))
            struck.send_signal(signal.SIGCONT)

    def _done(self, name: str, job: str) -> int:
        """Steps, as its first rank wrote them last."""
        try:
            return int((self.out / name / f"{job}.steps.done").read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):  # it has not begun, or writes just now
            return 0

    def _check_alive(self, ranks: dict[str, subprocess.Popen[bytes]]) -> None:
        for name, process in ranks.items():
            if process.poll() is not None:
                raise SoakError(f"{name} ended with {process.returncode}; its log is in {self.out}")

    def _note(self, ranks: dict[str, subprocess.Popen[bytes]], where: dict[str, ProcessFigures]) -> None:
        processes = {**ranks, **({"switch": self._switch} if self._switch else {})}
        for name, process in processes.items():
            found = figures_of(process.pid)
            if found is not None:
                where[name] = found

    def _end_jobs(self, ranks: dict[str, subprocess.Popen[bytes]], name: str) -> None:
        """Tell the jobs how many steps there are: a little more than they have done."""
        for job in JOBS:
            (self.out / name / f"{job}.steps").write_text(str(self._done(name, job) + 200), encoding="ascii")
        for rank, process in ranks.items():
            code = process.wait(300)
            if code != 0:
                self.report.problems.append(f"{rank} ended with {code}")
        for job in JOBS:
            self.report.steps[job] = self._done(name, job)

    def _look_at_switch(self) -> None:
        time.sleep(2.0)
        text = self._control.text("/metrics")
        self.report.jobs_left = _total(text, "paceline_jobs")
        self.report.slots_left = _total(text, "paceline_slots_used")

    def _train_again(self) -> None:
        ranks: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for job in JOBS:
                folder = self.out / "plain"
                folder.mkdir(exist_ok=True)
                (folder / f"{job}.steps").write_text(str(self.report.steps[job]), encoding="ascii")
                ranks |= self._start_job(job, "plain", {}, 0.0)
            for rank, process in ranks.items():
                code = process.wait(max(600.0, 3 * self._seconds))
                if code != 0:
                    self.report.problems.append(f"{rank}, undisturbed, ended with {code}")
        finally:
            self._stop(ranks)

    def _judge(self) -> None:
        verdict = verify(read_run(self.out / "struck"), read_run(self.out / "plain"))
        report = self.report
        report.same_bits, report.results = verdict.same, verdict.reductions
        if verdict.differences:
            report.difference = verdict.differences[0].what
            report.problems.append(f"other bits: {report.difference}")
        for name, after in report.after.items():
            before = report.before.get(name)
            if before is None or name == "switch":
                continue  # the switch is another process each time
            if after.memory_mb > before.memory_mb * MEMORY_GROWTH_MAX:
                report.problems.append(f"{name} grew from {before.memory_mb:.0f} to {after.memory_mb:.0f} MB")
            if after.threads > before.threads + 4 or after.files > before.files + 8:
                report.problems.append(
                    f"{name} has {after.threads} threads and {after.files} files, had {before}"
                )
        if report.jobs_left or report.slots_left:
            report.problems.append(f"the switch holds {report.jobs_left:g} jobs, {report.slots_left:g} slots")


def _total(text: str, metric: str) -> float:
    """The sum of a metric over its labels."""
    found = re.findall(rf"^{metric}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    return sum(float(value) for value in found)


def main(arguments: list[str]) -> int:
    """Run; the report as JSON, and an exit code."""
    parser = argparse.ArgumentParser(prog="python -m paceline.drill.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--pace", type=float, default=PACE_S, help="seconds that a step waits, beside its work"
    )
    parser.add_argument("--out", type=Path, default=Path("out/soak"))
    given: Any = parser.parse_args(arguments)
    soak = Soak(given.out, given.minutes, given.seed, given.pace)
    try:
        report = soak.run()
    except SoakError as error:
        print(f"soak: {error}", file=sys.stderr)
        return EXIT_FAILED
    text = json.dumps(asdict(report), indent=1)
    (given.out / "report.json").write_text(text + "\n", encoding="utf-8")
    print(text)
    return EXIT_FAILED if report.problems else EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
