"""From what a user asks for to a run: a new one or one to go on with, its launcher, its switch, its lock."""

import contextlib
import fcntl
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast, get_args

from paceline.core.switch.memory import POLICIES as SWITCH_POLICIES
from paceline.emulation.cluster import EmulatedCluster
from paceline.emulation.enclosure import enclosed
from paceline.errors import UserError
from paceline.launch import switches
from paceline.launch.control import insert_job
from paceline.launch.jobs import RunJob, load_run_jobs
from paceline.launch.launchers.local import Local
from paceline.launch.launchers.protocol import Launcher, UnreachableError
from paceline.launch.planner_loop import LoopSettings, PlannerLoop, RunClock, Watcher, tell_event
from paceline.launch.replan import check_policy
from paceline.launch.salvage import check_values, mend, told_as_damage
from paceline.launch.store import FILE, Store, check_no_run
from paceline.launch.warm import Warming
from paceline.schedule import planning
from paceline.schedule.inputs.jobs import Exchange
from paceline.schedule.inputs.sources import ClusterSource
from paceline.schedule.kernels import announce
from paceline.schedule.model import Model
from paceline.schedule.plan import Objective
from paceline.schedule.policies import by_name
from paceline.units import parse_size_bytes

EMULATED = "emulated"
NO_LATER = 1.05
"""A better average is not paid for by one job."""
LOCK_LIMIT_S = 1.0
"""Who only looks whether a planner is alive holds the lock for a moment too (`control.planner_alive`)."""


@dataclass(frozen=True)
class RunRequest:
    """What the command line says; kept with the run, so that `--resume` needs nothing else."""

    launcher: str = "local"
    policy: str = "bco-plus"
    objective: str = "makespan"
    switch: str = "none"
    """`none`, `auto`: the run starts one, or HOST:PORT of one that is there, or of several with commas. Empty: those
    that the cluster file names, if it does."""
    switch_memory: str = ""
    """Of a switch that the run starts; default: the switch's own."""
    seed: int = 0
    """Of policies that draw."""
    grace_s: float = 5.0
    """Between SIGTERM and SIGKILL."""
    patience_s: float = 60.0
    """How long jobs that do not fit wait for servers to come back."""
    address: str = ""
    """Of the Ray cluster."""
    sbatch: tuple[str, ...] = ()
    """Further options of sbatch."""
    network: str = ""
    """`emulated`: servers are network namespaces of this machine; empty: as the machine is."""
    warm: tuple[str, ...] = ()
    """Modules that are loaded before the first job starts; its ranks are forked from that process."""
    switch_policy: str = ""
    """Who gets the aggregators of a switch that the run starts; default: the switch's own."""
    no_later: float = NO_LATER
    """How many times as late as under first fit bco-plus may let a job end; 0: as late as the objective likes."""


def _local(request: RunRequest, run_dir: Path) -> Launcher:
    return Local(run_dir)


def _slurm(request: RunRequest, run_dir: Path) -> Launcher:
    from paceline.launch.launchers.slurm import Slurm

    return Slurm(request.sbatch)


def _ray(request: RunRequest, run_dir: Path) -> Launcher:
    from paceline.launch.launchers.ray import RayCluster

    return RayCluster(request.address)


LAUNCHERS: dict[str, Callable[[RunRequest, Path], Launcher]] = {"local": _local, "slurm": _slurm, "ray": _ray}


def check(request: RunRequest) -> None:
    """Everything that can be refused before a folder is made."""
    if request.launcher not in LAUNCHERS:
        raise UserError(
            f"there is no launcher {request.launcher!r}; known: {', '.join(LAUNCHERS)}", place="--launcher"
        )
    if request.objective not in get_args(Objective):
        raise UserError(f"{request.objective!r} is neither makespan nor jct", place="--objective")
    if request.network == EMULATED:
        if request.launcher != "local":
            raise UserError("an emulated network is for --launcher local", place="--network")
        if request.switch not in ("", "none", "auto"):
            raise UserError(f"{request.switch} cannot be reached from an emulated network", place="--switch")
    elif request.network:
        raise UserError(f"{request.network!r} is not 'emulated'", place="--network")
    if request.switch not in ("", "none", "auto"):
        switches.check_named(request.switch)
    if request.switch_memory:
        if request.switch != "auto":
            raise UserError("is for a switch that the run starts: --switch auto", place="--switch-memory")
        try:
            parse_size_bytes(request.switch_memory)
        except ValueError as error:
            raise UserError(str(error), place="--switch-memory") from None
    if request.switch_policy and request.switch != "auto":
        raise UserError("is for a switch that the run starts: --switch auto", place="--switch-policy")
    if request.switch_policy and request.switch_policy not in SWITCH_POLICIES:
        known = ", ".join(name for name in SWITCH_POLICIES if name != "none")
        raise UserError(f"unknown policy {request.switch_policy!r}; known: {known}", place="--switch-policy")
    if request.no_later and request.no_later < 1.0:
        raise UserError("a job cannot be asked to end earlier than under first fit", place="--no-later")
    check_policy(request.policy)


