"""Did two runs get the same bits? Their passports, job by job and rank by rank, and where they first part.

A run is a folder of `paceline run` (each job's last attempt counts), a folder of passports, or one passport. Jobs meet
by their names; with one job on each side, whatever their names are. Within a run the ranks of a group must agree
too: an all-reduce gives everyone the same bits.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import UserError
from paceline.passport.records import KINDS, OPS, SUFFIX, Passport, read_passport

Ranks = Mapping[tuple[str, int, int], Passport]
"""Of one job: by group, restart and rank."""
_MEANINGS = (
    (("number",), "one run has no result of it"),
    (("elements", "kind", "op"), "the runs reduce different tensors there"),
    (("digest",), "the bits differ"),
)
"""What it means if records differ in these fields; where they differ in several, the first says most."""
_ATTEMPT = re.compile(r"^(.+)\.(\d+)$")


@dataclass(frozen=True)
class Difference:
    """Where two passports first part."""

    what: str
    """One sentence."""
    job: str
    group: str
    reduction: int
    """Its number in the group, from 0; -1: there is no such rank, group or job on one side."""
    rank: int
    """The first rank that differs; -1 where no rank is meant."""
    ranks: tuple[int, ...] = ()
    """All ranks that differ at this reduction."""
    tensor: str = ""
    """Its size, format and operation."""
    occurrence: int = 0
    """The how-manieth reduction of such a tensor it is, from 1 on: with DDP its step."""


@dataclass
class Verdict:
    """What `verify` found."""

    jobs: int = 0
    ranks: int = 0
    reductions: int = 0
    """That were compared, over all ranks."""
    differences: list[Difference] = field(default_factory=list)
    """The first one of each group, the earliest first."""

    @property
    def same(self) -> bool:
        return not self.differences

    def as_json(self) -> dict[str, Any]:
        return {"same": self.same, **asdict(self)}


def read_run(path: Path) -> dict[str, Ranks]:
    """The passports of a run, by job."""
    if not path.exists():
        raise UserError("is not there", place=str(path))
    files = [path] if path.is_file() else _files_of(path)
    if not files:
        raise UserError("has no passport: was PACELINE_PASSPORT set when it ran?", place=str(path))
    found: dict[str, dict[tuple[str, int, int], Passport]] = defaultdict(dict)
    for file in files:
        passport = read_passport(file)
        owner = passport.owner
        key = (owner.group, owner.restart, owner.rank)
        if key in found[owner.job]:
            other = found[owner.job][key].path
            raise UserError(f"and {other} are of one rank: give the folder of one run", place=str(file))
        found[owner.job][key] = passport
    return dict(found)


def _files_of(folder: Path) -> list[Path]:
    """All passports below a folder; under `attempts` those of each job's last attempt that has any."""
    found = sorted(file for file in folder.rglob(f"*{SUFFIX}") if file.is_file())
    attempts = folder / "attempts"
    latest: dict[str, tuple[int, list[Path]]] = {}
    others = []
    for file in found:
        if attempts not in file.parents:
            others.append(file)
            continue
        match = _ATTEMPT.match(file.relative_to(attempts).parts[0])
        job, number = (match[1], int(match[2])) if match else (file.relative_to(attempts).parts[0], 0)
        if number > latest.get(job, (-1, []))[0]:
            latest[job] = (number, [])
        if number == latest[job][0]:
            latest[job][1].append(file)
    return others + [file for _, files in latest.values() for file in files]


def verify(first: dict[str, Ranks], second: dict[str, Ranks] | None = None) -> Verdict:
    """Compare two runs, or the ranks of one among themselves."""
    verdict = Verdict()
    for run, title in ((first, "the first run"), (second or {}, "the second run")):
        for job, ranks in run.items():
            verdict.differences += _within(job, ranks, title if second is not None else "the run")
    pairs = [(job, ranks, ranks) for job, ranks in first.items()] if second is None else []
    if second is not None:
        pairs = list(_pairs(first, second, verdict))
    for job, ours, theirs in pairs:
        verdict.jobs += 1
        for group in sorted({key[:2] for key in (*ours, *theirs)}):
            found = _compare_group(job, group, ours, theirs, verdict)
            verdict.differences += [found] if found is not None else []
    verdict.differences.sort(key=lambda each: (each.reduction, each.job, each.group, each.rank))
    return verdict


