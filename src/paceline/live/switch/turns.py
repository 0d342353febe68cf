"""A job's share of a shard's time: where packets queue up, no job takes more than its share while others want some.

    may_be_served   before a genuine packet goes to the program
    spend           what a packet costs: its arrival, and each copy that leaves
    end_turn        after each batch; a turn is at least `TURN_NS` long

A shard that keeps up limits nobody. It is crowded when its socket's queue was more than half full at the end of
`_CROWDED_TURNS` turns in a row, and several jobs were served. From then on, and for a second after the last such
turn, the greediest jobs have `SHARE` of every turn that begins with such a queue, in equal parts; what one sends
beyond its part is dropped (`over_share`) before it costs a sum or a copy. How many they are follows from what each
took: one job that floods has all of `SHARE`, six have an eighth of the turn each, and who wants less is not limited.
Who may be kept out is judged by genuine packets alone: nobody can spend another job's turn.

A flood still costs its receipt. `police.Policer` has the kernel refuse the part that would be dropped here anyway.
"""

from typing import Any

from paceline.compile.decorators import compiled, compiled_inner
from paceline.live.net.syscalls import getsockopt
from paceline.live.switch.shard_state import Shard

TURN_NS = 20_000_000
SHARE = 0.75
ARRIVAL_UNITS = 2
COPY_UNITS = 2
DROP_UNITS = 1
"""Receiving a packet costs about half of serving it."""
_CROWDED_TURNS = 5
_LIMITED_NS = 1_000_000_000
_SOL_SOCKET = 1
_SO_MEMINFO = 55
_MEMINFO_BYTES = 36
_READ_ALLOCATED = 0
_READ_LIMIT = 1
_LENGTH = 12


@compiled_inner
def may_be_served(shard: Shard, job: int, time_ns: int) -> bool:
    """Has the job something left of this turn? Always, where nothing queues up."""
    cells = shard.cells[0]
    return bool(cells.backlog_turns == 0 or time_ns >= cells.limited_until_ns or shard.jobs[job].left > 0)


@compiled_inner
def spend(entry: Any, units: int) -> None:
    """Take it from the job's turn."""
    entry.units += units
    entry.left -= units


@compiled
def end_turn(shard: Shard, time_ns: int) -> None:
    """Count what the jobs took of the turn that is over, and give each its part of the next."""
    cells = shard.cells[0]
    elapsed_ns = time_ns - cells.turn_ns
    if elapsed_ns < TURN_NS:
        return
    units = 0
    served = 0
    for job in range(shard.jobs.shape[0] - 1):
        units += shard.jobs[job].units
        served += 1 if shard.jobs[job].units > 0 else 0
    if units > 0:
        unit_ns = max(elapsed_ns - cells.asleep_ns, 1) / units
        cells.backlog_turns = cells.backlog_turns + 1 if _queue_is_long(shard) else 0
        if cells.backlog_turns >= _CROWDED_TURNS and served > 1:
            cells.limited_until_ns = time_ns + _LIMITED_NS
        part = SHARE / _greediest(shard, units, served)
        for job in range(shard.jobs.shape[0] - 1):
            entry = shard.jobs[job]
            entry.work_ns += int(entry.units * unit_ns)
            entry.units = 0
            entry.left = int(part * elapsed_ns / unit_ns)
    cells.turn_ns = time_ns
    cells.asleep_ns = 0


@compiled_inner
def _greediest(shard: Shard, units: int, served: int) -> int:
    """The most jobs that all took more than their part of `SHARE`, were it split among so many; at least one."""
    greedy = served
    while greedy > 1:
        above = 0
        for job in range(shard.jobs.shape[0] - 1):
            above += 1 if shard.jobs[job].units * greedy > SHARE * units else 0
        if above >= greedy:
            break
        greedy = max(above, 1)
    return max(greedy, 1)


@compiled_inner
def _queue_is_long(shard: Shard) -> bool:
    memory = shard.memory
    memory[_LENGTH] = _MEMINFO_BYTES
    address = shard.cells[0].memory
    if getsockopt(shard.cells[0].fd, _SOL_SOCKET, _SO_MEMINFO, address, address + 4 * _LENGTH) != 0:
        return False
    return bool(2 * memory[_READ_ALLOCATED] > memory[_READ_LIMIT])
