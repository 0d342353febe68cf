"""Run a scenario under a policy: `simulate(scenario, policy)` gives a `RunResult`."""

import sys
import time
from collections.abc import Callable
from dataclasses import replace

from paceline.compile.cache import is_on_disk
from paceline.compile.decorators import interpreted
from paceline.core.priority import PriorityRule, priority
from paceline.errors import UserError
from paceline.sim.build.arrays import Setup, build
from paceline.sim.engine import world as w
from paceline.sim.engine.links import grown_pool
from paceline.sim.engine.loop import COORDINATE, ENDED, POOL_LOW_ROOM, STUCK, TIMED_OUT, run
from paceline.sim.help.coordinator import Coordinators
from paceline.sim.overhead import with_overheads
from paceline.sim.results import RunResult, collect
from paceline.sim.scenario import Scenario

_EVENTS_A_STEP = 2_000_000
_announced = False


def announce_compilation() -> None:
    """Say once, on a cold start, why nothing seems to happen."""
    global _announced
    # The event loop is what takes long; smaller pieces may have been compiled without it.
    if not _announced and not interpreted() and not is_on_disk(run):
        print("paceline: compiling the simulator, once (up to a minute) ...", file=sys.stderr, flush=True)
    _announced = True


def warm_up() -> None:
    """Compile (or load) everything once, before work is handed to other processes."""
    tiny = {"job": [{"workers": 2, "iterations": 1, "size": 1024, "layers": 1}]}
    simulate(Scenario.model_validate(tiny), "esa")


def simulate(
    scenario: Scenario,
    policy: str,
    *,
    seed: int | None = None,
    check: bool = False,
    rule: PriorityRule = priority,
    progress: Callable[[int, int], None] | None = None,
) -> RunResult:
    """One run; with `check`, packets carry integers and every result is compared with the true sum.

    `progress` is told now and then how many worker-iterations are done and how many there are.
    """
    announce_compilation()
    if seed is not None:
        scenario = scenario.model_copy(update={"seed": seed})
    watch = _Watch()
    scenario = with_overheads(scenario, policy, _step_s)
    setup = build(scenario, policy, scenario.seed, check, rule)
    watch.over("building")
    run(setup.world, 0, setup.room, scenario.horizon)  # compiles, or loads what was compiled
    watch.over("loading")
    started = time.perf_counter()
    coordinators = Coordinators(setup)
    reason = _run_to_end(setup, coordinators, progress, watch)
    result = collect(setup, coordinators, reason, check, time.perf_counter() - started)
    watch.over("figures")
    return replace(result, parts_s=watch.parts_s)


class _Watch:
    """Real time by part of a run."""

    def __init__(self) -> None:
        self.parts_s: dict[str, float] = {}
        self._since = time.perf_counter()

    def over(self, part: str) -> None:
        """What was done since the last call, or since the beginning, was this."""
        now = time.perf_counter()
        self.parts_s[part] = self.parts_s.get(part, 0.0) + now - self._since
        self._since = now


def _step_s(scenario: Scenario, policy: str) -> float:
    """Of a scenario with one job."""
    setup = build(scenario, policy, scenario.seed, False, priority)
    coordinators = Coordinators(setup)
    reason = _run_to_end(setup, coordinators, None)
    (job,) = collect(setup, coordinators, reason, False, 0.0).jobs
    if job.mean_iteration_s is None:
        raise UserError(
            f"its exchange cannot be simulated on one machine: {job.failed or reason}", place=job.name
        )
    return job.mean_iteration_s


def _run_to_end(
    setup: Setup,
    coordinators: Coordinators,
    progress: Callable[[int, int], None] | None,
    watch: _Watch | None = None,
) -> str:
    watch = watch or _Watch()
    total = sum(job.iterations * job.workers for job in setup.jobs)
    while True:
        stop = run(setup.world, _EVENTS_A_STEP, setup.room, setup.scenario.horizon)
        watch.over("events")
        if stop == POOL_LOW_ROOM:
            setup.world = setup.world._replace(pool=grown_pool(setup.world.pool))
        elif stop == COORDINATE:
            coordinators.attend(setup)
            watch.over("coordinators")
            continue
        elif stop == ENDED:
            return ""
        elif stop == TIMED_OUT:
            return "did not end within the horizon"
        elif stop == STUCK:
            return "came to a standstill"
        if progress is not None:
            workers = setup.world.workers
            done = int(workers.iteration.sum()) + int((workers.phase == w.FINISHED).sum())
            progress(min(done, total), total)
