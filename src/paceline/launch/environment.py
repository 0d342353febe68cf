"""The variables that a job finds in its environment: those of `torchrun`, and Paceline's own.

One process is started for each GPU (slot), so `init_process_group(init_method="env://")` works unchanged.
"""

from collections.abc import Mapping
from pathlib import Path

from paceline.launch.launchers.protocol import Share, Task

MARK = "PACELINE_ATTEMPT"
"""Carries the attempt's token: whatever process has it belongs to that attempt."""

MEANINGS: dict[str, str] = {
    "RANK": "number of this process in the job, from 0",
    "WORLD_SIZE": "processes of the job, one for each slot",
    "LOCAL_RANK": "number of this process on its server",
    "LOCAL_WORLD_SIZE": "processes of the job on this server",
    "GROUP_RANK": "number of this server in the job (also NODE_RANK)",
    "GROUP_WORLD_SIZE": "servers of the job",
    "MASTER_ADDR": "address of rank 0's server",
    "MASTER_PORT": "a port there for the job's processes to meet",
    "PACELINE_JOB": "the job's name",
    "PACELINE_RUN": "the run's id",
    "PACELINE_SERVER": "the plan's name of this server",
    "PACELINE_SERVERS": "the job's servers and their slots, `s0:2,s1:1`",
    "PACELINE_SLOTS": "the slots of this process's server that the job has, `0,1`",
    "PACELINE_REMAINING_S": "seconds that the job is expected to take from its start",
    "PACELINE_REMAINING_FILE": "a file with the expected remaining seconds, renewed at every plan and by its progress",
    "PACELINE_ITERATIONS": "iterations, as the job file has them",
    "PACELINE_STATUS": "a file to write progress to, as JSON",
    "PACELINE_SWITCH": "the switch's control address, HOST:PORT; absent without a switch",
    "PACELINE_TOKEN": "what the switch asks for at admission; absent without a switch",
    MARK: "the token of this attempt",
}


def job_environment(
    task_env: Mapping[str, str], *, run_id: str, job: str, token: str, shares: tuple[Share, ...],
    remaining_s: float, iterations: float, folder: str, switch: str = "", switch_token: str = "",
) -> dict[str, str]:  # fmt: skip
    """The variables that all processes of a job share; the job's own `env` comes first and cannot hide ours."""
    ours = {
        "WORLD_SIZE": str(sum(share.slots for share in shares)),
        "GROUP_WORLD_SIZE": str(len(shares)),
        "PACELINE_JOB": job,
        "PACELINE_RUN": run_id,
        "PACELINE_SERVERS": ",".join(f"{share.server}:{share.slots}" for share in shares),
        "PACELINE_REMAINING_S": f"{max(remaining_s, 0.001):.3f}",
        "PACELINE_REMAINING_FILE": str(Path(folder) / "remaining_s"),
        "PACELINE_ITERATIONS": f"{iterations:.0f}",
        "PYTHONUNBUFFERED": "1",
        MARK: token,
    }
    if switch:
        ours["PACELINE_SWITCH"] = switch
    if switch_token:
        ours["PACELINE_TOKEN"] = switch_token
    return {**task_env, **ours}


def rank_environments(task: Task, folder: str = "") -> list[dict[str, str]]:
    """What each rank has besides, in rank order; `folder` is the attempt's, where it runs."""
    found: list[dict[str, str]] = []
    for group, share in enumerate(task.shares):
        for local in range(share.slots):
            rank = len(found)
            found.append(
                {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(local),
                    "LOCAL_WORLD_SIZE": str(share.slots),
                    "GROUP_RANK": str(group),
                    "NODE_RANK": str(group),
                    "PACELINE_SERVER": share.server,
                    "PACELINE_SLOTS": ",".join(str(slot) for slot in share.local),
                    "PACELINE_STATUS": str(Path(folder or task.folder) / f"status-{rank}"),
                }
            )
    return found
