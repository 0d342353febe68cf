"""Readers of public cluster traces: Philly, Helios, Alibaba PAI 2020 and the Standard Workload Format 2.2.

Each reader yields `TraceJob`s and counts what it had to leave out or to assume, by reason; nothing is filled
in silently. A trace says neither model nor iterations: `with_models` assigns a profile of the catalogue to
each job by a seed, and takes the recorded run time as the computation of the job.

Formats as published: Philly `cluster_job_log` (JSON list of jobs with attempts), Helios `cluster_log.csv`,
Alibaba `pai_task_table.csv` (no header; `pai_job_table.csv` beside it gives submission times), SWF text.
"""

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from paceline import json_text
from paceline.errors import UserError
from paceline.names import shown
from paceline.schedule.inputs.generate import CATALOGUE, CatalogueModel, job_of
from paceline.schedule.inputs.jobs import Job
from paceline.toml import read_text


@dataclass(frozen=True)
class TraceJob:
    """What every trace says about a job."""

    name: str
    gpus: int
    submit_s: float
    run_s: float


@dataclass
class Trace:
    """The usable jobs by submission, and what was left out or assumed."""

    jobs: list[TraceJob]
    left_out: Counter[str] = field(default_factory=Counter)
    assumed: Counter[str] = field(default_factory=Counter)

    def remarks(self) -> list[str]:
        """One line a kind of remark, for the user."""
        lines = [f"{_jobs(count)} left out: {reason}" for reason, count in sorted(self.left_out.items())]
        return lines + [f"{_jobs(count)}: {reason}" for reason, count in sorted(self.assumed.items())]


def _jobs(count: int) -> str:
    return f"{count} job" if count == 1 else f"{count} jobs"


def read_trace(text: str) -> Trace:
    """The trace that `FORMAT:PATH` names."""
    kind, colon, path = text.partition(":")
    if not colon or kind not in READERS or not path:
        known = ", ".join(READERS)
        raise UserError(f"{text!r} is not FORMAT:PATH with FORMAT one of {known}", place="--trace")
    trace = READERS[kind](Path(path))
    if not trace.jobs:
        reasons = "; ".join(trace.remarks()) or "the file is empty"
        raise UserError(f"holds no usable job ({reasons})", place=path)
    trace.jobs.sort(key=lambda job: job.submit_s)
    return trace


def with_models(
    trace: Trace, seed: int, limit: int | None = None, profiles: Sequence[CatalogueModel] = CATALOGUE
) -> tuple[Job, ...]:
    """Schedulable jobs: a profile each by the seed, arrivals from the first submission on."""
    chosen = trace.jobs[:limit]
    rng = np.random.default_rng((seed, 4))
    picks = rng.integers(len(profiles), size=len(chosen))
    zero = chosen[0].submit_s
    return tuple(
        job_of(shown(job.name), job.gpus, job.submit_s - zero, job.run_s, profiles[pick])
        for job, pick in zip(chosen, picks, strict=True)
    )


def read_philly(path: Path) -> Trace:
    """Philly: GPUs are those of the last attempt, the run time is the sum over the attempts."""
    data = json_text.parse(read_text(path), str(path))
    if not isinstance(data, list) or not all(isinstance(entry, dict) for entry in data):
        raise UserError("is not a list of jobs", place=str(path))
    trace = Trace([])
    for number, entry in enumerate(data):
        for key in ("jobid", "submitted_time", "attempts"):
            if key not in entry:
                raise UserError(f"key {key!r} is missing", place=f"{path}: job {number}")
        submitted = _when(entry["submitted_time"])
        spans, unfinished = [], 0
        for attempt in _tables(entry, "attempts", f"{path}: job {number}"):
            begin, end = _when(attempt.get("start_time")), _when(attempt.get("end_time"))
            if begin is None or end is None or end <= begin:
                unfinished += 1
            else:
                spans.append((end - begin, _philly_gpus(attempt, f"{path}: job {number}")))
        if submitted is None:
            trace.left_out["no submission time"] += 1
        elif not spans:
            trace.left_out["no attempt with a start and an end"] += 1
        elif spans[-1][1] == 0:
            trace.left_out["no GPUs recorded"] += 1
        else:
            trace.assumed["attempts without a start or an end were not counted"] += bool(unfinished)
            run_s = sum(span for span, _ in spans)
            trace.jobs.append(TraceJob(str(entry["jobid"]), spans[-1][1], submitted, run_s))
    return _cleaned(trace)


def _philly_gpus(attempt: dict[str, Any], place: str) -> int:
    """Of an attempt, on all its machines."""
    count = 0
    for machine in _tables(attempt, "detail", place):
        gpus = machine.get("gpus") or []
        if not isinstance(gpus, list):
            raise UserError("'gpus' is not a list", place=place)
        count += len(gpus)
    return count


def _tables(entry: dict[str, Any], key: str, place: str) -> list[dict[str, Any]]:
    """A list of tables; what is not there has none."""
    found = entry.get(key) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise UserError(f"{key!r} is not a list of tables", place=place)
    return found


