"""How each policy is tuned at each workload: from coarse to fine, with no end of a grid in the way.

First a coarse grid of windows and window rules. From its best setting on, each knob in turn is doubled and halved as
long as that helps, window and timer then moved by a factor of 1.4; knobs without an order take each value once. Only
physical limits end such a walk, and `at_edge` says whether one did. Timers are walked where packets are lost: elsewhere
nothing waits for them. Last, what was found for `esa-plus` and for `always-preempt` is tried by all of their kind; the
others of it have a coarse grid of their own, and no walk.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.experiments.esa.workloads import Settings, bdp_slots

GAIN = 0.997
"""A step must shorten the time to this share, or it is noise."""

Cost = Callable[[Settings], float]
"""Average completion time under a setting; infinite if jobs do not end."""


@dataclass(frozen=True)
class Knob:
    """A setting with an order, and its physical limits; times are in nanoseconds."""

    section: str
    key: str
    low: float
    high: float


@dataclass(frozen=True)
class Choice:
    """A setting without an order."""

    section: str
    key: str
    values: tuple[Any, ...]


WINDOW = Knob("transport", "window", 2, 16_384)
TIMER = Knob("transport", "rto_min", 1_000, 20_000_000)
PATIENCE = Knob("custodians", "patience", 1_000, 20_000_000)
BUCKET = Knob("transport", "bucket", 4_096, 64_000_000)
REORDERING = Choice("transport", "reorder_chunks", (1, 3, 8, 32))
RECOVERY = Choice("transport", "recovery", ("ask", "resend"))
ORDER = Choice("transport", "order", ("released", "urgent"))
"""Not tuned: see `points.ON_TOP`."""
COPIES = Choice("switch", "copies", (True, False))
SERVERS = Choice("custodians", "placement", ("workers", "dedicated"))
_RULES = ("together", "aimd", "fixed")
_SECONDS = {"rto_min", "patience"}
"""Keys that a scenario has in seconds."""


def starts(policy: str, lossy: bool = False) -> list[Settings]:
    """The coarse grid; timers begin short where packets are lost."""
    bdp = bdp_slots()
    timer = 20_000 if lossy else 200_000
    windows = (bdp // 2, bdp)
    if policy == "switchml":
        return [{"transport": {"window": width, "rto_min": 5_000}} for width in (bdp // 2, bdp, 8_192)]
    if policy == "ring":
        return [{"transport": {"bucket": size, "rto_min": 50_000}} for size in (62_500, 250_000, 1_000_000)]
    if policy == "ps":
        return [
            {"transport": {"window": width, "congestion": rule, "rto_min": 200_000}}
            for width, rule in itertools.product((bdp, 4 * bdp), _RULES)
        ]
    own = {"recovery": "resend"} if policy == "atp" else {}
    return [
        {
            "transport": {"window": width, "congestion": rule, "rto_min": timer, **own},
            "custodians": {"patience": 10_000},
        }
        for width, rule in itertools.product(windows, _RULES)
    ]


def knobs(policy: str, quick: bool, lossy: bool = False) -> list[Knob | Choice]:
    """What is turned after that, in this order."""
    timer: list[Knob | Choice] = [TIMER] if lossy else []
    if policy == "switchml":
        return [TIMER, WINDOW]
    if policy == "ring":
        return [BUCKET, *timer]
    if policy == "ps":
        return [SERVERS, WINDOW, *timer, REORDERING]
    if quick:
        return [COPIES, WINDOW]
    rest: list[Knob | Choice] = [WINDOW, *timer, REORDERING, RECOVERY]
    return [*rest, COPIES, PATIENCE] if policy != "atp" else rest


def search(policy: str, cost: Cost, quick: bool, lossy: bool = False) -> tuple[Settings, float]:
    """The best setting found, and its cost."""
    best, best_cost = best_of(starts(policy, lossy), cost)
    for knob in knobs(policy, quick, lossy):
        if isinstance(knob, Choice):
            others = [changed(best, knob, value) for value in knob.values if value != get(best, knob)]
            found, found_cost = best_of(others, cost)
            if found_cost < GAIN * best_cost:
                best, best_cost = found, found_cost
        else:
            for factor in (2.0, 1.4) if knob in (WINDOW, TIMER) and not quick else (2.0,):
                best, best_cost = _walk(best, best_cost, knob, factor, cost)
    return best, best_cost


def best_of(candidates: Sequence[Settings], cost: Cost) -> tuple[Settings, float]:
    """The cheapest; the first of equals."""
    costs = [cost(settings) for settings in candidates]
    at = min(range(len(costs)), key=lambda k: costs[k])
    return candidates[at], costs[at]


def _walk(best: Settings, best_cost: float, knob: Knob, factor: float, cost: Cost) -> tuple[Settings, float]:
    """Up while it helps; if it did not at all, down while it helps."""
    for direction in (factor, 1 / factor):
        moved = False
        while True:
            now = get(best, knob)
            value = min(knob.high, max(knob.low, round(now * direction)))
            if value == now:
                break
            tried = changed(best, knob, value)
            tried_cost = cost(tried)
            if tried_cost >= GAIN * best_cost:
                break
            best, best_cost, moved = tried, tried_cost, True
        if moved:
            break
    return best, best_cost


_DEFAULTS = {
    "patience": 10_000,
    "rto_min": 200_000,
    "reorder_chunks": 3,
    "recovery": "ask",
    "copies": True,
    "placement": "workers",
}


def get(settings: Settings, knob: Knob | Choice) -> Any:
    """A knob's value in a setting."""
    return settings.get(knob.section, {}).get(knob.key, _DEFAULTS.get(knob.key))


def changed(settings: Settings, knob: Knob | Choice, value: Any) -> Settings:
    """The setting with one knob turned."""
    return {**settings, knob.section: {**settings.get(knob.section, {}), knob.key: value}}


def in_seconds(settings: Settings) -> Settings:
    """As a scenario has it."""
    return {
        section: {key: value * 1e-9 if key in _SECONDS else value for key, value in part.items()}
        for section, part in settings.items()
    }


def at_edge(policy: str, settings: Settings) -> str:
    """Names of knobs that stand at a physical limit."""
    ordered = [knob for knob in knobs(policy, False, True) if isinstance(knob, Knob)]
    return ", ".join(knob.key for knob in ordered if get(settings, knob) in (knob.low, knob.high))
