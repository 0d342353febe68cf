"""From what a user asks for to a run: a new one or one to go on with, its launcher, its switch, its lock."""

import contextlib
import fcntl
import json
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

from paceline.errors import UserError
from paceline.launch import switches
from paceline.launch.jobs import RunJob, load_run_jobs
from paceline.launch.launchers.protocol import Launcher, UnreachableError
from paceline.launch.planner_loop import Runner
from paceline.launch.replan import check_policy
from paceline.launch.settings import Settings, Watcher
from paceline.launch.store import FILE, Store
from paceline.launch.warm import Warming
from paceline.schedule import planning
from paceline.schedule.inputs.jobs import Exchange
from paceline.schedule.inputs.sources import ClusterSource
from paceline.schedule.kernels import announce
from paceline.schedule.model import Model
from paceline.schedule.plan import Objective
from paceline.schedule.policies import by_name
from paceline.units import parse_size_bytes

LAUNCHERS = ("local", "slurm", "ray")


@dataclass(frozen=True)
class Request:
    """What the command line says; kept with the run, so that `--resume` needs nothing else."""

    launcher: str = "local"
    policy: str = "bco-plus"
    objective: str = "makespan"
    switch: str = "none"
    switch_memory: str = ""
    """Of a switch that the run starts; default: the switch's own."""
    seed: int = 0
    grace_s: float = 5.0
    patience_s: float = 60.0
    address: str = ""
    """Of the Ray cluster."""
    sbatch: tuple[str, ...] = field(default=())
    """Further options of sbatch."""


def make_launcher(request: Request, run_dir: Path) -> Launcher:
    """The launcher of that name; an engine that cannot be reached is told at once."""
    if request.launcher == "local":
        from paceline.launch.launchers.local import Local

        return Local(run_dir)
    if request.launcher == "slurm":
        from paceline.launch.launchers.slurm import Slurm

        return Slurm(request.sbatch)
    if request.launcher == "ray":
        from paceline.launch.launchers.ray import RayCluster

        return RayCluster(request.address)
    raise UserError(
        f"there is no launcher {request.launcher!r}; known: {', '.join(LAUNCHERS)}", place="--launcher"
    )


def check(request: Request) -> None:
    """Everything that can be refused before a folder is made."""
    if request.launcher not in LAUNCHERS:
        raise UserError(
            f"there is no launcher {request.launcher!r}; known: {', '.join(LAUNCHERS)}", place="--launcher"
        )
    if request.objective not in get_args(Objective):
        raise UserError(f"{request.objective!r} is neither makespan nor jct", place="--objective")
    if request.switch_memory:
        if request.switch != "auto":
            raise UserError("is for a switch that the run starts: --switch auto", place="--switch-memory")
        try:
            parse_size_bytes(request.switch_memory)
        except ValueError as error:
            raise UserError(str(error), place="--switch-memory") from None
    check_policy(request.policy)


def create(jobs_file: Path, cluster: str, request: Request, folder: Path) -> None:
    """Write a new run to the folder; nothing is started yet."""
    check(request)
    if (folder / FILE).exists():
        Store.create(folder)
    with contextlib.closing(_reached(request, folder)) as launcher:
        try:
            source = ClusterSource.read(cluster) if cluster else _discovered(launcher)
            servers = source.file.cluster().servers
            launcher.check({server.name: server.gpus for server in servers})
        except UnreachableError as error:
            raise UserError(f"{request.launcher} cannot be reached: {error}", place="--launcher") from None
    exchange: Exchange = "ring" if request.switch == "none" else "in-network"
    jobs = load_run_jobs(jobs_file, source.file.cluster().gpus_total, exchange)
    for name in (run_job.job.name for run_job in jobs):
        if "/" in name or name.startswith("."):
            raise UserError(f"job {name!r}: a name becomes a folder, so no slash in it", place=str(jobs_file))
    source.problem([run_job.job for run_job in jobs])
    # Before the clock of the arrivals starts: the first time ever it compiles.
    announce()
    planning.warm_up()
    folder.mkdir(parents=True, exist_ok=True)
    store = Store.create(folder)
    now = time.time()
    with store.transaction():
        store.set_meta(
            run_id=secrets.token_hex(4), began=now, ended=None, state="new", launcher=request.launcher,
            policy=request.policy, objective=request.objective, jobs_file=str(jobs_file), switch=None,
            cluster={"name": source.name, "data": source.data},
            request={key: getattr(request, key) for key in request.__dataclass_fields__},
        )  # fmt: skip
        for position, server in enumerate(servers):
            store.insert(
                "servers", name=server.name, position=position, slots=server.gpus, rack=server.rack, state="up",
                reason="",
            )  # fmt: skip
        for position, run_job in enumerate(jobs):
            job = run_job.job
            store.insert(
                "jobs", name=job.name, position=position, gpus=job.gpus, iterations=job.iterations,
                arrival_s=job.arrival_s, priority=job.priority, exchange=job.exchange, spec=run_job.as_json(),
                state="pending", attempt=0, reason="not yet arrived",
            )  # fmt: skip
        store.event(now, "run", f"{len(jobs)} jobs on {len(servers)} servers by {request.policy}")
    store.close()