def read_helios(path: Path) -> Trace:
    """Helios: one CSV row a job, with a header."""
    needed = ("job_id", "gpu_num", "submit_time", "start_time", "end_time")
    trace = Trace([])
    for _, row in _csv_rows(path, needed):
        submitted, gpus = _when(row["submit_time"]), _number(row["gpu_num"])
        begin, end = _when(row["start_time"]), _when(row["end_time"])
        if gpus is None or gpus < 1:
            trace.left_out["no GPUs (a CPU job)" if gpus == 0 else "no GPU count"] += 1
        elif submitted is None:
            trace.left_out["no submission time"] += 1
        elif begin is None or end is None or end <= begin:
            trace.left_out["no run time"] += 1
        else:
            trace.jobs.append(TraceJob(row["job_id"], int(gpus), submitted, end - begin))
    return _cleaned(trace)


PAI_TASK = ("job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem",
            "plan_gpu", "gpu_type")  # fmt: skip
PAI_JOB = ("job_name", "inst_id", "user", "status", "start_time", "end_time")


def read_pai(path: Path) -> Trace:
    """Alibaba PAI 2020: GPUs are instances x plan_gpu / 100 over the job's tasks, rounded up."""
    folder = path if path.is_dir() else path.parent
    tasks = folder / "pai_task_table.csv" if path.is_dir() else path
    submitted = {}
    if (folder / "pai_job_table.csv").exists():
        for _, row in _csv_rows(folder / "pai_job_table.csv", PAI_JOB, header=False):
            submitted[row["job_name"]] = _number(row["start_time"])
    trace = Trace([])
    gathered: dict[str, list[dict[str, str]]] = {}
    for _, row in _csv_rows(tasks, PAI_TASK, header=False):
        gathered.setdefault(row["job_name"], []).append(row)
    for name, rows in gathered.items():
        shares, spans = 0.0, []
        for row in rows:
            plan, instances = _number(row["plan_gpu"]), _number(row["inst_num"])
            begin, end = _number(row["start_time"]), _number(row["end_time"])
            if plan is None or instances is None or plan <= 0:
                continue
            shares += plan * instances / 100.0
            if begin is not None and end is not None and end > begin:
                spans.append((begin, end))
        if shares <= 0:
            trace.left_out["no GPUs planned"] += 1
        elif not spans:
            trace.left_out["no run time"] += 1
        else:
            trace.assumed["a fraction of a GPU was rounded up"] += shares != int(shares)
            launch = min(begin for begin, _ in spans)
            at = submitted.get(name)
            if at is None:
                trace.assumed["no submission time; the first task's launch was taken"] += 1
                at = launch
            run_s = max(end for _, end in spans) - launch
            trace.jobs.append(TraceJob(name, int(np.ceil(shares)), at, run_s))
    return _cleaned(trace)


def read_swf(path: Path) -> Trace:
    """SWF 2.2: 18 numbers a line, -1 for unknown, `;` comments; a processor stands for a GPU."""
    trace = Trace([])
    for number, line in enumerate(read_text(path).splitlines(), 1):
        text = line.split(";", 1)[0].strip()
        if not text:
            continue
        fields = text.split()
        if len(fields) != 18:
            raise UserError(f"has {len(fields)} fields, not 18", place=f"{path}:{number}")
        values = [_number(part) for part in fields]
        if any(value is None for value in values):
            raise UserError("holds something that is not a number", place=f"{path}:{number}")
        job, submit, _, run, allocated, *_ = (float(value) for value in values if value is not None)
        asked = float(fields[7])
        if run <= 0:
            trace.left_out["no run time"] += 1
        elif submit < 0:
            trace.left_out["no submission time"] += 1
        elif allocated < 1 and asked < 1:
            trace.left_out["no processors"] += 1
        else:
            trace.assumed["allocated processors unknown; the requested ones were taken"] += allocated < 1
            gpus = int(allocated if allocated >= 1 else asked)
            trace.jobs.append(TraceJob(f"swf{job:g}", gpus, submit, run))
    return _cleaned(trace)


READERS: dict[str, Callable[[Path], Trace]] = {
    "philly": read_philly,
    "helios": read_helios,
    "pai": read_pai,
    "swf": read_swf,
}


def _csv_rows(
    path: Path, columns: Sequence[str], header: bool = True
) -> Iterator[tuple[int, dict[str, str]]]:
    lines = csv.reader(read_text(path).splitlines())
    names = [name.strip() for name in next(lines, [])] if header else list(columns)
    missing = [column for column in columns if column not in names]
    if missing:
        raise UserError(f"columns are missing: {', '.join(missing)}", place=f"{path}:1")
    for row in lines:
        if not row:
            continue
        if len(row) != len(names):
            raise UserError(f"has {len(row)} columns, not {len(names)}", place=f"{path}:{lines.line_num}")
        yield lines.line_num, dict(zip(names, row, strict=True))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    # No time and no number of GPUs is larger, and sums of so many stay exact.
    return value if abs(value) < 1e12 else None


def _when(text: Any) -> float | None:
    # Seconds since the epoch; the traces write local dates without a zone, of which only differences count.
    if not isinstance(text, str) or text.strip() in ("", "None", "null"):
        return None
    try:
        moment = datetime.fromisoformat(text.strip().removesuffix(" PST").removesuffix(" PDT"))
    except ValueError:
        return None
    return (moment.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()


def _cleaned(trace: Trace) -> Trace:
    trace.assumed += Counter()
    return trace
