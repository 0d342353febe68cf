"""Everything that can go wrong in a simulation, in one record.

All faults are off by default, and all randomness comes from the scenario's seed.
"""

import difflib
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from paceline.errors import SettingError
from paceline.toml import Section
from paceline.units import Rate, TimeNs

Probability = Annotated[float, Field(ge=0, lt=1)]


class SlowWorker(Section):
    """A worker whose computation takes `factor` times as long."""

    job: str
    worker: Annotated[int, Field(ge=0)]
    factor: Annotated[float, Field(ge=1, le=1000)]


class SlowSpells(Section):
    """Workers of a job that are slow for a while: a spell may begin with each iteration of each worker."""

    job: str
    probability: Probability
    """That a spell begins, for each worker and iteration."""
    factor: Annotated[float, Field(ge=1, le=1000)]
    shortest: Annotated[float, Field(gt=0)] = 0.5
    """Length of a spell, in iterations without slowness or waiting."""
    longest: Annotated[float, Field(gt=0)] = 2.0
    """Lengths are drawn evenly between the two."""


class OtherTraffic(Section):
    """A flow of constant rate on a host's link: it heeds nobody, and leaves the jobs the rest of the rate."""

    host: Annotated[int, Field(ge=0)]
    rate: Rate
    direction: Literal["to", "from"] = "to"
    """To the host (its downlink) or from it (its uplink)."""
    start: TimeNs = 0
    end: TimeNs = 1_000_000_000_000_000
    """When it ends; by default never."""


class SwitchDeath(Section):
    """A switch whose aggregation program and memory are gone from `time` on; it still forwards.

    Leaf switches are numbered first, then the upper ones; a star has switch 0. With `network.switches` that
    is the hub, and those that sum are numbered from 1.
    """

    time: TimeNs
    switch: Annotated[int, Field(ge=0)] = 0


class CustodianLoss(Section):
    """At `time` the custodians of a job lose their state, results included; a new epoch begins."""

    time: TimeNs
    job: str


class HostDeath(Section):
    """A host that falls silent at `time`."""

    time: TimeNs
    host: Annotated[int, Field(ge=0)]


class Faults(Section):
    """What strikes packets, workers, switches and hosts."""

    loss: Probability = 0.0
    """Probability that a packet is lost, on each link it crosses."""
    duplicate: Probability = 0.0
    """Probability that a second copy of it arrives later, on each link."""
    reorder: Probability = 0.0
    """Probability that it arrives late, after packets sent behind it, on each link."""
    reorder_delay: TimeNs = 5_000
    """How late; three detours of 1, 3 and 9 times this delay are drawn from."""
    slow: list[SlowWorker] = []
    slow_spells: list[SlowSpells] = []
    other_traffic: list[OtherTraffic] = []
    switch_dies: list[SwitchDeath] = []
    host_dies: list[HostDeath] = []
    custodian_forgets: list[CustodianLoss] = []

    @property
    def strikes_packets(self) -> bool:
        return self.loss > 0 or self.duplicate > 0 or self.reorder > 0

    def check(self, workers: Mapping[str, int], hosts: int, switches: int) -> None:
        """What faults name must exist; `workers` gives the number of workers of each job, by its name."""
        named = [
            *(("slow", slow.job) for slow in self.slow),
            *(("slow_spells", spells.job) for spells in self.slow_spells),
            *(("custodian_forgets", loss.job) for loss in self.custodian_forgets),
        ]
        for key, name in named:
            if name not in workers:
                close = difflib.get_close_matches(name, workers, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(workers)}"
                raise SettingError(f"there is no job {name!r}; {hint}", key=("faults", key))
        for slow in self.slow:
            if slow.worker >= workers[slow.job]:
                raise SettingError(f"job {slow.job!r} has no worker {slow.worker}", key=("faults", "slow"))
        for spells in self.slow_spells:
            if spells.shortest > spells.longest:
                raise SettingError(
                    "the shortest spell is longer than the longest", key=("faults", "slow_spells")
                )
        for key, host in [
            *(("host_dies", death.host) for death in self.host_dies),
            *(("other_traffic", flow.host) for flow in self.other_traffic),
        ]:
            if host >= hosts:
                raise SettingError(f"there is no host {host}", key=("faults", key))
        for fall in self.switch_dies:
            if fall.switch >= switches:
                raise SettingError(f"there is no switch {fall.switch}", key=("faults", "switch_dies"))
