"""Everything that can go wrong in a simulation, in one record.

All faults are off by default, and all randomness comes from the scenario's seed.
"""

from typing import Annotated

from pydantic import Field

from paceline.config.toml import Section
from paceline.config.units import TimeNs

Probability = Annotated[float, Field(ge=0, lt=1)]


class SlowWorker(Section):
    """A worker whose computation takes `factor` times as long."""

    job: str
    worker: Annotated[int, Field(ge=0)]
    factor: Annotated[float, Field(ge=1, le=1000)]


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
    switch_dies: list[SwitchDeath] = []
    host_dies: list[HostDeath] = []
    custodian_forgets: list[CustodianLoss] = []

    @property
    def strikes_packets(self) -> bool:
        return self.loss > 0 or self.duplicate > 0 or self.reorder > 0
