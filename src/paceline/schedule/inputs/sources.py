"""Where a problem comes from: files, generators, traces, and changes to the cluster for a what-if question.

A cluster is plain data first (of a TOML file, or of the paper's generator), so that a change is an override
of a key and goes through the same validation as the file.
"""

import copy
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline import toml
from paceline.errors import UserError
from paceline.models.catalogue import DEFAULT_FLOP_PER_S
from paceline.schedule.inputs import generate, traces
from paceline.schedule.inputs.cluster import (
    ClusterFile,
    ClusterNetwork,
    DeviceSection,
    ModelSection,
    SwitchMemory,
)
from paceline.schedule.inputs.jobs import Job, check_fits, load_jobs
from paceline.schedule.model import Model, Problem

_SECTIONS: dict[str, tuple[str, ...]] = {
    "network": tuple(ClusterNetwork.model_fields),
    "device": tuple(DeviceSection.model_fields),
    "switch": tuple(SwitchMemory.model_fields),
    "model": tuple(ModelSection.model_fields),
}


class ClusterSource:
    """A cluster's plain data and where each key stands; `with_changes` answers what-if."""

    def __init__(self, name: str, data: dict[str, Any], lines: dict[toml.KeyPath, int]) -> None:
        self.name, self.data, self.lines = name, data, lines
        self.file = toml.validate(data, ClusterFile, name, lines)

    @classmethod
    def read(cls, where: str) -> "ClusterSource":
        """A TOML file, or `paper:SEED[:SERVERS]` for the paper's random servers."""
        if where.startswith("paper:"):
            numbers = _numbers(where, "--cluster", "paper:SEED[:SERVERS]", 2)
            setting = generate.PaperSetting(servers=numbers[1] if len(numbers) > 1 else 20)
            return cls(where, _paper_data(numbers[0], setting), {})
        path = Path(where)
        text = toml.read_text(path)
        return cls(where, toml.parse(text, where), toml.key_lines(text))

    def with_changes(self, changes: str) -> "ClusterSource":
        """`inter_server=100 Gbit/s`, `servers=+4`, `servers=-2`, `gpus=16` (of every server), `model.alpha=0.5`;
        several are joined by commas."""
        data = copy.deepcopy(self.data)
        lines = dict(self.lines)
        for change in changes.split(","):
            key, equals, value = (part.strip() for part in change.partition("="))
            if not equals or not key or not value:
                raise UserError(f"{change.strip()!r} is not KEY=VALUE", place="--what-if")
            if key == "servers":
                _change_servers(data, value)
                continue
            if key == "gpus":
                if not value.isdecimal() or int(value) < 1:
                    raise UserError(f"gpus={value!r}: write gpus=N for N in every server", place="--what-if")
                for group in data["servers"]:
                    group["gpus"] = int(value)
                continue
            path = next((f"{section}.{key}" for section, keys in _SECTIONS.items() if key in keys), key)
            try:
                lines[toml.apply_override(data, f"{path}={value}")] = 0
            except UserError as error:
                raise UserError(error.message, place="--what-if") from None
        try:
            return ClusterSource(self.name, data, lines)
        except UserError as error:
            raise UserError(error.message, place="--what-if") from None

    def problem(self, jobs: Sequence[Job]) -> Problem:
        return Problem(self.file.cluster(), tuple(jobs), Model.from_file(self.file))


def what_if(
    source: ClusterSource, jobs: tuple[Job, ...], changes: str
) -> tuple[ClusterSource, tuple[Job, ...]]:
    """Cluster and jobs after a change: of the cluster (`with_changes`), `without=JOB`, or `priority.JOB=9`."""
    kept: list[str] = []
    for change in changes.split(","):
        key, equals, value = (part.strip() for part in change.partition("="))
        if key == "without" and equals:
            index = _index_of(jobs, value)
            jobs = (*jobs[:index], *jobs[index + 1 :])
            if not jobs:
                raise UserError("no job would be left", place=f"--what-if {change.strip()}")
        elif key.startswith("priority.") and equals:
            index = _index_of(jobs, key.removeprefix("priority."))
            try:
                priority = float(value)
            except ValueError:
                priority = 0.0
            if not 0.0 < priority < float("inf"):
                raise UserError(
                    f"{value!r} is no priority: a number above 0, 1 is ordinary", place="--what-if"
                )
            jobs = (*jobs[:index], replace(jobs[index], priority=priority), *jobs[index + 1 :])
        else:
            kept.append(change)
    return (source.with_changes(",".join(kept)) if kept else source), jobs


