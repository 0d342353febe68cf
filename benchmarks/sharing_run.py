"""One row of `benchmarks.sharing`: namespaces, switches and the processes of all jobs; what they saw."""

import contextlib
import json
import os
import resource
import secrets
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.sharing_rank import BUCKETS
from paceline.bench.processes import ChildError, Children
from paceline.core.switch.memory import AGGREGATOR
from paceline.emulation import namespaces
from paceline.live.net.sockets import elements_for
from paceline.live.switch_client import ControlError, ControlPlane
from paceline.units import parse_size_bytes

HOSTS = 4
MTU = 1500
_PORT = 7077
_START_S = 400.0
_CLOCK_HZ = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Setting:
    """What is measured."""

    jobs: int = 2
    rate_bps: float = 200e6
    memory: str = "4MiB"
    policy: str = "esa-plus"
    loss: float = 0.0
    kind: str = "agents"
    backend: str = "paceline"
    racks: int = 1
    steps: int = 8
    compute_s: float = 0.3
    timeout_s: float = 120.0

    @property
    def name(self) -> str:
        jobs = "1 job" if self.jobs == 1 else f"{self.jobs} jobs"
        rate = (
            f"{self.rate_bps / 1e9:g} Gbit/s" if self.rate_bps >= 1e9 else f"{self.rate_bps / 1e6:g} Mbit/s"
        )
        loss = f", {self.loss:.1%} loss" if self.loss else ""
        racks = f", {self.racks} racks" if self.racks > 1 else ""
        return f"{jobs}, {rate}, {self.memory}, {self.policy}, {self.kind}{loss}{racks}"

    @property
    def gradient_bytes(self) -> int:
        return sum(BUCKETS)

    @property
    def slots(self) -> int:
        """Aggregators of the switch, or of each switch."""
        return parse_size_bytes(self.memory) // (4 * elements_for(MTU) + AGGREGATOR.itemsize)

    @property
    def pool(self) -> int | None:
        """SwitchML: places of a job, an equal part for each; nothing under other policies."""
        return self.slots // 2 // self.jobs if self.policy == "switchml" else None

    def like_gloo(self) -> "Setting":
        """The same jobs over Gloo, which has no switch; its processes have a model where ours have one."""
        kind = "ddp" if self.kind == "ddp" else "gloo"
        return replace(self, memory="", policy="gloo", loss=0.0, kind=kind, backend="gloo", racks=1)


@dataclass(frozen=True)
class Measured:
    """Seconds of each step by job, and what else was seen."""

    steps: list[list[float]]
    wrong: int
    fallback: float
    cores: float
    left: int = 0
    """How often an agent changed its path: it left the switch, or came back."""
    first: list[float] = field(default_factory=list)
    """Seconds of each job's first reduction, before the clock runs and while jobs come one after another."""


def measure(setting: Setting) -> Measured:
    """Run it; `ChildError` where a process fails or does not end in time."""
    with namespaces.star(HOSTS, setting.rate_bps) as star, Children() as children:
        folder = children.folder / "meeting"
        folder.mkdir()
        try:
            return _run(setting, star, children, folder)
        finally:
            children.end()
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()


