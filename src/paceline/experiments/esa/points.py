"""The points of the ESA experiment: a workload each, under every policy at its best, in parts, and without limit.

Nobody is measured on a seed that it was tuned on. Variants of `esa-plus` (a rule left out, or only one rule) have its
settings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.core.priority import priority
from paceline.core.switch.memory import EARLY, RULES
from paceline.errors import UserError
from paceline.experiments.esa.tuning import (
    ORDER,
    TIMER,
    WINDOW,
    Cost,
    at_edge,
    best_of,
    changed,
    get,
    in_seconds,
    search,
    starts,
)
from paceline.experiments.esa.workloads import EsaWorkload, Settings, bdp_slots, full_list, quick_list
from paceline.sim.results import RunResult
from paceline.sim.run import simulate
from paceline.sim.scenario import POLICIES

__all__ = ["EsaPoint", "Variant", "all_points", "bdp_slots", "run_point"]

TUNING_SEED = 1000
ON_HOSTS = ("ring", "ps")
"""Without aggregation in the network; they run where jobs are alike, and under loss."""
WALKED = ("esa-plus", "always-preempt")
"""Of the policies that release early: what is found for these two is tried by the others."""
CEILING = "ceiling"

Row = dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """`esa-plus` with other rules: what is one of them worth alone, over none, or as the last one?"""

    name: str
    rules: tuple[str, ...]
    links: bool
    """Priority on links."""
    equal: bool = False
    """All priorities are the same."""
    urgent: bool = False
    """Hosts send those layers first that the next forward pass needs first."""


_ALL = tuple(sorted(RULES))
BARE = Variant("no rule", (), False)
"""`always-preempt`, with the settings of `esa-plus`."""
ALONE = (
    Variant("+ mark", ("mark",), False),
    Variant("+ priority in memory", ("priority",), False),
    Variant("+ priority in memory, by cost", ("cost", "priority"), False),
    Variant("+ priority on links", (), True),
    Variant("+ answer", ("answer",), False),
    Variant("+ urgent layers first", (), False, urgent=True),
)
LAST = (
    Variant("- mark", tuple(rule for rule in _ALL if rule != "mark"), True),
    Variant("- cost", tuple(rule for rule in _ALL if rule != "cost"), True),
    Variant("- priority in memory", tuple(rule for rule in _ALL if rule not in ("priority", "cost")), True),
    Variant("- priority on links", _ALL, False),
    Variant("- answer", tuple(rule for rule in _ALL if rule != "answer"), True),
    Variant("priorities equal", _ALL, True, True),
)
ON_TOP = Variant("with urgent layers first", _ALL, True, urgent=True)
"""No policy has it in the comparisons: it is the hosts' own, and good for all."""


def policies_of(workload: EsaWorkload) -> list[str]:
    """Who runs there."""
    hosts = workload.sweep in ("like", "workers", "loss")
    return [policy for policy in POLICIES if hosts or policy not in ON_HOSTS]


@dataclass(frozen=True)
class EsaPoint:
    """One workload under all policies; carries all that a process needs to run it."""

    workload: EsaWorkload
    quick: bool
    seeds: tuple[int, ...]


def _equal(_left_s: float, _ratio: float, _layer: int, _layers: int) -> int:
    return 128