def _index_of(jobs: Sequence[Job], name: str) -> int:
    names = [job.name for job in jobs]
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the first job is {names[0]!r}"
        raise UserError(f"there is no job {name!r}; {hint}", place="--what-if")
    return names.index(name)


def _change_servers(data: dict[str, Any], value: str) -> None:
    """+N: more servers like the last group; -N: without the last N."""
    if value[:1] not in ("+", "-") or not value[1:].isdecimal() or int(value[1:]) == 0:
        raise UserError(
            f"servers={value!r}: write servers=+N for N more like the last group, servers=-N for N fewer",
            place="--what-if",
        )
    number = int(value[1:])
    if value[0] == "+":
        last: Mapping[str, Any] = data["servers"][-1]
        name = f"{last.get('name', 'more') or 'more'}-added"
        data["servers"] = [*data["servers"], {**last, "name": name, "count": number}]
        return
    total = sum(int(group.get("count", 1)) for group in data["servers"])
    if number >= total:
        raise UserError(f"servers={value}: there are {total}, and one has to stay", place="--what-if")
    groups = [dict(group) for group in data["servers"]]
    while number:
        count = int(groups[-1].get("count", 1))
        if count <= number:
            groups.pop()
        else:
            groups[-1]["count"] = count - number
        number -= min(count, number)
    data["servers"] = groups


def _paper_data(seed: int, setting: generate.PaperSetting) -> dict[str, Any]:
    cluster, model = generate.paper_cluster(seed, setting), generate.paper_model(setting)
    return {
        "servers": [{"name": server.name, "gpus": server.gpus} for server in cluster.servers],
        "network": {"intra_server": cluster.intra_bps, "inter_server": cluster.inter_bps},
        "model": {
            "contention": "paper",
            "alpha": model.alpha,
            "xi1": model.xi1,
            "overhead_per_server": model.xi2_s,
            "reduce_speed": model.reduce_bps,
            "time": "slotted",
            "slot": model.slot_s,
        },
    }


def read_jobs(
    where: str, gpus_total: int | None = None, flop_per_s: float = DEFAULT_FLOP_PER_S
) -> tuple[Job, ...]:
    """A TOML or CSV file, `paper:SEED` for the paper's mix, `philly-like:SEED[:JOBS[:HOURS]]`."""
    if where.startswith("paper:"):
        return generate.paper_jobs(_numbers(where, "--jobs", "paper:SEED", 1)[0], generate.PaperSetting())
    if where.startswith("philly-like:"):
        numbers = _numbers(where, "--jobs", "philly-like:SEED[:JOBS[:HOURS]]", 3)
        jobs = numbers[1] if len(numbers) > 1 else 200
        return generate.philly_like(numbers[0], jobs, numbers[2] if len(numbers) > 2 else 24)
    return load_jobs(Path(where), gpus_total, flop_per_s)


def read_trace_jobs(
    text: str, gpus_total: int, seed: int, limit: int | None
) -> tuple[tuple[Job, ...], list[str]]:
    """The jobs of `FORMAT:PATH` that the cluster can hold, and what to tell about the others."""
    trace = traces.read_trace(text)
    fitting = [job for job in trace.jobs if job.gpus <= gpus_total]
    trace.left_out["more GPUs than the cluster has"] += len(trace.jobs) - len(fitting)
    trace.left_out += type(trace.left_out)()
    if not fitting:
        raise UserError(f"every job asks for more than the cluster's {gpus_total} GPUs", place=text)
    trace.jobs = fitting
    jobs = traces.with_models(trace, seed, limit)
    told = f"{len(jobs)} jobs read; models assigned at random from {len(generate.CATALOGUE)} (seed {seed})"
    return jobs, [told, *trace.remarks()]


def checked(jobs: tuple[Job, ...], gpus_total: int, where: str) -> tuple[Job, ...]:
    """The jobs, once each is known to fit the cluster."""
    check_fits(jobs, gpus_total, where)
    return jobs


def _numbers(text: str, place: str, form: str, most: int) -> list[int]:
    parts = text.split(":")[1:]
    if not 1 <= len(parts) <= most or not all(part.isdecimal() and len(part) <= 18 for part in parts):
        raise UserError(f"{text!r} is not {form}", place=place)
    if any(int(part) < 1 for part in parts[1:]):
        raise UserError(f"{text!r}: only the seed may be 0", place=place)
    return [int(part) for part in parts]
