"""The jobs: what each training job asks for, read from validated TOML or CSV.

TOML holds `[[jobs]]` tables, CSV the same keys as columns; quantities carry units (`98 MB`, `12 ms`, `8h`).
`count = n` stands for n equal jobs. A mistake is one line with the file, the line and the key.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from paceline import toml
from paceline.errors import UserError
from paceline.models.catalogue import DEFAULT_FLOP_PER_S
from paceline.models.catalogue import profile as model_profile
from paceline.models.profile import load_profile
from paceline.schedule.contention import parts_of
from paceline.schedule.inputs.columns import read_rows
from paceline.toml import Section
from paceline.units import Seconds, Size

Exchange = Literal["ring", "in-network"]

BUCKET_BYTES = 25_000_000
"""What a ring exchanges together, unless a profile says otherwise."""


@dataclass(frozen=True)
class Job:
    """One training job: G_j GPUs for F_j iterations, gradient m_j, batch M_j, forward and backward time."""

    name: str
    """One job a name."""
    gpus: int
    """How many it runs on (G_j), all at the same time."""
    iterations: float
    """How many it does (F_j)."""
    gradient_bytes: int = 0
    """What each iteration exchanges (m_j)."""
    batch: int = 1
    """Samples an iteration and GPU (M_j)."""
    forward_s: float = 0.0
    """Forward time a sample (Df_j)."""
    backward_s: float = 0.0
    """Backward time an iteration (Db_j)."""
    arrival_s: float = 0.0
    """When it comes; nobody plans for it before."""
    priority: float = 1.0
    """Higher goes first where a policy has an order, and weighs more in the mean completion time."""
    exchange: Exchange = "ring"
    """Ring all-reduce, or sums in the switches."""
    layers: int = 8
    """Equal parts in which the backward pass releases the gradients, unless `releases` says otherwise."""
    releases: tuple[tuple[float, int], ...] = ()
    """Seconds from the start of the backward pass and bytes of gradient, in the order of release."""
    jitter: float = 0.0
    """The most by which a worker's computation varies from iteration to iteration, as a share."""
    bucket_bytes: int = BUCKET_BYTES
    """What a ring exchanges together."""
    overhead_s: float = 0.0
    """Processor time of a worker that the exchange takes an iteration, beside the passes."""
    helped: bool = False
    """Ranks that are done compute for slow ones: together they take as long as all their devices together."""

    @cached_property
    def parts(self) -> tuple[list[float], list[float]]:
        """How gradients are released, as lines of `contention.iteration`; a ring waits for whole buckets.

        What the exchange costs the processor goes on beside a ring's sending, and comes before that of a sum in the
        network, as in the simulator.
        """
        total = max(1, self.gradient_bytes)
        releases = self.releases or tuple(
            (self.backward_s * (i + 1) / self.layers, round(total / self.layers)) for i in range(self.layers)
        )
        if self.exchange == "ring":
            releases = _in_buckets(releases, self.bucket_bytes)
            if self.overhead_s > 0.0:
                releases += ((releases[-1][0] + self.overhead_s, 0),)
        elif self.overhead_s > 0.0:
            each_s = self.overhead_s / len(releases)
            releases = tuple(
                (time_s + (i + 1) * each_s, size_bytes) for i, (time_s, size_bytes) in enumerate(releases)
            )
        size = max(1, sum(size_bytes for _, size_bytes in releases))
        return parts_of([(time_s, size_bytes / size) for time_s, size_bytes in releases])

    @property
    def compute_s(self) -> float:
        """Computation of one iteration: Df_j * M_j + Db_j."""
        return self.forward_s * self.batch + self.backward_s

    def computing(self, factor: float) -> "Job":
        """The same job on devices that take so many times as long."""
        return replace(
            self,
            forward_s=self.forward_s * factor,
            backward_s=self.backward_s * factor,
            releases=tuple((time_s * factor, size_bytes) for time_s, size_bytes in self.releases),
        )


def _in_buckets(releases: Sequence[tuple[float, int]], bucket_bytes: int) -> tuple[tuple[float, int], ...]:
    """Releases fused until each has so many bytes, as DistributedDataParallel does."""
    buckets: list[tuple[float, int]] = []
    filled = 0
    for time_s, size_bytes in releases:
        filled += size_bytes
        if filled >= bucket_bytes:
            buckets.append((time_s, filled))
            filled = 0
    if filled or not buckets:
        buckets.append((releases[-1][0], filled))
    return tuple(buckets)


class JobEntry(Section):
    """A job as written in a file."""

    name: toml.Name = ""
    gpus: Annotated[int, Field(gt=0)]
    iterations: Annotated[int, Field(gt=0)]
    gradient: Size = 0
    batch: Annotated[int, Field(gt=0)] = 1
    forward: Seconds = 0.0
    backward: Seconds = 0.0
    arrival: Seconds = 0.0
    priority: Annotated[float, Field(gt=0)] = 1.0
    exchange: Exchange = "ring"
    profile: str = ""
    """A file that `paceline profile` wrote, beside the job list: instead of gradient, batch, forward and backward."""
    model: str = ""
    """One that `paceline models` lists: instead of gradient, forward and backward; the cluster has the speed."""
    layers: Annotated[int, Field(gt=0, le=10_000)] = 8
    jitter: Annotated[float, Field(ge=0, le=10)] = 0.0
    count: Annotated[int, Field(gt=0, le=100_000)] = 1
    # What `paceline run` adds; a plan does not look at it.
    command: str | list[str] = ""
    env: dict[str, str] = Field(default_factory=dict)
    workdir: str = ""
    retries: Annotated[int, Field(ge=0, le=100)] = 0

    def jobs(self, index: int, iteration: "IterationWork | None" = None) -> list[Job]:
        """The jobs of this entry; `iteration` as `iteration_of` gives it."""
        stem = self.name or f"job{index}"
        found = iteration or IterationWork(self.gradient, self.batch, self.forward, self.backward, (), 0.0)
        job = Job(
            stem,
            self.gpus,
            self.iterations,
            found.gradient_bytes,
            found.batch,
            found.forward_s,
            found.backward_s,
            self.arrival,
            self.priority,
            self.exchange,
            self.layers,
            found.releases,
            jitter=self.jitter if "jitter" in self.model_fields_set else found.jitter,
            bucket_bytes=found.bucket_bytes,
            overhead_s=found.overhead_s,
        )
        if self.count == 1:
            return [job]
        return [replace(job, name=f"{stem}-{i}") for i in range(self.count)]


