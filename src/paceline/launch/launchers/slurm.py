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
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.errors import UserError
from paceline.launch.environment import rank_environments
from paceline.launch.launchers import slurm_commands as slurm
from paceline.launch.launchers.protocol import (
    FoundServer,
    Handle,
    Observation,
    Open,
    RefusedError,
    ServerState,
    Share,
    Task,
)
from paceline.launch.launchers.slurm_commands import SlurmJob
from paceline.ports import FIRST_PORT, PORTS

_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED", "RESIZING")
_RUNNING = ("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED")
_LOST = ("NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "REVOKED", "DEADLINE")


class Slurm:
    """Runs jobs by sbatch."""

    name = "slurm"
    poll_s = 0.5

    def __init__(self, options: Sequence[str] = ()) -> None:
        self.options = tuple(options)
        self._nodes = slurm.nodes()

    def discover(self) -> list[FoundServer]:
        return [
            FoundServer(node.name, node.gpus or node.cpus, node.address)
            for node in self._nodes.values()
            if node.up
        ]

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
        found = slurm.nodes()
        states = {}
        for name in names:
            node = found.get(name)
            reason = "Slurm no longer has it" if node is None else f"{node.state}: {node.reason}"
            states[name] = ServerState(node is not None and node.up, "" if node and node.up else reason)
        return states

    def prepare(self, task: Task) -> Handle:
        known = [job.root for job in slurm.queue() if job.comment == task.token]
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
        answer = slurm.call("sbatch", *arguments, str(script))
        return {"job": int(answer.strip().split(";")[0])}

    def _write_script(self, task: Task) -> Path:
        """The batch script and, in it, what each rank has of its own; needs nothing on the nodes but sh."""
        folder = Path(task.folder)
        folder.mkdir(parents=True, exist_ok=True)
        hosts = [share.server for share in task.shares for _ in range(share.slots)]
        (folder / "hosts").write_text("\n".join(hosts) + "\n", encoding="utf-8")
        cases = [f"{rank}) export {_assignments(own)} ;;" for rank, own in enumerate(rank_environments(task))]
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
        batch.write_text(
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
            encoding="utf-8",
        )
        return batch

    def release(self, task: Task, handle: Handle) -> None:
        jobs = [job for job in slurm.queue() if job.root == handle["job"]]
        if not jobs or not all(job.state == "PENDING" and job.reason.startswith("JobHeld") for job in jobs):
            # Released before the crash, or gone: `poll` will tell.
            return
        _check_own(jobs, task)
        with contextlib.suppress(RefusedError):
            slurm.call("scontrol", "release", str(handle["job"]))

    def poll(self, attempts: Sequence[Open]) -> dict[str, Observation]:
        jobs = slurm.queue()
        numbers = {each.task.token: int(each.handle["job"]) for each in attempts}
        for job in jobs:
            # A second submission of a token of ours, still held: it must never run.
            if job.comment in numbers and job.root != numbers[job.comment] and job.state == "PENDING":
                slurm.call("scancel", str(job.root))
        return {each.task.token: self._observe(each.task, each.handle, jobs) for each in attempts}

    def _observe(self, task: Task, handle: Handle, jobs: Sequence[SlurmJob]) -> Observation:
        number = int(handle["job"])
        parts = [job for job in jobs if job.root == number and job.comment == task.token]
        if parts:
            return self._together(task, handle, sorted(parts, key=lambda job: job.number))
        past = slurm.accounted(number)
        if past is not None:
            return _observation(past[0], past[1], "by sacct", None)
        # No accounting: the batch script's own word is left.
        try:
            code = int((Path(task.folder) / "exit").read_text())
        except (FileNotFoundError, ValueError):
            return Observation("lost", reason=f"Slurm knows nothing of job {number} any more")
        return Observation("ended", code)

    def _together(self, task: Task, handle: Handle, parts: Sequence[SlurmJob]) -> Observation:
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

    def stop(self, task: Task, handle: Handle) -> None:
        jobs = [job for job in slurm.queue() if job.root == handle["job"]]
        if any(job.state in (*_WAITING, *_RUNNING) for job in jobs):
            _check_own(jobs, task)
            # Slurm's own order of things: SIGTERM, KillWait, SIGKILL.
            with contextlib.suppress(RefusedError):
                slurm.call("scancel", str(handle["job"]))

    def forget(self, task: Task, handle: Handle) -> None:
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
