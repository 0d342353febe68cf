"""The jobs of a run: what their file asks for, and the progress that they tell.

The file is the plan's: `[[jobs]]`, each with a `command` and, if wanted, `env`, `workdir`, `retries`, keys that
`paceline plan` does not look at. A job goes to disk as plain data with the run, so that a run that is resumed needs
neither the file nor the folder it was started from.

Progress is one JSON object with any of `iteration`, `rate`, `path`, and more if the job likes. A job may print a line
`PACELINE_STATUS {"iteration": 12, "rate": 3.4, "path": "switch"}`, or write the object to the file that the variable
PACELINE_STATUS names (the last whole line counts). Rank 0 speaks for the job. What every rank may tell, in a file of
its own, is `pace_s`: how long it computes by itself in an iteration, or in any part that is alike on all ranks. What
does not parse is not progress, and no error. A job that tells nothing is counted (`paceline.torch.progress`, in the
file `progress-0`); what it tells itself goes before what was counted, key by key.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline import json_text, toml
from paceline.errors import UserError
from paceline.models.catalogue import DEFAULT_FLOP_PER_S
from paceline.names import shown
from paceline.schedule.inputs.jobs import Exchange, Job, JobFile, load_jobs
from paceline.toml import shortened
from paceline.whole_files import bytes_from, last_bytes

PREFIX = "PACELINE_STATUS "
BACKEND_PREFIX = "PACELINE_BACKEND "
"""Of the line in which rank 0 tells its backend, as a job with PACELINE_BACKEND=auto prints it."""
PATH_LENGTH_MAX = 24
BACKEND_LENGTH_MAX = 400
ITERATION_MAX, RATE_MIN, RATE_MAX = 1e15, 1e-9, 1e9
"""An iteration or a rate beyond these is none, since nothing can be reckoned with it; a smaller rate is 0."""
NAME_BYTES_MAX = 200
"""Of a job: an attempt's folder, and its parts in other systems, are called after it."""
CHUNK_BYTES = 1 << 20
"""Of a log, read at a time."""
LINE_BYTES_MAX = 1 << 16
PACE_MIN_S, PACE_MAX_S = 1e-6, 1e6
RANKS_ASKED = 256
"""So many ranks of a job may say how long they compute; the others are like their servers' first ones."""


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
        job = Job(**data["job"])
        releases = tuple((float(time_s), int(size)) for time_s, size in job.releases)
        return cls(
            dataclasses.replace(job, releases=releases),
            tuple(data["command"]),
            dict(data["env"]),
            data["workdir"],
            data["retries"],
        )


def load_run_jobs(
    path: Path,
    gpus_total: int | None = None,
    exchange: Exchange = "ring",
    flop_per_s: float = DEFAULT_FLOP_PER_S,
) -> tuple[RunJob, ...]:
    """The jobs of a TOML file in its order, or one line that names the mistake.

    `exchange`: how jobs whose file does not say it are expected to exchange gradients. `flop_per_s`: a device's speed.
    """
    if path.suffix.lower() != ".toml":
        raise UserError("a run is described in TOML ([[jobs]] with a command)", place=str(path))
    planned = {job.name: job for job in load_jobs(path, gpus_total, flop_per_s)}
    lines = toml.key_lines(toml.read_text(path))
    found = []
    for index, entry in enumerate(toml.load(path, JobFile).jobs):
        place = f"{path}:{lines.get(('jobs', index), 1)}"
        argv = ("/bin/sh", "-c", entry.command) if isinstance(entry.command, str) else tuple(entry.command)
        if not entry.command or not all(part.strip() for part in argv[:1]):
            name = entry.name or f"job{index}"
            raise UserError(f'job {name!r} has no command: give command = "..."', place=place)
        workdir = _folder(entry.workdir)
        if workdir is None:
            raise UserError(f"workdir {shortened(entry.workdir)} is no folder", place=place)
        if any("\0" in text for text in (*argv, *entry.env.values())):
            raise UserError("a command or a variable with a null character cannot be started", place=place)
        for name in entry.env:
            if not name or "=" in name or "\0" in name:
                raise UserError(f"env: {name!r} cannot be the name of a variable", place=place)
        for job in entry.jobs(index):
            if "/" in job.name or job.name.startswith("."):
                raise UserError(f"job {job.name!r}: a name becomes a folder, so no slash in it", place=place)
            if len(job.name.encode()) > NAME_BYTES_MAX:
                what = f"a name becomes a folder, so it has at most {NAME_BYTES_MAX} bytes"
                raise UserError(f"job {shortened(job.name)}: {what}", place=place)
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


def _folder(text: str) -> Path | None:
    try:
        path = Path(text).expanduser().resolve()
        return path if path.is_dir() else None
    except (OSError, ValueError, RuntimeError):  # too long, a null character, a home of nobody
        return None


