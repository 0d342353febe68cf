"""A drill as a user writes it in TOML: a small job, and what strikes it when, whom, and for how long.

    name = "switch killed"
    steps = 300

    [[fault]]
    at = "500 ms"
    action = "kill"
    for = "1 s"

Times are the same in both worlds: a step takes `pace` of computing in the simulator and of sleeping live.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from paceline.errors import UserError
from paceline.toml import Section, load
from paceline.units import TimeNs

SWITCH = -1
"""`DrillFault.target` of the switch."""
Action = Literal["kill", "stop", "cut", "narrow", "lose", "slow"]
_WHOM = {
    "kill": "the switch",
    "stop": "the switch or a worker",
    "cut": "a worker",
    "narrow": "a worker",
    "lose": "the switch",
    "slow": "the switch or a worker",
}


class DrillFault(Section):
    """One thing that goes wrong."""

    at: TimeNs | None = None
    """When it strikes, from the drill's first step on; or"""
    step: Annotated[int, Field(ge=0)] | None = None
    """after which step."""
    action: Action
    """`kill` (and start again), `stop` (and let go on), `cut` a worker from the switch, `narrow` its path (a smaller
    MTU), `lose` packets at the switch, `slow` down."""
    what: Annotated[str, Field(pattern=r"^(switch|worker [0-9]+)$")] = "switch"
    """`switch`, or `worker N`."""
    duration: Annotated[TimeNs, Field(alias="for", gt=0)] = 1_000_000_000
    """For how long."""
    direction: Literal["to", "from", "both"] = "both"
    """`cut`: what goes to the worker, what comes from it, or both."""
    probability: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """`lose`: of each packet."""
    factor: Annotated[float, Field(gt=1, le=20)] = 4.0
    """`slow`: times as long."""
    mtu: Annotated[int, Field(ge=576, le=1400)] = 1000
    """`narrow`: bytes."""

    @property
    def target(self) -> int:
        """The worker's number, or `SWITCH`."""
        return SWITCH if self.what == "switch" else int(self.what.split()[1])

    @model_validator(mode="after")
    def _check(self) -> "DrillFault":
        if (self.at is None) == (self.step is None):
            raise ValueError("either 'at' (a time) or 'step' (a number) says when it strikes")
        allowed = _WHOM[self.action]
        if ("switch" if self.target == SWITCH else "worker") not in allowed:
            raise ValueError(f"{self.action} strikes {allowed}")
        return self


class Drill(Section):
    """A job of a few workers, what strikes it, and what it must stand."""

    name: Annotated[str, Field(min_length=1, max_length=80)]
    about: str = ""
    """What it is for, in a sentence."""
    attack: Annotated[int, Field(ge=1)] | None = None
    """The row of the table of attacks that it plays again."""
    seed: Annotated[int, Field(ge=0)] = 1
    """Of the numbers that are summed, and of what is drawn at random."""
    workers: Annotated[int, Field(ge=2, le=8)] = 3
    steps: Annotated[int, Field(ge=10, le=100_000)] = 300
    elements: Annotated[int, Field(ge=16, le=4_000_000)] = 20_000
    """Numbers that a step sums."""
    pace: TimeNs = 5_000_000
    """Computing of a step."""
    bound: TimeNs = 2_000_000_000
    """The longest that the job may stand still for a fault, beside the time in which it cannot go on."""
    fault: Annotated[list[DrillFault], Field(min_length=1, max_length=50)]

    @model_validator(mode="after")
    def _check(self) -> "Drill":
        for fault in self.fault:
            if fault.target >= self.workers:
                raise ValueError(f"there is no {fault.what}: there are {self.workers} workers")
            if fault.step is not None and fault.step >= self.steps:
                raise ValueError(f"there is no step {fault.step}: there are {self.steps} steps")
        return self

    def standstill_ns(self) -> int:
        """The time in which the job cannot go on, whatever is done: a worker of it is stopped."""
        return sum(
            fault.duration for fault in self.fault if fault.action == "stop" and fault.target != SWITCH
        )


def load_drill(path: Path) -> Drill:
    """A drill from its file; a mistake is one line that names the place."""
    drill = load(path, Drill)
    if any(fault.at is not None and fault.at > 600_000_000_000 for fault in drill.fault):
        raise UserError("no fault strikes after ten minutes", place=str(path))
    return drill
