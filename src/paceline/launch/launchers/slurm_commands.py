"""Slurm's commands, as this package calls them: one answer each, or an error that says which kind it is."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.errors import UserError
from paceline.launch.launchers.protocol import RefusedError, UnreachableError

TIMEOUT_S = 30.0
_AWAY = (
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
    nodes: str
    ended: float


def call(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Standard output of a command; `UnreachableError` if Slurm does not answer, `RefusedError` if it says no."""
    if shutil.which(arguments[0]) is None:
        raise UserError(f"{arguments[0]} is not installed here", place="--launcher slurm")
    try:
        done = subprocess.run(
            arguments, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
        )  # fmt: skip
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
        nodes=str(entry.get("nodes") or ""),
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


@dataclass(frozen=True)
class Node:
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


def nodes() -> dict[str, Node]:
    """All nodes."""
    found = {}
    for line in call("scontrol", "show", "node", "--oneliner").splitlines():
        given: dict[str, str] = dict(_FIELD.findall(line))
        if "NodeName" in given:
            found[given["NodeName"]] = Node(
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