def _reached(request: Request, folder: Path) -> Launcher:
    try:
        return make_launcher(request, folder)
    except UnreachableError as error:
        raise UserError(f"{request.launcher} cannot be reached: {error}", place="--launcher") from None


def _discovered(launcher: Launcher) -> ClusterSource:
    found = launcher.discover()
    if not found:
        raise UserError(f"{launcher.name} has no servers that could be used", place="--launcher")
    data = {"servers": [{"name": server.name, "gpus": server.slots} for server in found]}
    return ClusterSource(f"found by {launcher.name}", data, {})


def go_on(folder: Path, watcher: Watcher, stopper: "Stopper | None" = None) -> int:
    """Run what the folder holds, from wherever it stands, to its end; the exit code."""
    if not (folder / FILE).exists():
        raise UserError(f"holds no run (no {FILE})", place=str(folder))
    with held_lock(folder), contextlib.closing(Store.open(folder)) as store:
        meta = store.meta()
        request = Request(**{**meta["request"], "sbatch": tuple(meta["request"]["sbatch"])})
        source = ClusterSource(meta["cluster"]["name"], meta["cluster"]["data"], {})
        jobs = {row["name"]: RunJob.from_json(row["spec"]) for row in store.jobs()}
        with (
            contextlib.closing(_reached(request, folder)) as launcher,
            _switch(store, request, watcher) as switch,
        ):
            if meta["state"] == "new":
                # Arrivals count from the moment when jobs can start, not from when a switch began to compile.
                store.set_meta(began=time.time())
            runner = Runner(
                store, launcher, source.file.cluster(), Model.from_file(source.file), jobs,
                by_name(request.policy, seed=request.seed), watcher,
                Settings(cast(Objective, request.objective), request.grace_s, patience_s=request.patience_s), switch,
            )  # fmt: skip
            with (stopper or Stopper()).stops(runner):
                return runner.run()


def _tell(store: Store, watcher: Watcher, text: str, reason: str = "") -> None:
    now = time.time()
    number = store.event(now, "switch", text, reason=reason)
    watcher.event(
        {
            "id": number,
            "time": now,
            "kind": "switch",
            "job": None,
            "text": text,
            "reason": reason,
            "figures": {},
        }
    )


def _command(memory: str) -> Callable[[str, Path], list[str]]:
    return lambda address, token_file: switches.default_command(address, token_file, memory)


@contextlib.contextmanager
def _switch(store: Store, request: Request, watcher: Watcher) -> Iterator[switches.Switch | None]:
    if request.switch == "none":
        yield None
        return
    # Agents run here with the local launcher: they are compiled beside the switch, before any job waits for them.
    warming = Warming(("agent", "worker")) if request.launcher == "local" else None
    try:
        if request.switch != "auto":
            switch = switches.attach(store, request.switch)
        else:
            reason = "the first on a machine compiles for a minute or more"
            _tell(store, watcher, "the run's switch is started", reason)
            switch = switches.start(
                store, here_only=request.launcher == "local", command=_command(request.switch_memory)
            )
            _tell(store, watcher, f"the run's switch answers at {switch.address}")
        if warming is not None:
            try:
                warming.wait()
            except BaseException:
                switch.stop()
                raise
    finally:
        if warming is not None:
            warming.stop()
    # A planner that dies, or gives up waiting for its engine, leaves the switch to its jobs; one that ends
    # takes it along.
    try:
        yield switch
    except KeyboardInterrupt:
        switch.stop()
        raise
    switch.stop()


class Stopper:
    """Ctrl-C and SIGTERM: the first asks the run to stop its jobs and end, the second ends the planner at once."""

    @contextlib.contextmanager
    def stops(self, runner: Runner) -> Iterator[None]:
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def handle(number: int, _: object) -> None:
            for each, handler in before.items():
                signal.signal(each, handler)
            runner.interrupted.set()

        for number in before:
            signal.signal(number, handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def as_text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1)


@contextlib.contextmanager
def held_lock(folder: Path) -> Iterator[None]:
    """One planner a run: hold its lock, or tell who does. The kernel takes it from a holder that dies."""
    path = folder / "lock"
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            who = file.read().strip()
            raise UserError(
                f"in use by a planner that is alive{f' (process {who})' if who else ''}", place=str(folder)
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