class IterationWork(NamedTuple):
    """What an iteration of a worker computes and sends, from a profile or a model; the names are those of `Job`."""

    gradient_bytes: int
    batch: int
    forward_s: float
    backward_s: float
    releases: tuple[tuple[float, int], ...]
    jitter: float
    bucket_bytes: int = BUCKET_BYTES
    overhead_s: float = 0.0


def iteration_of(entry: JobEntry, folder: Path, place: str, flop_per_s: float) -> IterationWork | None:
    """By the profile or the model that an entry names, if any; a mistake is at `place`, or in the profile's file."""
    source = "profile" if entry.profile else "model"
    if not entry.profile and not entry.model:
        return None
    for key in ("model", "gradient", "batch", "forward", "backward", "layers"):
        if key in entry.model_fields_set and key != source and (source, key) != ("model", "batch"):
            raise UserError(f"give either {source} or {key}, not both", place=place)
    if entry.profile:
        seen = load_profile(folder / entry.profile)
        bucket = seen.bucket or BUCKET_BYTES
        overhead_s = seen.overhead_s("gloo" if entry.exchange == "ring" else "switch")
        return IterationWork(
            seen.gradient, 1, seen.forward, seen.backward, seen.releases, seen.jitter, bucket, overhead_s
        )
    try:
        model = model_profile(entry.model)
    except UserError as error:
        raise UserError(error.message, place=place) from None
    batch = entry.batch if "batch" in entry.model_fields_set else model.batch
    forward_s = sum(model.forward_ns(flop_per_s, batch)) / 1e9
    releases, now_s = [], 0.0
    for layer, backward_ns in reversed(
        list(zip(model.layers, model.backward_ns(flop_per_s, batch), strict=True))
    ):
        now_s += backward_ns / 1e9
        releases.append((now_s, layer.gradient_bytes))
    return IterationWork(model.gradient_bytes, batch, forward_s / batch, now_s, tuple(releases), 0.0)


class JobFile(Section):
    """The whole TOML file."""

    jobs: list[JobEntry]


def load_jobs(
    path: Path, gpus_total: int | None = None, flop_per_s: float = DEFAULT_FLOP_PER_S
) -> tuple[Job, ...]:
    """The jobs of a `.toml` or `.csv` file, in its order; the place of each mistake is named.

    With `gpus_total`, a job that asks for more GPUs than that is a mistake too. `flop_per_s` is the speed of a device,
    for jobs that name a model.
    """
    if path.suffix.lower() == ".csv":
        entries, places = _from_csv(toml.read_text(path), str(path))
        return _collect(entries, places, str(path), gpus_total, flop_per_s)
    lines = toml.key_lines(toml.read_text(path)) if path.exists() else {}
    entries = toml.load(path, JobFile).jobs
    places = [f"{path}:{lines.get(('jobs', i), 1)}" for i in range(len(entries))]
    return _collect(entries, places, str(path), gpus_total, flop_per_s)


def _from_csv(text: str, name: str) -> tuple[list[JobEntry], list[str]]:
    reader, columns = read_rows(text, name, list(JobEntry.model_fields), ("gpus", "iterations"))
    entries, places = [], []
    for row in reader:
        place = f"{name}:{reader.line_num}"
        if None in row:
            raise UserError(f"more fields than the {len(columns)} columns", place=place)
        given = {key: value.strip() for key, value in row.items() if value is not None and value.strip()}
        if not given:
            continue
        entries.append(toml.validate(given, JobEntry, place, {}))
        places.append(place)
    return entries, places


def _collect(
    entries: Sequence[JobEntry],
    places: Sequence[str],
    name: str,
    gpus_total: int | None,
    flop_per_s: float,
) -> tuple[Job, ...]:
    if not entries:
        raise UserError("the list holds no jobs", place=name)
    jobs: list[Job] = []
    seen: dict[str, str] = {}
    for index, (entry, place) in enumerate(zip(entries, places, strict=True)):
        for job in entry.jobs(index, iteration_of(entry, Path(name).parent, place, flop_per_s)):
            if job.name in seen:
                raise UserError(f"job {job.name!r} was already named at {seen[job.name]}", place=place)
            if job.compute_s <= 0 and (job.gradient_bytes == 0 or job.gpus == 1):
                raise UserError(f"job {job.name!r} takes no time: give forward or backward", place=place)
            if gpus_total is not None:
                check_fits([job], gpus_total, place)
            seen[job.name] = place
            jobs.append(job)
    return tuple(jobs)


def check_fits(jobs: Iterable[Job], gpus_total: int, place: str) -> None:
    """Refuse a job that asks for more GPUs than the whole cluster has."""
    for job in jobs:
        if job.gpus > gpus_total:
            raise UserError(
                f"job {job.name!r} asks for {job.gpus} GPUs, the cluster has {gpus_total}", place=place
            )