class _Bench:
    """Runs one workload, again and again."""

    def __init__(self, point: EsaPoint) -> None:
        self.point = point
        self._known: dict[str, float] = {}

    def run(
        self, policy: str, settings: Settings, seed: int, unlimited: bool, equal: bool
    ) -> RunResult | None:
        """None where the policy cannot run at all."""
        rule = _equal if equal else priority
        try:
            scenario = self.point.workload.scenario(in_seconds(settings), unlimited)
            return simulate(scenario, policy, seed=seed, rule=rule)
        except UserError:
            # SwitchML with less than a slot for each job.
            return None

    def cost(self, policy: str, settings: Settings, unlimited: bool, equal: bool) -> float:
        """Average completion time with the tuning seed."""
        key = repr((policy, settings, unlimited, equal))
        if key not in self._known:
            run = self.run(policy, settings, TUNING_SEED, unlimited, equal)
            self._known[key] = (run.avg_jct_s if run else None) or float("inf")
        return self._known[key]

    def cost_of(self, policy: str, unlimited: bool = False, equal: bool = False) -> Cost:
        """The cost of settings under one policy."""
        return lambda settings: self.cost(policy, settings, unlimited, equal)

    def measure(
        self, name: str, policy: str, settings: Settings, unlimited: bool = False, equal: bool = False
    ) -> Row:
        """A row: the setting, over the measured seeds."""
        workload = self.point.workload
        runs = [self.run(policy, settings, seed, unlimited, equal) for seed in self.point.seeds]
        whole = [run for run in runs if run is not None]
        jct_s = _mean([run.avg_jct_s if run else None for run in runs])
        short_s = _mean([run.jobs[j].jct_s for run in whole for j in workload.short])
        count = max(1, len(whole))
        return {
            "sweep": workload.sweep,
            "x": workload.x,
            "setting": workload.describe(),
            "policy": name,
            "avg_jct_ms": None if jct_s is None else 1e3 * jct_s,
            "short_jct_ms": None if short_s is None else 1e3 * short_s,
            "utilisation": sum(run.switch["utilisation_mean"] for run in whole) / count,
            "preemptions": sum(run.switch["preemptions"] for run in whole) / count,
            "fallbacks": sum(run.switch["fallbacks"] for run in whole) / count,
            "reminders": sum(run.switch["reminders_sent"] for run in whole) / count,
            "resent": sum(run.transport["resent"] for run in whole) / count,
            "packets": sum(run.packets for run in whole),
            "settings": "; ".join(
                f"{key} {value}" for part in settings.values() for key, value in part.items()
            ),
            "at_edge": at_edge(policy, settings),
            "seeds": len(whole),
        }


def _mean(times: Sequence[float | None]) -> float | None:
    known = [time for time in times if time is not None]
    return sum(known) / len(known) if times and len(known) == len(times) else None


def run_point(point: EsaPoint) -> list[Row]:
    """Tune, then measure: a row for each policy and variant."""
    bench = _Bench(point)
    found: dict[str, Settings] = {}
    policies = policies_of(point.workload)
    lossy = point.workload.loss > 0
    for policy in policies:
        if policy not in EARLY or policy in WALKED:
            found[policy], _ = search(policy, bench.cost_of(policy), point.quick, lossy)
    shared = [found[policy] for policy in WALKED]
    for policy in EARLY:
        grid = [] if policy in WALKED else starts(policy, lossy)
        found[policy], _ = best_of([*shared, *grid], bench.cost_of(policy))
    rows = [bench.measure(policy, policy, found[policy]) for policy in policies]
    for variant in (BARE, *ALONE, *LAST, ON_TOP):
        rows.append(_measure_variant(bench, variant, found["esa-plus"]))
    rows.append(_measure_ceiling(bench, found["esa-plus"], found["switchml"]))
    return rows


def _measure_variant(bench: _Bench, variant: Variant, settings: Settings) -> Row:
    own = {"rules": list(variant.rules), "classes": 8 if variant.links else 1}
    settings = {**settings, "switch": {**settings.get("switch", {}), **own}}
    if variant.urgent:
        settings = changed(settings, ORDER, "urgent")
    return bench.measure(variant.name, "esa-plus", settings, equal=variant.equal)


def _measure_ceiling(bench: _Bench, own: Settings, pool: Settings) -> Row:
    """What a switch with all the memory one could want gives: the better of `esa-plus` and SwitchML there."""
    wider = changed(own, WINDOW, 2 * get(own, WINDOW))
    best, _ = best_of([own, wider], bench.cost_of("esa-plus", unlimited=True))
    pools = [changed(pool, WINDOW, width) for width in (bdp_slots() // 2, bdp_slots(), 2 * bdp_slots())]
    pools += [changed(settings, TIMER, 5_000) for settings in pools]
    static, _ = best_of(pools, bench.cost_of("switchml", unlimited=True))
    rows = [
        bench.measure(CEILING, "esa-plus", best, unlimited=True),
        bench.measure(CEILING, "switchml", static, unlimited=True),
    ]
    return min(rows, key=lambda row: row["avg_jct_ms"] or float("inf"))


def all_points(quick: bool) -> list[EsaPoint]:
    """Each workload; where packets are lost, two runs say little."""
    if quick:
        return [EsaPoint(workload, True, (1, 2)) for workload in quick_list()]
    many = tuple(range(1, 13))
    return [EsaPoint(workload, False, many if workload.loss else (1, 2)) for workload in full_list()]
