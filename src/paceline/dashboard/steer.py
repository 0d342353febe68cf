"""What somebody with the token asks of a run from the page; the run's planner takes it (`launch/control.py`)."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.launch import control

BY = "the dashboard"
WAIT_S = 3.0
"""So long the page waits for the planner's word."""


class CommandError(Exception):
    """A command that was not passed on; `status` is that of HTTP."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def steer(folder: Path, body: Mapping[str, Any]) -> dict[str, Any]:
    """Pass a command on and wait for its outcome: `state` (asked, done or refused) and a line for people."""
    kind, job = body.get("kind"), body.get("job")
    if not isinstance(kind, str) or (job is not None and not isinstance(job, str)):
        raise CommandError("'kind' is the name of a command, 'job' that of a job")
    try:
        if kind == "add":
            number = _add(folder, body.get("jobs"))
        else:
            argument = {"priority": body["priority"]} if "priority" in body else {}
            number = control.ask(folder, kind, job=job, argument=argument, by=BY)
        row = control.wait(folder, number, WAIT_S)
    except UserError as error:
        raise CommandError(str(error.message), 400) from None
    waits = row["state"] == "asked" and not control.planner_alive(folder)
    outcome = (
        "no planner is alive: it is taken by the next (paceline run --resume)" if waits else row["outcome"]
    )
    return {"id": number, "state": row["state"], "outcome": outcome}


def _add(folder: Path, jobs: Any) -> int:
    if not isinstance(jobs, str) or not jobs.strip():
        raise CommandError("'jobs' is the text of a job file: [[jobs]] with name, gpus, iterations, command")
    with tempfile.TemporaryDirectory(prefix="paceline-") as made:
        path = Path(made) / "jobs.toml"
        try:
            path.write_text(jobs, encoding="utf-8")
            return control.ask_to_add(folder, path, by=BY)
        except UserError as error:
            # The file's place is ours; its line is the user's.
            raise CommandError(str(error).replace(str(path), "line"), 400) from None
        except UnicodeEncodeError:
            raise CommandError("'jobs' is no Unicode", 400) from None
