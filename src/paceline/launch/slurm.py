"""Slurm as launcher, by its own commands: held submission, node list from the plan, release in plan order.

`prepare` submits the attempt held (`sbatch -H`), so Slurm knows it and runs nothing; its number is written down
before `release` lets it go. The attempt's token is the job's comment: after a crash a held job is found by it and
not submitted again. A second submission of one token, which only a dying `sbatch` can cause, stays held and is
cancelled. Nothing that lacks our token is ever touched.

The slots of each node come from a host file (`--distribution=arbitrary`), so a job may have two here and one
there. The run's folder must be on a file system that the nodes share. Slots are GPUs where nodes have some,
else processors.
"""

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.errors import UserError
from paceline.launch import slurm_commands as slurm
from paceline.launch.environment import FIRST_PORT, PORTS, rank_environments
from paceline.launch.protocol import FoundServer, Handle, Observation, Open, RefusedError, ServerState, Task
from paceline.launch.slurm_commands import SlurmJob

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
        held = [job for job in slurm.queue() if job.comment == task.token]
        if held:
            return {"job": held[0].number}
        script = self._write_script(task)
        folder = Path(task.folder)
        hosts = [share.server for share in task.shares for _ in range(share.slots)]
        (folder / "hosts").write_text("\n".join(hosts) + "\n", encoding="utf-8")
        gpus = any(self._nodes[name].gpus for name in task.servers if name in self._nodes)
        answer = slurm.call(
            "sbatch", *self.options, "--parsable", "--hold", "--no-requeue", f"--job-name=pl-{task.job}",
            f"--comment={task.token}",
            f"--nodelist={','.join(task.servers)}", f"--nodes={len(task.servers)}", f"--ntasks={task.world_size}",
            "--distribution=arbitrary", f"--chdir={task.workdir}", f"--output={folder}/batch.log",
            "--export=ALL", *(["--gpus-per-task=1"] if gpus else []), str(script),
            env={"SLURM_HOSTFILE": str(folder / "hosts")},
        )  # fmt: skip
        return {"job": int(answer.strip().split(";")[0])}

    def _write_script(self, task: Task) -> Path:
        """The batch script and, in it, what each rank has of its own; needs nothing on the nodes but sh."""
        folder = Path(task.folder)
        folder.mkdir(parents=True, exist_ok=True)
        first = self._nodes.get(task.servers[0])
        cases = []
        for rank, own in enumerate(rank_environments(task)):
            cases.append(f"{rank}) export {_assignments(own)} ;;")
        command = " ".join(shlex.quote(part) for part in task.command)
        rank_script = folder / "rank.sh"
        rank_script.write_text(
            'case "$SLURM_PROCID" in\n' + "\n".join(cases) + f"\nesac\nexec {command}\n", encoding="utf-8"
        )
        batch = folder / "batch.sh"
        address = first.address if first is not None else task.servers[0]
        batch.write_text(
            "#!/bin/sh\n"
            f"export {_assignments(task.env)}\n"
            f"export MASTER_ADDR={shlex.quote(address)}"
            f" MASTER_PORT=$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))\n"
            f"export SLURM_HOSTFILE={shlex.quote(str(folder / 'hosts'))}\n"
            # All GPUs of the job are seen by each of its ranks on a node, as under torchrun.
            f"srun --kill-on-bad-exit=1 --gpu-bind=none --output={shlex.quote(str(folder))}/rank-%t.log"
            f" sh {shlex.quote(str(rank_script))}\n"
            "code=$?\n"
            f"cd {shlex.quote(str(folder))} && echo $code > .exit && mv .exit exit\n"
            "exit $code\n",
            encoding="utf-8",
        )
        return batch

    def release(self, task: Task, handle: Handle) -> None:
        job = next((job for job in slurm.queue() if job.number == handle["job"]), None)
        if job is None or job.state != "PENDING" or not job.reason.startswith("JobHeld"):
            # Released before the crash, or gone: `poll` will tell.
            return
        _own(job, task)
        with contextlib.suppress(RefusedError):
            slurm.call("scontrol", "release", str(job.number))

    def poll(self, attempts: Sequence[Open]) -> dict[str, Observation]:
        jobs = slurm.queue()
        known = {job.number: job for job in jobs}
        numbers = {each.task.token: int(each.handle["job"]) for each in attempts}
        for job in jobs:
            # A second submission of a token of ours, still held: it must never run.
            if job.comment in numbers and job.number != numbers[job.comment] and job.state == "PENDING":
                slurm.call("scancel", str(job.number))
        return {
            each.task.token: self._observe(
                each.task, known.get(int(each.handle["job"])), int(each.handle["job"])
            )
            for each in attempts
        }

    def _observe(self, task: Task, job: SlurmJob | None, number: int) -> Observation:
        if job is not None and job.comment == task.token:
            return _observation(job.state, job.exit_code, job.reason, job.ended)
        past = slurm.accounted(number)
        if past is not None:
            return _observation(past[0], past[1], "by sacct", None)
        # No accounting: the batch script's own word is left.
        try:
            code = int((Path(task.folder) / "exit").read_text())
        except (FileNotFoundError, ValueError):
            return Observation("lost", reason=f"Slurm knows nothing of job {number} any more")
        return Observation("ended", code)

    def stop(self, task: Task, handle: Handle) -> None:
        for job in slurm.queue():
            if job.number == handle["job"] and job.state in (*_WAITING, *_RUNNING):
                _own(job, task)
                # Slurm's own order of things: SIGTERM, KillWait, SIGKILL.
                with contextlib.suppress(RefusedError):
                    slurm.call("scancel", str(job.number))

    def forget(self, task: Task, handle: Handle) -> None:
        """Slurm forgets by itself."""

    def close(self) -> None:
        """Nothing is held open."""


def _own(job: SlurmJob, task: Task) -> None:
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
