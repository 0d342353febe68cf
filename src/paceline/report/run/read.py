"""A run as a report sees it: finished, stopped or still going on.

The tables are those of a run's store; the module `launch/store.py` says what each column means. Times are turned
into seconds since the run began.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline.errors import NEEDS_PANDAS, UserError, optional_module
from paceline.units import format_seconds

LAGS = ("paceline_round_lag_seconds", "paceline_arrival_lag_seconds")
"""The largest lag of each round; of runs that a switch without it served, the lag of each contribution."""
SLOTS = "paceline_slots"
SUMS = "paceline_completions_total"
FALLBACKS = "paceline_fallbacks_total"
Row = dict[str, Any]


@dataclass(frozen=True)
class Attempt:
    """One try of a job, on the slots that it held."""

    job: str
    number: int
    start_s: float
    end_s: float
    gpus: tuple[int, ...]
    servers: tuple[str, ...]
    outcome: str
    """done, failed, lost, stopped; empty: it runs."""
    reason: str
    """Why it was put there."""


@dataclass(frozen=True)
class Span:
    """A time in which something about a job stayed the same."""

    job: str
    start_s: float
    end_s: float
    what: str
    reason: str = ""


@dataclass(frozen=True)
class Use:
    """A job in the switch at one moment; counts are since it was admitted. None: not told."""

    time_s: float
    held: float | None = None
    """Aggregators."""
    preemptions: float | None = None
    sums: float | None = None
    """Chunks that were summed up in the switch."""
    fallbacks: float | None = None
    """Packets that found no aggregator, and went to their custodian."""


@dataclass(frozen=True)
class RunData:
    """All tables of a run, as rows."""

    folder: Path
    """Where the run is."""
    meta: Row
    """How it was started, its state, when it began and ended."""
    servers: list[Row]
    """Name, slots, rack and state of each."""
    jobs: list[Row]
    """What was asked for and what became of it."""
    attempts: list[Row]
    """Each try of a job."""
    placements: list[Row]
    """Which slots an attempt held, and when."""
    plans: list[Row]
    """Each time that something was planned, and what was decided."""
    events: list[Row]
    """What happened, and why."""
    samples: list[Row]
    """What jobs told of themselves."""
    switch_samples: list[Row]
    """What the switch told of each job."""
    predictions: list[Row] = field(default_factory=list)
    """What an iteration of each job was expected to take from each plan on, and what it took."""
    slowness: list[Row] = field(default_factory=list)
    """What was learned of servers that are slow, in its order."""

    @property
    def name(self) -> str:
        """The folder's."""
        return self.folder.resolve().name

    def to_dict(self) -> dict[str, Any]:
        """The run's figures, and every table as a list of rows."""
        tables = {table: getattr(self, table) for table in TABLES}
        figures = {"avg_jct_s": self.avg_jct_s, "makespan_s": self.makespan_s, "end_s": self.end_s}
        return {"name": self.name, "meta": self.meta, **figures, **tables}

    def to_dataframe(self, table: str = "jobs") -> Any:
        """One row a row of a table; those of `jobs` also have their completion time. Needs pandas."""
        if table not in TABLES:
            raise UserError(f"there is no table {table!r}; known: {', '.join(TABLES)}", place="table")
        rows: list[Row] = getattr(self, table)
        if table == "jobs":
            rows = [{**row, "jct_s": self.jct_s(row)} for row in rows]
        return optional_module("pandas", NEEDS_PANDAS).DataFrame(rows)

    def __repr__(self) -> str:
        """One line: the run's name, its state, and how many jobs are done."""
        done = sum(job["state"] == "done" for job in self.jobs)
        state = self.meta.get("state", "going on")
        return f"<RunData {self.name}: {state}, {done} of {len(self.jobs)} jobs done in {format_seconds(self.end_s)}>"

    @cached_property
    def slow_servers(self) -> dict[str, Row]:
        """The last that was learned of each server that is slow, by its name."""
        last = {row["server"]: row for row in self.slowness}
        return {server: row for server, row in last.items() if row["factor"] > 1.0}

    def at(self, when: float) -> float:
        """Seconds since the run began."""
        return when - float(self.meta["began"])

    @cached_property
    def end_s(self) -> float:
        """When the run ended, or the last that is known of it."""
        known = [
            row["time"] for rows in (self.events, self.samples, self.switch_samples) for row in rows[-1:]
        ]
        known += [row["ended"] for row in self.jobs if row["ended"]]
        if self.meta.get("state") in ("done", "failed", "stopped") and self.meta.get("ended"):
            known.append(self.meta["ended"])
        return max((self.at(when) for when in known), default=0.0)

    def jct_s(self, job: Row) -> float | None:
        """From arrival to end; None for a job that is not done."""
        if job["state"] != "done" or job["ended"] is None:
            return None
        return max(0.0, self.at(job["ended"]) - float(job["arrival_s"]))

    def parts_s(self, job: Row) -> tuple[float, float, float]:
        """A job's time in the queue, in starting, and in training: `trains_since` of its progress parts the last two.

        A job that does not tell it, or has not ended, has started at once, as far as is known.
        """
        if job["started"] is None:
            return max(0.0, self.end_s - float(job["arrival_s"])), 0.0, 0.0
        start_s, told = self.at(job["started"]), self.figure_of(job, "trains_since")
        end_s = self.end_s if job["ended"] is None else self.at(job["ended"])
        trains_s = self.at(float(told)) if isinstance(told, int | float) else start_s
        trains_s = min(max(trains_s, start_s), end_s)
        return max(0.0, start_s - float(job["arrival_s"])), trains_s - start_s, max(0.0, end_s - trains_s)

    @cached_property
    def avg_jct_s(self) -> float | None:
        """Mean completion time of the jobs that are done."""
        times = [time for job in self.jobs if (time := self.jct_s(job)) is not None]
        return sum(times) / len(times) if times else None

    @cached_property
    def makespan_s(self) -> float | None:
        """From the run's start to the last end; None before all are done."""
        if not self.jobs or any(job["state"] != "done" for job in self.jobs):
            return None
        return max(self.at(job["ended"]) for job in self.jobs)

    @cached_property
    def slots(self) -> int:
        """Of all servers together."""
        return sum(int(server["slots"]) for server in self.servers)

    @cached_property
    def tries(self) -> list[Attempt]:
        """Every attempt that held slots."""
        rows: dict[tuple[str, int], list[Row]] = {}
        for row in self.placements:
            rows.setdefault((row["job"], row["attempt"]), []).append(row)
        how = {(row["job"], row["attempt"]): row for row in self.attempts}
        found = []
        for (job, number), parts in rows.items():
            ends = [self.end_s if part["end"] is None else self.at(part["end"]) for part in parts]
            attempt = how.get((job, number), {})
            gpus = tuple(sorted(int(gpu) for part in parts for gpu in part["gpus"]))
            servers = tuple(part["server"] for part in parts)
            start_s = min(self.at(part["start"]) for part in parts)
            outcome = attempt.get("outcome") or ""
            found.append(Attempt(job, number, start_s, max(ends), gpus, servers, outcome, parts[0]["reason"]))
        return found

    @cached_property
    def paths(self) -> list[Span]:
        """Over which path each job's gradients went; the first that an attempt tells holds from its start."""
        return [
            span
            for each in self.tries
            for span in self._spans(each, lambda row: (row["path"] or "", ""), True)
        ]

    @cached_property
    def stragglers(self) -> list[Span]:
        """Who was slow, in a job's own words: the keys `straggler` and `straggler_reason` of its progress."""
        return [span for each in self.tries for span in self._spans(each, _straggler_of, False)]

    @cached_property
    def _samples_by_attempt(self) -> dict[tuple[str, int], list[Row]]:
        found: dict[tuple[str, int], list[Row]] = {}
        for row in self.samples:
            found.setdefault((row["job"], row["attempt"]), []).append(row)
        return found

    def _spans(
        self, each: Attempt, told: Callable[[Row], tuple[str, str]], from_start: bool
    ) -> Iterator[Span]:
        rows = self._samples_by_attempt.get((each.job, each.number), [])
        if from_start:
            # A line that says nothing about the path says nothing new.
            rows = [row for row in rows if told(row)[0]]
        # A planner looks now and then: it may hear the last word of an attempt after its end.
        seen = [(min(max(self.at(row["time"]), each.start_s), each.end_s), *told(row)) for row in rows]
        begin = 0
        for i in range(1, len(seen) + 1):
            if i < len(seen) and seen[i][1] == seen[begin][1]:
                continue
            if seen[begin][1]:
                start_s = each.start_s if from_start and begin == 0 else seen[begin][0]
                end_s = seen[i][0] if i < len(seen) else each.end_s
                yield Span(each.job, start_s, end_s, seen[begin][1], seen[begin][2])
            begin = i

    def job_of(self, name: str) -> str:
        """The run's job behind a name in the switch, where each process group of a job is one: `JOB/GROUP`."""
        job, slash, _ = name.rpartition("/")
        return job if slash and any(row["name"] == job for row in self.jobs) else name

    @cached_property
    def switch_use(self) -> "dict[str, list[Use]]":
        """What the switch told of each job, in the order of time; several groups of one job are added up."""
        found: dict[str, dict[float, Use]] = {}
        for row in self.switch_samples:
            if row["job"] is None:
                continue
            uses = found.setdefault(self.job_of(row["job"]), {})
            time_s, figures = self.at(row["time"]), row["figures"]
            before = uses.get(time_s, Use(time_s))
            uses[time_s] = Use(
                time_s,
                _plus(before.held, row["slots_in_use"]),
                _plus(before.preemptions, row["preemptions"]),
                _plus(before.sums, figures.get(SUMS)),
                _plus(before.fallbacks, figures.get(FALLBACKS)),
            )
        return {job: list(uses.values()) for job, uses in found.items()}

    @cached_property
    def switch_slots(self) -> int | None:
        """Aggregators of the switch, if it has told."""
        whole: dict[str, float] = next((r["figures"] for r in self.switch_samples if r["job"] is None), {})
        slots = [value for key, value in whole.items() if key.partition(",")[0] == SLOTS]
        return round(sum(slots)) if slots else None

    @cached_property
    def lags_s(self) -> dict[str, dict[int, float]]:
        """How long after the first a worker's contributions came at worst in a round, on average, by job and worker."""
        last = {row["job"]: row["figures"] for row in self.switch_samples if row["job"] is not None}
        found: dict[str, dict[int, float]] = {}
        for name_there, figures in last.items():
            job = self.job_of(name_there)
            for worker, (count, total_s) in lags_of(figures).items():
                found.setdefault(job, {})[worker] = total_s / count
        return found

    def worker_name(self, job: str, worker: int) -> str:
        """A worker of a job's last attempt as the switch counts them: its server, or its rank and server."""
        shares = [row for row in self.placements if row["job"] == job]
        last = [row for row in shares if row["attempt"] == max(each["attempt"] for each in shares)]
        last.sort(key=lambda row: min(row["gpus"], default=0))
        names, _ = workers_of(last, len(self.lags_s.get(job, {})))
        return names[worker] if worker < len(names) else f"worker {worker}"

    def figure_of(self, job: Row, key: str) -> Any:
        """A figure of the job's last progress, e.g. its loss."""
        return (job["progress"] or {}).get(key)


