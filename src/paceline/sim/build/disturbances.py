"""Slow workers and other traffic, from a scenario to the arrays; and which help goes with which policy."""

import difflib
from typing import Any

from paceline.errors import JobError, SettingError
from paceline.sim.build.topology import Place
from paceline.sim.engine.links import FS_PER_NS, Links
from paceline.sim.faults import Faults
from paceline.sim.scenario import Job, Scenario

_MILLION = 1_000_000


def check_slow_workers(faults: Faults, workers: dict[str, int]) -> None:
    """Those who are to be slow must exist."""
    for key, name in [("slow", slow.job) for slow in faults.slow] + [
        ("slow_spells", spells.job) for spells in faults.slow_spells
    ]:
        if name not in workers:
            close = difflib.get_close_matches(name, workers, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(workers)}"
            raise SettingError(f"there is no job {name!r}; {hint}", key=("faults", key))
    for slow in faults.slow:
        if slow.worker >= workers[slow.job]:
            raise SettingError(f"job {slow.job!r} has no worker {slow.worker}", key=("faults", "slow"))
    for spells in faults.slow_spells:
        if spells.shortest > spells.longest:
            raise SettingError("the shortest spell is longer than the longest", key=("faults", "slow_spells"))


def check_modes(policy: str, scenario: Scenario, jobs: list[Job]) -> None:
    """Help that makes no sense under a policy is refused, and the reason told."""
    for job in jobs:
        mode = job.straggler
        if mode == "off":
            continue
        if policy in ("ring", "ps"):
            raise JobError(
                f"straggler = {mode!r} needs in-network aggregation; {policy} has none", job=job.name
            )
        if policy == "switchml" and job.has_custody:
            raise JobError(
                f"straggler = {mode!r} needs custodians, and switchml has none; 'takeover' works there",
                job=job.name,
            )
        if job.takes_over and job.parts < 2:
            raise JobError(f"straggler = {mode!r} needs at least 2 micro-batches", job=job.name)
        if job.workers < 2:
            raise JobError(f"straggler = {mode!r} needs at least 2 workers", job=job.name)


def fill_spells(record: Any, name: str, faults: Faults) -> None:
    """The last table for a job counts; lengths are in iterations of pure computation."""
    compute_ns = int(record.forward_ns + record.backward_ns)
    for spells in faults.slow_spells:
        if spells.job == name:
            record.spell_chance = round(spells.probability * 0x10000)
            record.spell_num = round(spells.factor * _MILLION)
            record.spell_low_ns = round(spells.shortest * compute_ns)
            record.spell_high_ns = round(spells.longest * compute_ns)


def add_other_traffic(links: Links, scenario: Scenario, place: Place) -> None:
    """Flows of constant rate on hosts' links."""
    for flow in scenario.faults.other_traffic:
        if flow.host >= place.hosts:
            raise SettingError(f"there is no host {flow.host}", key=("faults", "other_traffic"))
        if flow.rate >= scenario.network.rate:
            raise SettingError(
                "other traffic must leave some of the link's rate", key=("faults", "other_traffic")
            )
        link = links.state[flow.host + (place.hosts if flow.direction == "to" else 0)]
        if link.other_num > 0:
            raise SettingError("one flow a link and direction", key=("faults", "other_traffic"))
        link.other_num = round(FS_PER_NS * flow.rate / scenario.network.rate)
        link.other_from_ns, link.other_until_ns = flow.start, flow.end
