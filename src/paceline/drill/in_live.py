"""A drill against the live system: faults strike real processes and paths at their times, and the steps are judged."""

import signal
import time
from collections import defaultdict
from collections.abc import Callable

from paceline.drill.live_bed import LiveBed, StepSeen
from paceline.drill.live_worker import ROUND
from paceline.drill.outcome import DrillOutcome
from paceline.drill.plan import Drill, DrillFault

SETTLE_S = 20.0
"""So long a drill waits for the workers to use the switch, before it begins."""
RETURN_S = 4.0
"""So long workers may take to return to the switch after a drill; one that was left again and again is not tried."""
LIMIT_S = 60.0
"""A drill ends so long after it could have, at the latest."""


def run_live(drill: Drill, bed: LiveBed) -> DrillOutcome:
    """Run it on a bed of as many workers, which is left as it was."""
    if bed.world == "loopback":
        away = [fault.action for fault in drill.fault if fault.action in ("cut", "narrow")]
        if away:
            return _judged(drill, bed, [], 0, 0.0, skipped=f"{away[0]} needs namespaces, and so root")
    settled = bed.settle(SETTLE_S)
    bed.seen.clear()
    first = bed.allowed
    begun = time.monotonic()
    bed.allow(drill.steps)
    schedule = _Schedule(drill, bed, first, begun)
    limit = begun + drill.steps * drill.pace / 1e9 * 4 + LIMIT_S
    limit += sum(fault.duration for fault in drill.fault) / 1e9
    try:
        while time.monotonic() < limit and not (bed.is_done() and schedule.is_over()):
            bed.poll(0.01)
            schedule.attend(time.monotonic())
    finally:
        schedule.undo_all()
    finished = bed.is_done() or bed.collect(LIMIT_S)
    notes = [] if finished else ["did not end in time"]
    notes += [] if settled else ["began without the switch"]
    return _judged(drill, bed, bed.seen, first, schedule.struck_at or begun, notes=notes)


class _Schedule:
    """Which faults are due, and which are to be undone."""

    def __init__(self, drill: Drill, bed: LiveBed, first_step: int, begun: float) -> None:
        self._bed, self._drill, self._first, self._begun = bed, drill, first_step, begun
        self._waiting = list(drill.fault)
        self._undo: list[tuple[float, Callable[[], None]]] = []
        self.struck_at = 0.0
        """When the first fault struck."""

    def is_over(self) -> bool:
        """Nothing is due any more."""
        return not self._waiting and not self._undo

    def attend(self, now: float) -> None:
        """Do what is due."""
        for when, undo in list(self._undo):
            if when <= now:
                self._undo.remove((when, undo))
                undo()
        for fault in list(self._waiting):
            if self._is_due(fault, now):
                self._waiting.remove(fault)
                self.struck_at = self.struck_at or now
                self._undo.append((now + fault.duration / 1e9, self._strike(fault)))

    def undo_all(self) -> None:
        """Whatever still holds."""
        self._waiting.clear()
        for _, undo in self._undo:
            undo()
        self._undo.clear()

    def _is_due(self, fault: DrillFault, now: float) -> bool:
        if fault.at is not None:
            return now - self._begun >= fault.at / 1e9
        seen = [each.step - self._first for each in self._bed.seen]
        return bool(seen) and max(seen) >= (fault.step or 0)

    def _strike(self, fault: DrillFault) -> Callable[[], None]:
        """Do it; gives what undoes it."""
        bed, target = self._bed, fault.target
        if fault.action == "kill":
            bed.kill_switch()
            return bed.start_switch
        if fault.action == "lose":
            bed.kill_switch()
            bed.start_switch(fault.probability, self._drill.seed)
            return self._restart
        if fault.action == "stop":
            bed.send(target, signal.SIGSTOP)
            return lambda: bed.send(target, signal.SIGCONT)
        if fault.action == "slow":
            bed.slow(target, fault.factor)
            return lambda: bed.unslow(target)
        if fault.action == "narrow":
            bed.narrow(target, fault.mtu)
            return lambda: bed.narrow(target, 0)
        bed.route(target, fault.direction, True)
        return lambda: bed.route(target, fault.direction, False)

    def _restart(self) -> None:
        self._bed.kill_switch()
        self._bed.start_switch()


def _judged(
    drill: Drill, bed: LiveBed, seen: list[StepSeen], first: int, struck_at: float, *,
    notes: list[str] | None = None, skipped: str = "",
) -> DrillOutcome:  # fmt: skip
    ends: dict[int, list[float]] = defaultdict(list)
    wrong = 0
    for each in seen:
        ends[each.step].append(each.time)
        wrong += not each.right or each.digest != bed.reference[each.step % ROUND]
    whole = sorted(max(times) for times in ends.values() if len(times) == bed.workers)
    pace_s = drill.pace / 1e9
    gaps = [
        later - max(earlier, struck_at) - pace_s
        for earlier, later in zip([struck_at, *whole], whole, strict=False)
        if later > struck_at
    ]
    return DrillOutcome(
        drill.name,
        bed.world,
        steps=len(whole),
        steps_wanted=drill.steps,
        sums=len(seen),
        wrong=wrong,
        recovery_s=max([0.0, *gaps]),
        bound_s=(drill.bound + drill.standstill_ns()) / 1e9,
        path_after=seen[-1].path if seen else "",
        skipped=skipped,
        notes=notes or [],
    )