@dataclass(frozen=True)
class Progress:
    """The last that a job told."""

    iteration: float | None
    rate: float | None
    """Iterations a second."""
    path: str | None
    """`switch`, `custodian` or `ring` (which is also Gloo); another name is kept as it is told."""
    all: dict[str, Any]
    """The whole object."""

    @property
    def rest(self) -> dict[str, Any]:
        return {key: value for key, value in self.all.items() if key not in ("iteration", "rate", "path")}


def parse_progress(text: str) -> Progress | None:
    """The progress of one line without its prefix; None if it is none."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return progress_of(json_text.storable(data)) if isinstance(data, dict) else None


def progress_of(data: dict[str, Any]) -> Progress:
    """The progress that an object tells."""
    iteration = _number(data.get("iteration"), 0.0, ITERATION_MAX)
    rate = _number(data.get("rate"), 0.0, RATE_MAX)
    if rate is not None and rate < RATE_MIN:
        rate = 0.0
    return Progress(iteration, rate, _path(data.get("path")), data)


def _parse_backend(text: str) -> dict[str, str] | None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    names = ("used", "asked", "reason")
    if not isinstance(data, dict) or not all(isinstance(data.get(name), str) for name in names):
        return None
    return {name: shown(data[name][:BACKEND_LENGTH_MAX]) for name in names}


def _path(value: object) -> str | None:
    if not isinstance(value, str) or not 0 < len(value) <= PATH_LENGTH_MAX or not value.isprintable():
        return None
    return "ring" if value == "gloo" else value


def _number(value: object, low: float, high: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Compared as it is: a whole number may be too large for a float.
    return float(value) if low <= value <= high else None


class ProgressTail:
    """Follows rank 0's log and status file of one attempt."""

    def __init__(self, folder: Path) -> None:
        self.log, self.status = folder / "rank-0.log", folder / "status-0"
        self._offset = 0
        self._rest = b""
        self.counted = folder / "progress-0"
        self._seen: dict[Path, bytes] = {}
        self._told: dict[str, Any] = {}
        """The last that the job said itself."""
        self._own: set[str] = set()
        """The keys that it has ever told: these are not counted for it."""
        self._counted: dict[str, Any] = {}
        self.backend: dict[str, str] | None = None
        """What was read last of the backend: `used`, `asked`, `reason`."""
        self._paces_s: dict[int, float] = {}
        """By rank, as each told it last."""

    def read(self) -> Progress | None:
        """The newest progress since the last call, if there is any; a long log is read in pieces."""
        newest = None
        while lines := self._log_lines():
            for line in lines:
                if line.startswith(PREFIX):
                    newest = parse_progress(line[len(PREFIX) :]) or newest
                elif line.startswith(BACKEND_PREFIX):
                    self.backend = _parse_backend(line[len(BACKEND_PREFIX) :]) or self.backend
        newest = self._from_file(self.status) or newest
        counted = self._from_file(self.counted)
        if newest is None and counted is None:
            return None
        self._counted = counted.all if counted is not None else self._counted
        if newest is not None:
            self._told = newest.all
            self._own.update(newest.all)
        missing = {key: value for key, value in self._counted.items() if key not in self._own}
        return progress_of(missing | self._told)

    def paces_s(self, ranks: int) -> dict[int, float]:
        """How long each rank computes by itself, as far as ranks tell: `paces_s` of all, or each one's `pace_s`.

        Ranks other than the first have their say in files of their own.
        """
        for rank in range(1, min(ranks, RANKS_ASKED)):
            for name in ("status", "progress"):
                told = self._from_file(self.status.with_name(f"{name}-{rank}"))
                if told is not None:
                    self._note_pace(rank, told.all.get("pace_s"))
        first = {**self._counted, **self._told}
        self._note_pace(0, first.get("pace_s"))
        of_all = first.get("paces_s")
        if isinstance(of_all, list) and len(of_all) == ranks:
            for rank, pace_s in enumerate(of_all):
                self._note_pace(rank, pace_s)
        return self._paces_s

    def _note_pace(self, rank: int, told: object) -> None:
        pace_s = _number(told, PACE_MIN_S, PACE_MAX_S)
        if pace_s is not None:
            self._paces_s[rank] = pace_s

    def _log_lines(self) -> list[str]:
        data = bytes_from(self.log, self._offset, CHUNK_BYTES)
        self._offset += len(data)
        *whole, rest = (self._rest + data).split(b"\n")
        # A line without an end must not grow in memory for ever; it is no progress line of ours.
        self._rest = rest if len(rest) <= LINE_BYTES_MAX else b""
        return [line.decode(errors="replace") for line in whole]

    def _from_file(self, path: Path) -> Progress | None:
        data, _ = last_bytes(path, LINE_BYTES_MAX)
        if data == self._seen.get(path, b""):
            return None
        self._seen[path] = data
        for line in reversed(data.decode(errors="replace").splitlines()):
            found = parse_progress(line.removeprefix(PREFIX))
            if found is not None:
                return found
        return None
