"""Which servers are slow, by what a run has seen of its jobs [ours].

Two things tell. *Ranks*: how long each computes by itself, without its waits for others (`pace_s` in a rank's progress,
`paces_s` of all ranks at once); ranks of one job do alike work, so servers compare. *Jobs inside one server*: how many
times as long as its file says one computes, beside what the run's other jobs do on other servers; a file may be wrong,
but not for the servers alone, so a job's own factor is what its twins have elsewhere, or else the others' median. What
spans servers says nothing by its iterations alone: all its ranks wait for the slowest, and for links.

A server is slow if it takes `SLOW` times as long; of several jobs that ran on it the mildest counts, so one that was
wrongly taken for slow is free of that as soon as a job runs well there. `verdicts` is a pure function of observations.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

SLOW = 1.3
"""A server that takes less than so many times as long as others is like them."""
SLOWEST = 1e3
"""A pace that says more is no measurement."""


@dataclass(frozen=True)
class JobOnServers:
    """What is known of one job on its present servers."""

    job: str
    kind: Hashable
    """Equal for jobs of which one can speak for the other."""
    servers: tuple[str, ...]
    factor: float | None = None
    """How many times as long as its file says it computes there; None: not measured."""
    paces_s: Mapping[str, float] | None = None
    """By server: how long its ranks compute by themselves; None: they do not tell."""


@dataclass(frozen=True)
class ServerSlowness:
    """Of a server."""

    factor: float
    """How many times as long its devices take; 1: it is not slow."""
    reason: str


def verdicts(observations: Sequence[JobOnServers]) -> dict[str, ServerSlowness]:
    """Of every server that anything is known of, by its name."""
    told: dict[str, list[ServerSlowness]] = {}
    for each in observations:
        for server, verdict in (*_by_ranks(each), *_by_job(each, observations)):
            told.setdefault(server, []).append(verdict)
    mildest = {server: min(found, key=lambda verdict: verdict.factor) for server, found in told.items()}
    return {
        server: verdict if verdict.factor >= SLOW else replace(verdict, factor=1.0)
        for server, verdict in mildest.items()
    }


def _by_ranks(seen: JobOnServers) -> list[tuple[str, ServerSlowness]]:
    paces_s = {server: pace_s for server, pace_s in (seen.paces_s or {}).items() if pace_s > 0.0}
    if len(paces_s) < 2:
        return []
    found = []
    for server, pace_s in paces_s.items():
        # The others' median is what a server that is not slow takes, unless most of them are slow.
        others_s = median(other_s for name, other_s in paces_s.items() if name != server)
        reason = f"ranks of {seen.job} compute {pace_s:.3g} s there, {others_s:.3g} s on its other servers"
        found.append((server, ServerSlowness(min(SLOWEST, max(1.0, pace_s / others_s)), reason)))
    return found


def _by_job(seen: JobOnServers, observations: Sequence[JobOnServers]) -> list[tuple[str, ServerSlowness]]:
    if seen.factor is None or len(seen.servers) != 1:
        return []
    (server,) = seen.servers
    elsewhere = [
        each
        for each in observations
        if each.factor is not None and len(each.servers) == 1 and each.servers != seen.servers
    ]
    twins = [each for each in elsewhere if each.kind == seen.kind]
    others = twins or [each for each in elsewhere if each.job != seen.job]
    if not others:
        return []
    own = median(each.factor for each in others if each.factor is not None)
    names = ", ".join(sorted({each.job for each in others}))
    reason = f"{seen.job} computes {seen.factor:.3g} times as long as its file says there, {names} {own:.3g} elsewhere"
    return [(server, ServerSlowness(min(SLOWEST, max(1.0, seen.factor / max(own, 1e-9))), reason))]
