"""Everything that can go wrong in a simulation, in one record.

All faults are off by default, and all randomness comes from the scenario's seed.
"""

from typing import Annotated, Literal

from pydantic import Field

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

    Leaf switches are numbered first, then the upper ones; a star has switch 0.
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
