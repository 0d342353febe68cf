"""What an exchange costs a worker's processor, from a profile that has a whole step of it.

A profile may have steps that were measured with all workers on one machine, by exchange: no link limits them. The
simulator has the passes, and what `[hosts]` says of packets; the rest of such a step is the exchange's own work
(threads that hand over to each other, copies, Python). It is put on each message of a ring, or on each layer of a sum
in the network, and is as long as makes the same step in the simulator take the time that was measured. From there it
goes to other links, other numbers of workers, and workers with a machine each. Nothing is taken from runs on limited
links.
"""

from collections.abc import Callable
from pathlib import Path

from paceline.models.profile import ProfileExchange, load_profile
from paceline.sim.faults import Faults
from paceline.sim.scenario import HORIZON_MAX_NS, Network, Scenario, ScenarioJob

FREE_BPS = 100e9
"""Links that limit nobody, as inside one machine."""
FREE_QUEUE_BYTES = 64_000_000
ITERATIONS = 16
CLOSE = 0.005
"""A share of the step: nearer than that is near enough."""
TRIES = 12
LONGEST = 4.0
"""Times the step: no overhead is longer."""

Seconds = Callable[[Scenario, str], float]
"""A scenario's one job, simulated under a policy: seconds of an iteration."""

SPREAD_MAX = 0.57
"""An even distribution with more would begin below zero."""

_FOUND: dict[tuple[str, str, str], tuple[int, float]] = {}
"""By scenario on one machine, policy and the profile's text: the same job is often simulated several times."""


def with_overheads(scenario: Scenario, policy: str, step_s: Seconds) -> Scenario:
    """Every job whose profile knows this exchange has its overhead, unless the scenario gives one."""
    if policy == "ps" or not any(job.profile and job.overhead is None for job in scenario.job):
        return scenario
    jobs = []
    for job in scenario.job:
        if job.profile and job.overhead is None:
            measured = load_profile(Path(job.profile)).exchange_by("gloo" if policy == "ring" else "switch")
            if measured is not None:
                overhead_ns, spread = _overhead(scenario, job, policy, measured, step_s)
                job = job.model_copy(update={"overhead": overhead_ns, "overhead_spread": spread})
        jobs.append(job)
    return scenario.model_copy(update={"job": jobs})


def _overhead(
    scenario: Scenario, job: ScenarioJob, policy: str, measured: ProfileExchange, step_s: Seconds
) -> tuple[int, float]:
    alone = _on_one_machine(scenario, job, measured)
    key = (alone.model_dump_json(), policy, Path(job.profile).read_text(encoding="utf-8"))
    if key not in _FOUND:
        _FOUND[key] = _search(alone, policy, measured, step_s)
    return _FOUND[key]


def _search(alone: Scenario, policy: str, measured: ProfileExchange, step_s: Seconds) -> tuple[int, float]:
    def step_with(overhead_ns: int, spread: float = 0.0) -> float:
        changed = {"overhead": overhead_ns, "overhead_spread": spread}
        return step_s(alone.model_copy(update={"job": [alone.job[0].model_copy(update=changed)]}), policy)

    without_s = step_with(0)
    if without_s >= measured.step:
        return 0, 0.0
    # Steps vary by what varies in the exchange.
    spread = min(SPREAD_MAX, measured.spread * measured.step / (measured.step - without_s))
    return matching(lambda overhead_ns: step_with(overhead_ns, spread), measured.step), spread


def matching(step_with: Callable[[int], float], wanted_s: float) -> int:
    """The overhead with which a step takes so long; none where it takes longer without. Steps grow with it."""
    low_ns, low_s = 0, step_with(0)
    if low_s >= wanted_s:
        return 0
    high_ns, high_s = 1000, step_with(1000)
    while high_s < wanted_s and high_ns < LONGEST * wanted_s * 1e9:
        low_ns, low_s = high_ns, high_s
        high_ns *= 4
        high_s = step_with(high_ns)
    for _ in range(TRIES):
        if abs(high_s - wanted_s) <= CLOSE * wanted_s or high_ns - low_ns < 2:
            break
        share = (wanted_s - low_s) / max(high_s - low_s, 1e-12)
        middle_ns = low_ns + max(1, round((high_ns - low_ns) * min(max(share, 0.1), 0.9)))
        middle_s = step_with(middle_ns)
        if middle_s < wanted_s - CLOSE * wanted_s:
            low_ns, low_s = middle_ns, middle_s
        else:
            high_ns, high_s = middle_ns, middle_s
    return high_ns


def _on_one_machine(scenario: Scenario, job: ScenarioJob, measured: ProfileExchange) -> Scenario:
    """The job alone, as it was measured: links that do not limit it, and that machine's cores."""
    network = Network().model_copy(
        update={
            "hosts": measured.workers,
            "rate": FREE_BPS,
            "delay": scenario.network.delay,
            "elements": scenario.network.elements,
            "queue": FREE_QUEUE_BYTES,
            "ecn": FREE_QUEUE_BYTES,
        }
    )
    one = job.model_copy(
        update={
            "workers": measured.workers,
            "hosts": list(range(measured.workers)),
            "iterations": ITERATIONS,
            "arrival": 0,
            "copies": 1,
            "after": [],
            "straggler": "off",
            "micro_batches": None,
        }
    )
    hosts = scenario.hosts.model_copy(update={"cores": measured.cores})
    rest = {"faults": Faults(), "seed": 1, "horizon": HORIZON_MAX_NS}
    return scenario.model_copy(update={"network": network, "hosts": hosts, "job": [one], **rest})
