"""Slurm as launcher, by its own commands: held submission, node list from the plan, release in plan order.

`prepare` submits the attempt held (`sbatch -H`), so Slurm knows it and runs nothing; its number is written down
before `release` lets it go. The attempt's token is the job's comment: after a crash a held job is found by it and
not submitted again. A second submission of one token, which only a dying `sbatch` can cause, stays held and is
cancelled. Nothing that lacks our token is ever touched.

A job with two slots here and one there is a heterogeneous job, a part for each node, which takes Slurm's usual
scheduler (sched/backfill). The run's folder must be on a file system that the nodes share. Slots are GPUs where
nodes have some, else processors.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.launch.launchers.protocol import (
    EngineHandle,
    FoundServer,
    Observation,
    OpenAttempt,
    RefusedError,
    ServerState,
    Share,
    Task,
    UnreachableError,
)
from paceline.ports import FIRST_PORT, PORTS
from paceline.secret_files import write_private

TIMEOUT_S = 30.0
_AWAY = (  # Slurm has one exit code for all failures: only its messages tell them apart
    "unable to contact slurm controller",
    "socket timed out",
    "connection refused",
    "communication connection failure",
    "zero bytes were transmitted",
    "munge",
    "could not establish a configuration source",
)
# Values may hold spaces; the next name with = ends them.
_FIELD = re.compile(r"(\w+)=(.*?)(?=\s+[A-Za-z]\w*=|\s*$)")
_USABLE = ("IDLE", "MIXED", "ALLOCATED")
_UNUSABLE_FLAGS = {
    "DRAIN",
    "DOWN",
    "FAIL",
    "NOT_RESPONDING",
    "POWERED_DOWN",
    "POWERING_DOWN",
    "MAINTENANCE",
    "BLOCKED",
}
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED", "RESIZING")
_RUNNING = ("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED")
_LOST = ("NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "REVOKED", "DEADLINE")


# Slurm's commands: one answer each, or an error that says which kind it is ------------------------------


@dataclass(frozen=True)
class SlurmJob:
    """A job in the queue, or one that ended not long ago."""

    number: int
    root: int
    """The number of the whole, where it is one part of a heterogeneous job; else its own."""
    state: str
    reason: str
    comment: str
    exit_code: int
    ended: float


def call(*arguments: str) -> str:
    """Standard output of a command; `UnreachableError` if Slurm does not answer, `RefusedError` if it says no."""
    if shutil.which(arguments[0]) is None:
        raise UserError(f"{arguments[0]} is not installed here", place="--launcher slurm")
    try:
        done = subprocess.run(
            arguments,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise UnreachableError(f"{arguments[0]} did not answer within {TIMEOUT_S:.0f} s") from None
    if done.returncode == 0:
        return done.stdout
    told = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
    if any(sign in told.lower() for sign in _AWAY):
        raise UnreachableError(told)
    raise RefusedError(f"{arguments[0]}: {told}")


def queue() -> list[SlurmJob]:
    """Our user's jobs, those that ended within Slurm's memory included."""
    answer = call("squeue", "--json", "--states=all", f"--user={os.getuid()}")
    return [_job(entry) for entry in json.loads(answer)["jobs"]]


def _job(entry: Mapping[str, Any]) -> SlurmJob:
    code = entry.get("exit_code") or 0
    if isinstance(code, dict):
        # Newer versions tell it in parts.
        code = _number(code.get("return_code")) << 8 | _number((code.get("signal") or {}).get("id"))
    state = entry["job_state"]
    return SlurmJob(
        number=int(entry["job_id"]),
        root=_number(entry.get("het_job_id")) or int(entry["job_id"]),
        state=str(state[0] if isinstance(state, list) else state),
        reason=str(entry.get("state_reason") or ""),
        comment=str(entry.get("comment") or ""),
        exit_code=_shell_code(int(code)),
        ended=float(_number(entry.get("end_time"))),
    )


def _number(value: Any) -> int:
    # Newer versions write {"set": true, "number": 3}.
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set", True) else 0
    return int(value or 0)


def _shell_code(status: int) -> int:
    """A wait status as a shell tells it."""
    if status & 0x7F:
        return 128 + (status & 0x7F)
    return status >> 8 & 0xFF


def accounted(number: int) -> tuple[str, int] | None:
    """State and exit code of a job that the queue has forgotten, by `sacct`; None where nothing is accounted."""
    try:
        answer = call("sacct", "-n", "-P", "-X", "-j", str(number), "-o", "State,ExitCode")
    except (RefusedError, UserError):
        return None
    for line in answer.splitlines():
        state, _, code = line.partition("|")
        if state:
            status, _, number_of_signal = code.partition(":")
            signal_number = int(number_of_signal or 0)
            return state.split()[0], 128 + signal_number if signal_number else int(status or 0)
    return None


@dataclass(frozen=True)
class SlurmNode:
    """A node as `scontrol` tells it; its state is a word and flags, `IDLE+DRAIN`, with `*` if it is silent."""

    name: str
    state: str
    cpus: int
    gpus: int
    reason: str
    address: str

    @property
    def up(self) -> bool:
        word, *flags = self.state.split("+")
        return (
            word.rstrip("~#!%$@^-") in _USABLE and not set(flags) & _UNUSABLE_FLAGS and "*" not in self.state
        )


def nodes() -> dict[str, SlurmNode]:
    """All nodes."""
    found = {}
    for line in call("scontrol", "show", "node", "--oneliner").splitlines():
        given: dict[str, str] = dict(_FIELD.findall(line))
        if "NodeName" in given:
            found[given["NodeName"]] = SlurmNode(
                given["NodeName"], given.get("State", ""), int(given.get("CPUTot", 0)), gpus_of(given.get("Gres", "")),
                given.get("Reason", "").strip(), given.get("NodeAddr", given["NodeName"]),
            )  # fmt: skip
    return found


def gpus_of(gres: str) -> int:
    """GPUs in `gpu:4`, `gpu:a100:4(S:0-1),nic:1` and the like."""
    total = 0
    for part in gres.replace("(null)", "").split(","):
        fields = part.split("(")[0].split(":")
        if fields[0] == "gpu" and fields[-1].isdigit():
            total += int(fields[-1])
    return total


# The launcher --------------------------------------------------------------------------------------------


class Slurm:
    """Runs jobs by sbatch."""

    name = "slurm"
    poll_s = 0.5

    def __init__(self, options: Sequence[str] = ()) -> None:
        self.options = tuple(options)
        self._nodes = nodes()

    def discover(self) -> list[FoundServer]:
        return [FoundServer(node.name, node.gpus or node.cpus) for node in self._nodes.values() if node.up]

    def check(self, slots: Mapping[str, int]) -> None:
        for name, wanted in slots.items():
            if name not in self._nodes:
                known = ", ".join(list(self._nodes)[:8])
                raise UserError(f"Slurm has no node {name!r}; it has {known}", place="--cluster")
            node = self._nodes[name]
            if wanted > (node.gpus or node.cpus):
                kind = "GPUs" if node.gpus else "processors"
                raise UserError(
                    f"server {name!r} has {wanted} slots in the file, its node {node.gpus or node.cpus} {kind}",
                    place="--cluster",
                )

    def servers(self, names: Sequence[str]) -> dict[str, ServerState]:
        found = nodes()
        states = {}
        for name in names:
            node = found.get(name)
            reason = "Slurm no longer has it" if node is None else f"{node.state}: {node.reason}"
            states[name] = ServerState(node is not None and node.up, "" if node and node.up else reason)
        return states

    def prepare(self, task: Task) -> EngineHandle:
        known = [job.root for job in queue() if job.comment == task.token]
        if known:
            return {"job": min(known)}
        script = self._write_script(task)
        once = [
            "--parsable",
            "--hold",
            f"--chdir={task.workdir}",
            f"--output={task.folder}/batch.log",
            "--export=ALL",
        ]
        arguments: list[str] = []
        for part in parts_of(task):
            gpus = any(self._nodes[share.server].gpus for share in part if share.server in self._nodes)
            arguments += [
                *([":"] if arguments else []), *self.options, *([] if arguments else once), "--no-requeue",
                f"--job-name=pl-{task.job}", f"--comment={task.token}", f"--nodes={len(part)}",
                f"--nodelist={','.join(share.server for share in part)}",
                f"--ntasks={sum(share.slots for share in part)}", f"--ntasks-per-node={part[0].slots}",
                *([f"--gres=gpu:{part[0].slots}"] if gpus else []),
            ]  # fmt: skip
        answer = call("sbatch", *arguments, str(script))
        return {"job": int(answer.strip().split(";")[0])}

    def _write_script(self, task: Task) -> Path:
        """The batch script and, in it, what each rank has of its own; needs nothing on the nodes but sh."""
        folder = Path(task.folder)
        folder.mkdir(parents=True, exist_ok=True)
        hosts = [share.server for share in task.shares for _ in range(share.slots)]
        (folder / "hosts").write_text("\n".join(hosts) + "\n", encoding="utf-8")
        cases = [
            f"{rank}) export {_assignments(own)} ;;" for rank, own in enumerate(task.rank_environments())
        ]
        quoted = shlex.quote(str(folder))
        (folder / "rank.sh").write_text(
            f'exec >> {quoted}/rank-"$SLURM_PROCID".log 2>&1\n'
            'case "$SLURM_PROCID" in\n' + "\n".join(cases) + f"\nesac\nexec {shlex.join(task.command)}\n",
            encoding="utf-8",
        )
        first = self._nodes.get(task.servers[0])
        address = first.address if first is not None else task.servers[0]
        parts = len(parts_of(task))
        if parts > 1:
            spread = f"--het-group={','.join(str(i) for i in range(parts))}"
        else:
            # Ranks go to the nodes in the plan's order, not in Slurm's.
            spread = "--distribution=arbitrary"
        batch = folder / "batch.sh"
        write_private(
            batch,
            "#!/bin/sh\n"
            f"export {_assignments(task.env)}\n"
            f"export MASTER_ADDR={shlex.quote(address)}"
            f" MASTER_PORT=$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))\n"
            + (f"export SLURM_HOSTFILE={quoted}/hosts\n" if parts == 1 else "")
            # All GPUs of the job are seen by each of its ranks on a node, as under torchrun.
            + f"srun --kill-on-bad-exit=1 --gpu-bind=none {spread} sh {quoted}/rank.sh\n"
            "code=$?\n"
            f"cd {quoted} && echo $code > .exit && mv .exit exit\n"
            "exit $code\n",
        )
        return batch

    def release(self, task: Task, handle: EngineHandle) -> None:
        jobs = [job for job in queue() if job.root == handle["job"]]
        if not jobs or not all(job.state == "PENDING" and job.reason.startswith("JobHeld") for job in jobs):
            # Released before the crash, or gone: `poll` will tell.
            return
        _check_own(jobs, task)
        with contextlib.suppress(RefusedError):
            call("scontrol", "release", str(handle["job"]))

    def poll(self, attempts: Sequence[OpenAttempt]) -> dict[str, Observation]:
        jobs = queue()
        numbers = {each.task.token: int(each.handle["job"]) for each in attempts}
        for job in jobs:
            # A second submission of a token of ours, still held: it must never run.
            if job.comment in numbers and job.root != numbers[job.comment] and job.state == "PENDING":
                call("scancel", str(job.root))
        return {each.task.token: self._observe(each.task, each.handle, jobs) for each in attempts}

    def _observe(self, task: Task, handle: EngineHandle, jobs: Sequence[SlurmJob]) -> Observation:
        number = int(handle["job"])
        parts = [job for job in jobs if job.root == number and job.comment == task.token]
        if parts:
            return self._together(task, handle, sorted(parts, key=lambda job: job.number))
        past = accounted(number)
        if past is not None:
            return _observation(past[0], past[1], "by sacct", None)
        # No accounting: the file that the batch script wrote is left.
        try:
            code = int((Path(task.folder) / "exit").read_text())
        except (FileNotFoundError, ValueError):
            return Observation("lost", reason=f"Slurm knows nothing of job {number} any more")
        return Observation("ended", code)

    def _together(self, task: Task, handle: EngineHandle, parts: Sequence[SlurmJob]) -> Observation:
        """A job in several parts ends when all have ended; the first speaks for all, unless a node was lost."""
        seen = [_observation(job.state, job.exit_code, job.reason, job.ended) for job in parts]
        states = {each.state for each in seen}
        if states & {"queued", "running"}:
            if states & {"ended", "lost"} and seen[0].state == "running":
                self.stop(task, handle)
            return (
                Observation("queued", reason=seen[0].reason) if "queued" in states else Observation("running")
            )
        return next((each for each in seen if each.state == "lost"), seen[0])

    def stop(self, task: Task, handle: EngineHandle) -> None:
        jobs = [job for job in queue() if job.root == handle["job"]]
        if any(job.state in (*_WAITING, *_RUNNING) for job in jobs):
            _check_own(jobs, task)
            # Slurm's own order of things: SIGTERM, KillWait, SIGKILL.
            with contextlib.suppress(RefusedError):
                call("scancel", str(handle["job"]))

    def forget(self, task: Task, handle: EngineHandle) -> None:
        """Slurm forgets by itself."""

    def close(self) -> None:
        """Nothing is held open."""


def parts_of(task: Task) -> list[tuple[Share, ...]]:
    """One part if all nodes give the same number of slots; else a part for each, the parts of one job.

    Slurm gives the same to every node of a part; only a heterogeneous job can have two here and one there.
    """
    if len({share.slots for share in task.shares}) == 1:
        return [task.shares]
    return [(share,) for share in task.shares]


def _check_own(jobs: Sequence[SlurmJob], task: Task) -> None:
    for job in jobs:
        if job.comment != task.token:
            raise RefusedError(f"Slurm's job {job.number} is not ours: its comment is {job.comment!r}")


def _observation(state: str, code: int, reason: str, ended: float | None) -> Observation:
    reason = "" if reason == "None" else reason
    if state in _WAITING:
        return Observation("queued", reason=reason)
    if state in _RUNNING:
        return Observation("running")
    if state in _LOST:
        return Observation("lost", reason=f"Slurm: {state}", at=ended)
    if state == "COMPLETED":
        return Observation("ended", 0, at=ended)
    return Observation("ended", code or 1, f"Slurm: {state} {reason}, exit code {code}".strip(), ended)


def _assignments(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