def create(jobs_file: Path, cluster: str, request: RunRequest, folder: Path) -> None:
    """Write a new run to the folder; nothing is started yet."""
    check(request)
    check_no_run(folder)
    with contextlib.closing(_reached(request, folder)) as launcher:
        try:
            source = ClusterSource.read(cluster) if cluster else _discovered(launcher)
            servers = source.file.cluster().servers
            launcher.check({server.name: server.gpus for server in servers})
        except UnreachableError as error:
            raise UserError(f"{request.launcher} cannot be reached: {error}", place="--launcher") from None
    if source.file.network.emulated and request.launcher == "local":
        request = replace(request, network=EMULATED)
        check(request)
    if not request.switch:
        request = replace(request, switch=",".join(source.file.switches) or "none")
        check(request)
    if request.warm and not request.network:
        raise UserError("ranks are forked from a warm process on an emulated network only", place="--warm")
    exchange: Exchange = "ring" if request.switch == "none" else "in-network"
    jobs = load_run_jobs(jobs_file, source.file.cluster().gpus_total, exchange, source.file.device.flop_rate)
    source.problem([run_job.job for run_job in jobs])
    # Before the clock of the arrivals starts: the first time ever it compiles.
    announce()
    planning.warm_up()
    folder.mkdir(parents=True, exist_ok=True)
    _write_run(folder, jobs_file, jobs, source, request)


def _write_run(
    folder: Path, jobs_file: Path, jobs: tuple[RunJob, ...], source: ClusterSource, request: RunRequest
) -> None:
    # Whoever looks for runs finds a whole one or none.
    unfinished = folder / f".{FILE}.new"
    unfinished.unlink(missing_ok=True)
    store = Store.create(folder, unfinished.name)
    now = time.time()
    servers = source.file.cluster().servers
    with store.transaction():
        store.set_meta(
            run_id=secrets.token_hex(4), began=now, ended=None, state="new", launcher=request.launcher,
            policy=request.policy, objective=request.objective, jobs_file=str(jobs_file), switch=None,
            cluster={"name": source.name, "data": source.data},
            request=asdict(request),
        )  # fmt: skip
        for position, server in enumerate(servers):
            store.insert(
                "servers", name=server.name, position=position, slots=server.gpus, rack=server.rack, state="up",
                reason="",
            )  # fmt: skip
        for position, run_job in enumerate(jobs):
            insert_job(store, position, run_job)
        store.event(now, "run", f"{len(jobs)} jobs on {len(servers)} servers by {request.policy}")
    store.close()
    unfinished.rename(folder / FILE)


def asks_for_emulation(folder: Path) -> bool:
    """Whether the run of this folder has an emulated network."""
    if not (folder / FILE).exists():
        raise UserError(f"holds no run (no {FILE})", place=str(folder))
    with contextlib.closing(Store.open_to_read(folder)) as store:
        return bool(store.meta()["request"].get("network"))


def _built_network(
    store: Store, request: RunRequest, source: ClusterSource, watcher: Watcher
) -> EmulatedCluster | None:
    """The emulated network of a run, made anew: it ended with the planner before us."""
    if not request.network:
        return None
    network = EmulatedCluster.of(source.file.cluster())
    network.build()
    text = f"{len(network.servers)} servers in {len(network.racks)} racks are network namespaces, made {enclosed()}"
    for told in (text, *network.limit_processors()):
        tell_event(store, watcher, time.time(), "network", told)
    return network


def _tell_uplinks(store: Store, network: EmulatedCluster, watcher: Watcher) -> None:
    for rack, (sent, got) in network.uplink_bytes().items():
        text = f"rack {rack} sent {sent / 1e6:.1f} MB up and got {got / 1e6:.1f} MB from above"
        figures = {"rack": rack, "sent_bytes": sent, "got_bytes": got}
        tell_event(store, watcher, time.time(), "network", text, figures=figures)


def _reached(request: RunRequest, folder: Path, network: EmulatedCluster | None = None) -> Launcher:
    if network is not None:
        return Local(folder, network, request.warm)
    try:
        return LAUNCHERS[request.launcher](request, folder)
    except UnreachableError as error:
        raise UserError(f"{request.launcher} cannot be reached: {error}", place="--launcher") from None


def _discovered(launcher: Launcher) -> ClusterSource:
    found = launcher.discover()
    if not found:
        raise UserError(f"{launcher.name} has no servers that could be used", place="--launcher")
    data = {"servers": [{"name": server.name, "gpus": server.slots} for server in found]}
    return ClusterSource(f"found by {launcher.name}", data, {})