def lags_of(figures: Mapping[str, float]) -> dict[int, tuple[float, float]]:
    """Of a job's figures: worker -> (rounds, seconds of their largest lags together), since its admission."""
    metric = next((name for name in LAGS if any(key.startswith(f"{name}_count") for key in figures)), LAGS[0])
    found: dict[int, tuple[float, float]] = {}
    for key, count in figures.items():
        name, _, worker = key.partition(",worker=")
        if name == f"{metric}_count" and worker.isdigit() and count:
            found[int(worker)] = (count, figures.get(f"{metric}_sum,worker={worker}", 0.0))
    return found


def workers_of(shares: list[Row], workers: int) -> tuple[list[str], list[int]]:
    """Names and GPUs of a job's workers: a server each, where its ranks sum in its memory first; else a rank each."""
    if workers <= len(shares):
        return [row["server"] for row in shares], [row["slots"] for row in shares]
    names = [row["server"] for row in shares for _ in range(row["slots"])]
    return [f"rank {rank} on {server}" for rank, server in enumerate(names)], [1] * len(names)


def prediction_error(row: Row) -> float | None:
    """By how much a prediction was too long (above 0) or too short; None if nothing was measured."""
    return row["predicted_s"] / row["measured_s"] - 1.0 if row["measured_s"] else None


def _plus(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else a + b


def _straggler_of(row: Row) -> tuple[str, str]:
    who = row["figures"].get("straggler")
    if who is None or who == "" or who is False:
        return "", ""
    shown = f"rank {who}" if isinstance(who, int) else str(who)
    return shown, str(row["figures"].get("straggler_reason", ""))


TABLES = tuple(each.name for each in fields(RunData) if each.name not in ("folder", "meta"))


def run_of(folder: Path, meta: Row, tables: Mapping[str, list[Row]]) -> RunData:
    """The run that a store holds, as its reader gives it."""
    meta.setdefault("began", min((row["time"] for row in tables["events"]), default=time.time()))
    return RunData(folder, meta, **tables)
