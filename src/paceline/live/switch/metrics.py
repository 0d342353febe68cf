"""The switch's numbers for Prometheus; `paceline.describe` makes the table of them in docs/switch.md.

Everything is read when it is asked for, from words that the shards count in; nothing is kept here. A job's numbers
end with the job.
"""

from collections.abc import Iterator
from typing import Any

from paceline.core.switch.program import (
    COMPLETIONS,
    COUNTER_NAMES,
    FALLBACKS,
    FLUSHES,
    PREEMPTIONS,
    REMINDERS,
)
from paceline.exposition import ExposedSample, exposed
from paceline.live.switch.daemon import LiveSwitch
from paceline.live.switch.shard_state import DROP_REASONS

METRICS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "paceline_jobs": ("gauge", (), "admitted jobs"),
    "paceline_draining": ("gauge", (), "1 while the switch takes no new jobs"),
    "paceline_evictions_total": ("counter", (), "jobs evicted because nobody renewed their lease"),
    "paceline_slots": ("gauge", ("shard",), "aggregators of a shard"),
    "paceline_slots_used": ("gauge", ("job", "name", "shard"), "aggregators that a job holds"),
    "paceline_slot_seconds_total": (
        "counter",
        ("job", "name"),
        "aggregators that a job held, times the seconds it held them",
    ),
    "paceline_work_seconds_total": ("counter", ("job", "name"), "the shards' time that a job took"),
    "paceline_taken_ratio": (
        "gauge",
        ("job", "name", "shard"),
        "part of a job's packets that the socket takes: below 1 where it floods a crowded shard",
    ),
    "paceline_completions_total": ("counter", ("job", "name"), "sums that were completed in the switch"),
    "paceline_preemptions_total": (
        "counter",
        ("job", "name"),
        "aggregators that a job took from another chunk",
    ),
    "paceline_fallbacks_total": (
        "counter",
        ("job", "name"),
        "packets without a place, sent on to their custodian",
    ),
    "paceline_reminders_total": ("counter", ("job", "name"), "partial sums given out to a reminder"),
    "paceline_flushes_total": ("counter", ("job", "name"), "partial sums given out to a resend"),
    "paceline_drops_total": (
        "counter",
        ("job", "name", "reason"),
        'packets dropped; job "" is none of the admitted',
    ),
    "paceline_packets_total": ("counter", ("job", "name", "direction"), "genuine packets in, packets out"),
    "paceline_bytes_total": ("counter", ("job", "name", "direction"), "their bytes, from the header on"),
    "paceline_arrival_lag_seconds": (
        "summary",
        ("job", "name", "worker"),
        "how long after the first contribution to a chunk the worker's came",
    ),
    "paceline_round_lag_seconds": (
        "summary",
        ("job", "name", "worker"),
        "the largest such lag of each round, which is what a worker sends between two pauses: mostly an iteration",
    ),
    "paceline_batches_total": ("counter", ("shard",), "batches of packets that a shard has worked on"),
    "paceline_faults_injected_total": (
        "counter",
        ("shard",),
        "packets lost, doubled or late by --drop and the like",
    ),
}
"""Name: (type, labels, meaning)."""

_BY_JOB = {
    "paceline_completions_total": COMPLETIONS,
    "paceline_preemptions_total": PREEMPTIONS,
    "paceline_fallbacks_total": FALLBACKS,
    "paceline_reminders_total": REMINDERS,
    "paceline_flushes_total": FLUSHES,
}


def samples(switch: LiveSwitch) -> Iterator[ExposedSample]:
    """Every number: the metric's name, the values of its labels, the value (of a summary: count and sum)."""
    yield "paceline_jobs", (), len(switch.registry.jobs())
    yield "paceline_draining", (), int(switch.registry.draining)
    yield "paceline_evictions_total", (), switch.registry.evictions
    shards = [thread.shard for thread in switch.threads]
    for k, shard in enumerate(shards):
        yield "paceline_slots", (str(k),), switch.slots
        yield "paceline_batches_total", (str(k),), int(shard.cells[0].batches)
        yield "paceline_faults_injected_total", (str(k),), int(shard.faults.settings[0].count)
    for job in switch.registry.jobs():
        yield from _of_job(shards, job.number, job.name, job.workers)
        for k, police in enumerate(switch.police):
            yield (
                "paceline_taken_ratio",
                (str(job.number), job.name, str(k)),
                police.keep.get(job.number, 1.0),
            )
    none = switch.options.jobs_max
    yield from _drops(shards, none, "", "")


def _of_job(shards: list[Any], number: int, name: str, workers: int) -> Iterator[ExposedSample]:
    labels = (str(number), name)
    for k, shard in enumerate(shards):
        yield "paceline_slots_used", (*labels, str(k)), int(shard.switch.jobs[0, number].used)
    held_ns = sum(int(shard.jobs[number].held_ns) for shard in shards)
    yield "paceline_slot_seconds_total", labels, held_ns / 1e9
    work_ns = sum(int(shard.jobs[number].work_ns) for shard in shards)
    yield "paceline_work_seconds_total", labels, work_ns / 1e9
    for metric, counter in _BY_JOB.items():
        yield metric, labels, sum(int(shard.switch.counters[0, number, counter]) for shard in shards)
    for direction in ("in", "out"):
        for unit in ("packets", "bytes"):
            total = sum(int(shard.jobs[number][f"{unit}_{direction}"]) for shard in shards)
            yield f"paceline_{unit}_total", (*labels, direction), total
    for worker in range(workers):
        members = [shard.members[number, worker] for shard in shards]
        lag_s = sum(int(member.lag_ns) for member in members) / 1e9
        arrivals = sum(int(member.arrivals) for member in members)
        yield "paceline_arrival_lag_seconds", (*labels, str(worker)), (arrivals, lag_s)
        peaks_s = sum(int(member.peaks_ns) for member in members) / 1e9
        rounds = sum(int(member.rounds) for member in members)
        yield "paceline_round_lag_seconds", (*labels, str(worker)), (rounds, peaks_s)
    yield from _drops(shards, number, *labels)


def _drops(shards: list[Any], row: int, job: str, name: str) -> Iterator[ExposedSample]:
    """By reason: those of the shard and those of the core, some of which have the same name."""
    totals = dict.fromkeys(DROP_REASONS[1:], 0)
    for shard in shards:
        for code, reason in enumerate(DROP_REASONS[1:], 1):
            totals[reason] += int(shard.drops[row, code])
        for code, counter in enumerate(COUNTER_NAMES):
            if counter.startswith("drop_"):
                reason = counter.removeprefix("drop_")
                totals[reason] = totals.get(reason, 0) + int(shard.switch.counters[0, row, code])
    for reason, total in totals.items():
        yield "paceline_drops_total", (job, name, reason), total


def metrics_text(switch: LiveSwitch, openmetrics: bool = False) -> bytes:
    """The answer to `GET /metrics`."""
    return exposed(METRICS, samples(switch), openmetrics)