def _run(setting: Setting, star: namespaces.Star, children: Children, folder: Path) -> Measured:
    token = secrets.token_hex(16)
    switches = start_switches(setting, star, children, folder, token) if setting.backend == "paceline" else []
    racks = [host * setting.racks // HOSTS for host in range(HOSTS)]
    names = []
    common = {
        "folder": str(folder),
        "token": token,
        "switch": switches,
        "racks": racks,
        "addresses": [star.address(host) for host in range(HOSTS)],
        "workers": HOSTS,
        "steps": setting.steps,
        "compute_s": setting.compute_s,
        "timeout_s": setting.timeout_s,
        "jobs": setting.jobs,
        "kind": setting.kind,
        "backend": setting.backend,
        "slots_max": setting.pool,
    }
    for worker in range(HOSTS):
        for job in range(1 if setting.kind == "agents" else setting.jobs):
            name = f"{job}-{worker}"
            names.append(name)
            spec = {**common, "worker": worker, "rack": racks[worker], "job": job, "name": name}
            (folder / f"spec-{name}").write_text(json.dumps(spec), encoding="utf-8")
            command = [sys.executable, "-m", "benchmarks.sharing_rank", str(folder / f"spec-{name}")]
            environment = {**os.environ, **rank_environment(star, worker, job, switches, token)}
            children.start(name, namespaces.inside(star.workers[worker], command), environment)
    _await(children, folder, [f"ready{j}-{w}" for j in range(setting.jobs) for w in range(HOSTS)], _START_S)
    (folder / "go").touch()
    began, busy_s = time.monotonic(), _busy_s(children)
    _await(
        children,
        folder,
        [f"done{j}-{w}" for j in range(setting.jobs) for w in range(HOSTS)],
        setting.timeout_s,
    )
    cores = (_busy_s(children) - busy_s) / (time.monotonic() - began)
    _await(children, folder, [f"result-{name}" for name in names], 60.0)
    results = [result for name in names for result in json.loads((folder / f"result-{name}").read_text())]
    return _measured(setting, results, cores)


def _measured(setting: Setting, results: list[dict[str, Any]], cores: float) -> Measured:
    steps = []
    wrong = sum(result["wrong"] for result in results)
    for job in range(setting.jobs):
        of_job = [result for result in results if result["job"] == job]
        steps.append(of_job[0]["took"])
        if len({result.get("bits") for result in of_job}) != 1:
            wrong += 1
    counters = [result["counters"] for result in results if "counters" in result]
    got = sum(each["results"] for each in counters)
    fallback = sum(each["fallbacks"] for each in counters) / max(1, got)
    left = sum(each["path_changes"] for each in counters)
    first = [
        max((r["first_s"] for r in results if r["job"] == job and "first_s" in r), default=0.0)
        for job in range(setting.jobs)
    ]
    return Measured(steps, wrong, fallback, cores, left, first)


def start_switches(
    setting: Setting, star: namespaces.Star, children: Children, folder: Path, token: str
) -> list[str]:
    """One switch at the hub; or one for each rack, under an upper one. Where workers find them."""
    (folder / "token").write_text(token, encoding="utf-8")
    (folder / "token").chmod(0o600)
    base = [sys.executable, "-c", "from paceline.cli import main; main()", "switch"]
    base += ["--token-file", str(folder / "token"), "--policy", setting.policy, "--memory", setting.memory]
    places = [f"{star.hub_address}:{_PORT + rack}" for rack in range(setting.racks)]
    more = [["--drop", str(setting.loss)]] * setting.racks
    if setting.racks > 1:
        upper = f"{star.hub_address}:{_PORT + setting.racks}"
        more = [[*options, "--upstream", upper] for options in more]
        places.append(upper)
        more.append(["--upper"])
    for place, options in reversed(list(zip(places, more, strict=True))):
        name = f"switch-{place.rpartition(':')[2]}"
        command = namespaces.inside(star.hub, [*base, "--listen", place, *options])
        children.start(name, command, dict(os.environ))
        _await_switch(star, children, name, place)
    return places[: setting.racks]


def _await_switch(star: namespaces.Star, children: Children, name: str, place: str) -> None:
    until = time.monotonic() + _START_S
    with namespaces.entered(star.hub):
        while time.monotonic() < until:
            children.check(name)
            with contextlib.suppress(ControlError):
                ControlPlane.parse(place).text("/healthz")
                return
            time.sleep(0.1)
    raise ChildError(f"the switch did not come up{children.last_words(name)}")


def rank_environment(
    star: namespaces.Star, worker: int, job: int, switches: list[str], token: str
) -> dict[str, str]:
    return {
        "RANK": str(worker),
        "WORLD_SIZE": str(HOSTS),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": star.address(0),
        "MASTER_PORT": str(29600 + job),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": namespaces.DEVICE,
        "PACELINE_HOST_REDUCE": "0",
        "PACELINE_SWITCH": switches[0] if switches else "",
        "PACELINE_TOKEN": token,
        "PACELINE_JOB": f"job{job}",
    }


def _await(children: Children, folder: Path, names: list[str], timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    while missing := [name for name in names if not (folder / name).exists()]:
        for name in children.children:
            children.check(name, may_end=not name.startswith("switch"))
        if time.monotonic() > until:
            raise ChildError(f"not within {timeout_s:.0f} s: {', '.join(missing[:5])}")
        time.sleep(0.05)


def _busy_s(children: Children) -> float:
    """Seconds that processors have worked for the children: for those that have ended, and those that run."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy_s = ended.ru_utime + ended.ru_stime
    for child in children.children.values():
        with contextlib.suppress(OSError):
            after_name = (
                Path(f"/proc/{child.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
            )
            busy_s += (int(after_name[11]) + int(after_name[12])) / _CLOCK_HZ
    return busy_s


def small(**changes: Any) -> Setting:
    """A short row, for tests."""
    return replace(Setting(steps=3, compute_s=0.05), **changes)
