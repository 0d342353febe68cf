"""The job file of a run: the plan's `[[jobs]]`, each with a `command` and, if wanted, `env`, `workdir`, `retries`.

The same file serves `paceline plan`, which does not look at these keys. A job goes to disk as plain data with
the run, so that a run that is resumed needs neither the file nor the folder it was started from.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline import toml
from paceline.errors import UserError
from paceline.schedule.inputs.jobs import Exchange, Job, JobFile, load_jobs


@dataclass(frozen=True)
class RunJob:
    """A job that can be run: what the scheduler sees of it, and what is started."""

    job: Job
    command: tuple[str, ...]
    """Program and arguments, started once for each GPU (slot)."""
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""
    retries: int = 0
    """How often a job that failed by itself is started again; the loss of a server does not count."""

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "RunJob":
        return cls(
            Job(**data["job"]), tuple(data["command"]), dict(data["env"]), data["workdir"], data["retries"]
        )


def load_run_jobs(
    path: Path, gpus_total: int | None = None, exchange: Exchange = "ring"
) -> tuple[RunJob, ...]:
    """The jobs of a TOML file in its order, or one line that names the mistake.

    `exchange`: how jobs whose file does not say it are expected to exchange gradients.
    """
    if path.suffix.lower() != ".toml":
        raise UserError("a run is described in TOML ([[jobs]] with a command)", place=str(path))
    planned = {job.name: job for job in load_jobs(path, gpus_total)}
    lines = toml.key_lines(toml.read_text(path))
    found = []
    for index, entry in enumerate(toml.load(path, JobFile).jobs):
        place = f"{path}:{lines.get(('jobs', index), 1)}"
        argv = ("/bin/sh", "-c", entry.command) if isinstance(entry.command, str) else tuple(entry.command)
        if not entry.command or not all(part.strip() for part in argv[:1]):
            name = entry.name or f"job{index}"
            raise UserError(f'job {name!r} has no command: give command = "..."', place=place)
        workdir = Path(entry.workdir).expanduser().resolve()
        if not workdir.is_dir():
            raise UserError(f"workdir {entry.workdir!r} is no folder", place=place)
        for name in entry.env:
            if not name or "=" in name or "\0" in name:
                raise UserError(f"env: {name!r} cannot be the name of a variable", place=place)
        how = entry.exchange if "exchange" in entry.model_fields_set else exchange
        found += [
            RunJob(
                dataclasses.replace(planned[job.name], exchange=how),
                argv,
                entry.env,
                str(workdir),
                entry.retries,
            )
            for job in entry.jobs(index)
        ]
    return tuple(found)
