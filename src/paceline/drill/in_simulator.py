"""A drill in virtual time: the same job and faults in the simulator, compared with the same job unharmed.

The engine runs up to the time of the next fault, the fault changes the world's records, and the engine goes on. What
differs from the live system: a dead or stopped switch still forwards (its program alone is gone), a cut or narrowed
path is the worker's whole link, and nobody changes paths. So the job may lose, beside the bound, the time that its
faults last.
"""

from collections.abc import Callable
from typing import Any

from paceline.core.bits import threshold_of
from paceline.core.priority import priority
from paceline.drill.outcome import DrillOutcome
from paceline.drill.plan import SWITCH, Drill, DrillFault
from paceline.sim.build.arrays import Setup, build
from paceline.sim.engine import world as w
from paceline.sim.engine.links import grown_pool
from paceline.sim.engine.loop import ENDED, POOL_LOW_ROOM, STUCK, TIMED_OUT, run
from paceline.sim.help.coordinator import Coordinators
from paceline.sim.results import RunResult, collect
from paceline.sim.run import announce_compilation
from paceline.sim.scenario import Scenario

JOB = "drill"
RATE_BPS = 1e9
ELEMENTS = 352
POLICY = "esa-plus"
MILLION = 1_000_000
_EVENTS_A_STEP = 2_000_000
Change = tuple[int, Callable[[Setup], None]]
"""When, and what is done to the world."""


def run_in_simulator(drill: Drill) -> DrillOutcome:
    """Run it; sums are compared with the true ones."""
    announce_compilation()
    plain = _simulate(drill, [])
    whole_s = plain.jobs[0].jct_s
    assert whole_s is not None, plain.failed
    step_ns = whole_s * 1e9 / drill.steps
    changes = [change for fault in drill.fault for change in _changes(fault, step_ns)]
    struck = _simulate(drill, sorted(changes, key=lambda change: change[0]))
    ended_s = struck.jobs[0].jct_s
    lasting_s = sum(fault.duration for fault in drill.fault) / 1e9
    return DrillOutcome(
        drill.name,
        "sim",
        steps=drill.steps if ended_s is not None else 0,
        steps_wanted=drill.steps,
        sums=struck.checked,
        wrong=struck.wrong,
        recovery_s=max(0.0, ended_s - whole_s) if ended_s is not None else 1e9,
        bound_s=drill.bound / 1e9 + lasting_s,
        notes=[struck.failed] if struck.failed else [],
    )


def _scenario(drill: Drill) -> Scenario:
    size = 4 * drill.elements
    lasting_s = (drill.steps * drill.pace + sum(fault.duration for fault in drill.fault)) / 1e9
    return Scenario.model_validate(
        {
            "seed": drill.seed,
            "horizon": f"{20 * lasting_s + 60:.3f} s",
            "network": {"rate": RATE_BPS, "elements": ELEMENTS, "delay": "20 us"},
            "transport": {"resends_max": 1_000_000},
            "custodians": {"placement": "workers"},
            # So rare that it never happens: links get what loss needs.
            "faults": {"reorder": 1e-12} if any(fault.action == "lose" for fault in drill.fault) else {},
            "job": [
                {
                    "name": JOB,
                    "workers": drill.workers,
                    "iterations": drill.steps,
                    "size": size,
                    "layers": 1,
                    "ratio": size * 8 / RATE_BPS / (drill.pace / 1e9),
                    "overlap": "ddp",
                }
            ],
        }
    )


def _simulate(drill: Drill, changes: list[Change]) -> RunResult:
    """One run, interrupted where the world changes."""
    scenario = _scenario(drill)
    setup = build(scenario, POLICY, scenario.seed, True, priority)
    coordinators = Coordinators(setup)
    for time_ns, change in changes:
        if _run_until(setup, time_ns) == ENDED:
            break
        change(setup)
    stop = _run_until(setup, scenario.horizon)
    reason = {ENDED: "", STUCK: "came to a standstill"}.get(stop, "did not end within the horizon")
    return collect(setup, coordinators, reason, True, 0.0)


def _run_until(setup: Setup, time_ns: int) -> int:
    """Until a time, or the end; what comes later waits."""
    while True:
        stop = int(run(setup.world, _EVENTS_A_STEP, setup.room, time_ns))
        if stop == POOL_LOW_ROOM:
            setup.world = setup.world._replace(pool=grown_pool(setup.world.pool))
        elif stop in (ENDED, TIMED_OUT, STUCK):
            return stop


def _changes(fault: DrillFault, step_ns: float) -> list[Change]:
    """What strikes, and its end."""
    start = fault.at if fault.at is not None else round((fault.step or 0) * step_ns)
    strike, undo = _strike_and_undo(fault)
    return [(start, strike), (start + fault.duration, undo)]


def _strike_and_undo(fault: DrillFault) -> tuple[Callable[[Setup], None], Callable[[Setup], None]]:
    target = fault.target
    if fault.action == "lose":
        loss = threshold_of(fault.probability)
        return (lambda setup: _set_loss(setup, loss)), (lambda setup: _set_loss(setup, 0))
    if target == SWITCH:
        # A switch that is slow is as good as stopped: what it holds is there again later.
        killed = fault.action == "kill"
        return (lambda setup: _stop_switch(setup, killed)), _start_switch
    if fault.action == "slow":
        slow = round(fault.factor * MILLION)
        return (lambda setup: _set_pace(setup, target, slow)), (
            lambda setup: _set_pace(setup, target, MILLION)
        )
    # A worker that is stopped is not heard, and hears nothing. Too long are gradients, which only the worker sends.
    direction = {"narrow": "from", "stop": "both"}.get(fault.action, fault.direction)
    limits: dict[int, int] = {}
    return (
        (lambda setup: _cut(setup, target, direction, limits)),
        (lambda setup: _mend(setup, limits)),
    )


def _set_loss(setup: Setup, threshold: int) -> None:
    setup.world.control[w.LOSS] = threshold


def _set_pace(setup: Setup, worker: int, millionths: int) -> None:
    setup.world.workers[worker].slow_num = millionths


def _stop_switch(setup: Setup, killed: bool) -> None:
    switch: Any = setup.world.switch
    config = switch.config[0]
    config.dead = 1
    if not killed:
        return
    for at in range(int(config.first), int(config.first + config.slots)):
        slot = switch.memory.slots[at]
        if slot.job >= 0:
            switch.jobs[0, slot.job].used -= 1
        slot.job = -1
        slot.state = 0


def _start_switch(setup: Setup) -> None:
    setup.world.switch.config[0].dead = 0


def _cut(setup: Setup, worker: int, direction: str, limits: dict[int, int]) -> None:
    """A queue of less than nothing takes nothing; `limits` remembers what it was."""
    host, hosts = setup.topology.worker_hosts[0][worker], setup.topology.hosts
    # The uplink of host h is link h, its downlink H + h (`forwarding.py`).
    links = [*([host] if direction != "to" else []), *([hosts + host] if direction != "from" else [])]
    for link in links:
        limits[link] = int(setup.world.links.state[link].queue_fs)
        setup.world.links.state[link].queue_fs = -1


def _mend(setup: Setup, limits: dict[int, int]) -> None:
    for link, limit in limits.items():
        setup.world.links.state[link].queue_fs = limit