def _pairs(
    first: dict[str, Ranks], second: dict[str, Ranks], verdict: Verdict
) -> Iterable[tuple[str, Ranks, Ranks]]:
    if len(first) == len(second) == 1:
        (job, ours), (other, theirs) = *first.items(), *second.items()
        yield (job if job == other else f"{job} / {other}"), ours, theirs
        return
    for job in sorted(first.keys() | second.keys()):
        if job in first and job in second:
            yield job, first[job], second[job]
        else:
            where = "first" if job in first else "second"
            verdict.differences.append(Difference(f"job {job!r} is in the {where} run only", job, "", -1, -1))


def _compare_group(
    job: str, group: tuple[str, int], ours: Ranks, theirs: Ranks, verdict: Verdict
) -> Difference | None:
    """The first difference of a group, with all ranks that have it."""
    found: list[Difference] = []
    for rank in sorted({key[2] for key in (*ours, *theirs) if key[:2] == group}):
        a, b = ours.get((*group, rank)), theirs.get((*group, rank))
        if a is None or b is None:
            where = "second" if a is None else "first"
            found.append(
                Difference(f"rank {rank} has a passport in the {where} run only", job, group[0], -1, rank)
            )
            continue
        verdict.ranks += 1
        verdict.reductions += min(len(a.records), len(b.records))
        one = _compare(job, a, b)
        found += [one] if one is not None else []
    if not found:
        return None
    first = min(found, key=lambda each: (each.reduction, each.rank))
    ranks = tuple(each.rank for each in found if each.reduction == first.reduction)
    return Difference(**{**asdict(first), "ranks": ranks})


def _compare(job: str, a: Passport, b: Passport) -> Difference | None:
    """Where two ranks first part."""
    both = min(len(a.records), len(b.records))
    x, y = a.records[:both], b.records[:both]
    apart: list[tuple[int, int, str]] = []
    for order, (names, what) in enumerate(_MEANINGS):
        differs = np.zeros(both, dtype=bool)
        for name in names:
            differs |= x[name] != y[name]
        if differs.any():
            apart.append((int(np.argmax(differs)), order, what))
    if apart:
        at, _, what = min(apart)
        return _difference(job, a if x[at]["number"] <= y[at]["number"] else b, at, what)
    if len(a.records) == len(b.records):
        return None
    longer, runs = (a, "first") if len(a.records) > len(b.records) else (b, "second")
    return _difference(job, longer, both, f"only the {runs} run goes on from there")


def _difference(job: str, passport: Passport, at: int, what: str) -> Difference:
    owner, record = passport.owner, passport.records[at]
    kind, op, elements = KINDS[record["kind"]], OPS[record["op"]], int(record["elements"])
    before = passport.records[: at + 1]
    alike = (
        (before["elements"] == elements) & (before["kind"] == record["kind"]) & (before["op"] == record["op"])
    )
    tensor = f"{elements} x {kind}, {op}"
    number, occurrence = int(record["number"]), int(alike.sum())
    return Difference(
        f"{what}: group {owner.group}, reduction {number} ({tensor}; number {occurrence} of its kind), "
        f"rank {owner.rank}",
        job, owner.group, number, owner.rank, (owner.rank,), tensor, occurrence,
    )  # fmt: skip


def _within(job: str, ranks: Ranks, title: str) -> list[Difference]:
    """Ranks of one group that have not got the same bits of a reduction that both have."""
    found = []
    for group in sorted({key[:2] for key in ranks}):
        members = [ranks[key] for key in sorted(ranks) if key[:2] == group]
        first = members[0]
        for other in members[1:]:
            _, i, j = np.intersect1d(first.records["number"], other.records["number"], return_indices=True)
            apart = first.records["digest"][i] != other.records["digest"][j]
            if apart.any():
                what = f"in {title} ranks {first.owner.rank} and {other.owner.rank} disagree"
                found.append(_difference(job, other, int(j[int(np.argmax(apart))]), what))
    return found