def go_on(folder: Path, watcher: Watcher) -> int:
    """Run what the folder holds, from wherever it stands, to its end; the exit code."""
    if not (folder / FILE).exists():
        raise UserError(f"holds no run (no {FILE})", place=str(folder))
    with held_lock(folder), contextlib.closing(_mended(folder)) as store:
        check_values(folder, store)
        with told_as_damage(folder):
            meta = store.meta()
            kept = meta["request"]
            request = RunRequest(**{**kept, "sbatch": tuple(kept["sbatch"]), "warm": tuple(kept["warm"])})
            source = ClusterSource(meta["cluster"]["name"], meta["cluster"]["data"], {})
            source.file.cluster()
            jobs = {row["name"]: RunJob.from_json(row["spec"]) for row in store.jobs()}
        network = _built_network(store, request, source, watcher)
        with (
            ended_by_sigterm(),
            contextlib.closing(_reached(request, folder, network)) as launcher,
            network.background() if network is not None else contextlib.nullcontext(),
            _switch(store, request, watcher, network) as switch,
        ):
            clock = RunClock(max((event["time"] for event in store.events()), default=0.0))
            if meta["state"] == "new":
                # Arrivals count from the moment when jobs can start, not from when a switch began to compile.
                store.set_meta(began=clock())
            loop = PlannerLoop(
                store, launcher, source.file.cluster(), Model.from_file(source.file), jobs,
                by_name(request.policy, seed=request.seed, no_later=request.no_later or None), watcher,
                LoopSettings(cast(Objective, request.objective), request.grace_s, patience_s=request.patience_s),
                switch, clock,
            )  # fmt: skip
            with stopped_by_signals(loop):
                code = loop.run()
            if network is not None:
                _tell_uplinks(store, network, watcher)
            return code


def _mended(folder: Path) -> Store:
    """The run's state; where its file was damaged, what could be saved of it."""
    saved = mend(folder)
    store = Store.open(folder)
    if saved:
        print(f"paceline: {folder}: {saved}", file=sys.stderr, flush=True)
        store.event(time.time(), "resume", saved)
    return store


@contextlib.contextmanager
def _switch(
    store: Store, request: RunRequest, watcher: Watcher, network: EmulatedCluster | None
) -> Iterator[switches.AnySwitch | None]:
    """The switch of the run. A planner that dies, or gives up waiting for its engine, leaves it to its jobs; a
    planner that ends takes it along."""
    if request.switch == "none":
        yield None
        return
    switch = _compiled_switch(store, request, watcher, network)
    try:
        yield switch
    except KeyboardInterrupt:
        switch.stop()
        raise
    switch.stop()


def _compiled_switch(
    store: Store, request: RunRequest, watcher: Watcher, network: EmulatedCluster | None
) -> switches.AnySwitch:
    """A switch that answers. With the local launcher agents run here too, and are compiled before any job waits."""
    warming = Warming(("agent", "worker")) if request.launcher == "local" else None
    try:
        switch = _answering_switch(store, request, watcher, network)
        if warming is not None:
            try:
                warming.wait()
            except BaseException:
                switch.stop()
                raise
        return switch
    finally:
        if warming is not None:
            warming.stop()


def _answering_switch(
    store: Store, request: RunRequest, watcher: Watcher, network: EmulatedCluster | None
) -> switches.AnySwitch:
    if request.switch != "auto":
        return switches.attach(store, request.switch)
    reason = "the first on a machine compiles for a minute or more"
    tell_event(store, watcher, time.time(), "switch", "the run's switch is started", reason=reason)
    command = partial(switches.default_command, memory=request.switch_memory, policy=request.switch_policy)
    if network is not None and network.has_uplinks:
        tree = switches.start_tree(store, network, request.switch_memory, request.switch_policy)
        text = f"{len(tree.racks)} rack switches answer, under an upper one at {tree.address}"
        tell_event(store, watcher, time.time(), "switch", text)
        return tree
    host = network.core_address if network else "127.0.0.1" if request.launcher == "local" else ""
    switch = switches.start(store, host=host, command=command)
    tell_event(store, watcher, time.time(), "switch", f"the run's switch answers at {switch.address}")
    return switch


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends like Ctrl-C, also before jobs run: a switch that is just started would stay for ever."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def stopped_by_signals(loop: PlannerLoop) -> Iterator[None]:
    """Ctrl-C and SIGTERM: the first asks the run to stop its jobs and end, the second ends the planner at once."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(_number: int, _frame: object) -> None:
        restore()
        loop.interrupted.set()

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()


@contextlib.contextmanager
def held_lock(folder: Path) -> Iterator[None]:
    """One planner a run: hold its lock, or tell who does. The kernel takes it from a holder that dies."""
    path = folder / "lock"
    with path.open("a+", encoding="utf-8") as file:
        until = time.monotonic() + LOCK_LIMIT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() < until:
                    time.sleep(0.05)
                    continue
                file.seek(0)
                who = file.read().strip()
                raise UserError(
                    f"in use by a planner that is alive{f' (process {who})' if who else ''}",
                    place=str(folder),
                ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
