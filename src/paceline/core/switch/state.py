"""What a switch keeps and how it answers: verdicts, counters, jobs, and who is admitted.

`program.py` and `switchml.py` are the programs that run over this state; a driver makes it with `new_switches` and
admits and releases jobs.
"""

from typing import Any, NamedTuple

import numpy as np

from paceline.compile.decorators import compiled, compiled_apart, compiled_inner
from paceline.core.bits import seed_word
from paceline.core.homes import HOME, SHARERS_MAX, home_word
from paceline.core.switch.memory import ALL_RULES, MARGIN, POLICY_ESA_PLUS, Memory, free, new_memory

CONSUMED = 0
TO_CUSTODIAN = 1
UP = 2
DOWN = 3
TO_WORKER = 4
DOWN_ONE = 5
DROPPED = 6
VERDICT_NAMES = ("consumed", "to custodian", "up", "down", "to worker", "down one", "dropped")

COMPLETIONS = 0
PREEMPTIONS = 1
FALLBACKS = 2
REMINDERS = 3
DOWNGRADES = 4
DUPLICATES = 5
FLUSHES = 6
PASSES = 7
DROP_JOB = 8
DROP_EPOCH = 9
DROP_INDEX = 10
DROP_STALE = 11
DROP_DEAD = 12
DROP_LEVEL = 13
DROP_MASK = 14
COUNTER_NAMES = (
    "completions",
    "preemptions",
    "fallbacks",
    "reminders",
    "downgrades",
    "duplicates",
    "flushes",
    "passes",
    "drop_unknown_job",
    "drop_old_epoch",
    "drop_bad_index",
    "drop_stale_chunk",
    "drop_dead_switch",
    "drop_bad_level",
    "drop_bad_mask",
)

CONFIG = np.dtype(
    [
        ("first", "i8"),  # its first aggregator in the memory that the driver's switches share
        ("slots", "i8"),  # how many aggregators it has
        ("stale_ns", "i8"),  # `atp`: an aggregator untouched for so long may be taken
        ("policy", "i4"),  # one of `POLICIES`
        ("rules", "i4"),  # `esa-plus`: its rules in force, of `RULES`
        ("margin", "i4"),  # `esa-plus`: by how much a holder's priority must be higher to keep its place
        ("level", "i4"),  # 1: a rack's switch; 2: the upper one
        ("relay", "i4"),  # 1: results of `esa` go by the custodian
        ("dead", "i4"),  # 1: it has lost its program, and forwards only
        ("homes", "i4"),  # jobs that have sent of late
        ("sharers", "i4"),  # the most of them that sent side by side of late
        ("sharers_ns", "i8"),  # when so many did, or when their number was made smaller
        ("counted_ns", "i8"),  # when they were counted
    ],
    align=True,
)
"""A switch."""

JOB = np.dtype(
    [
        ("active", "i4"),  # 1: the job is admitted
        ("epoch", "i4"),  # the newest epoch that was heard of
        ("priority_max", "i4"),  # higher priorities are cut to this
        ("slots_max", "i4"),  # most aggregators it may hold
        ("used", "i4"),  # aggregators it holds
        ("pool_base", "i4"),  # SwitchML: the first slot of its pool
        ("pool_size", "i4"),  # SwitchML: slots of its pool, of two sets each
        ("place", "i4"),  # which of the jobs that have sent of late it is; -1: it has not
        ("heard_ns", "i8"),  # when a gradient of it came last
    ],
    align=True,
)
"""A job as a switch knows it: what it may take, what it holds, and its static pool under SwitchML."""


class Switch(NamedTuple):
    """All switches of a driver: `config[s]`, `jobs[s, job]`, and the memory that they share out."""

    config: Any  # [s]: a `CONFIG`
    jobs: Any  # [s, job]: a `JOB`
    memory: Memory
    counters: Any  # [s, job, counter], by `COUNTER_NAMES`; the last row is for unknown jobs
    random: Any  # [s]: a xorshift word


def new_switches(
    levels: list[int],
    slots: int,
    jobs: int,
    width: int,
    policy: int,
    stale_ns: int,
    seed: int,
    relay: bool = False,
    rules: int = ALL_RULES,
    margin: int = MARGIN,
) -> Switch:
    """Switches with `slots` aggregators each, one for each entry of `levels`; no job is admitted yet."""
    count = len(levels)
    config = np.zeros(count, dtype=CONFIG).view(np.recarray)
    for s, level in enumerate(levels):
        config[s].first = s * slots
        config[s].slots = slots
        config[s].stale_ns = stale_ns
        config[s].policy = policy
        config[s].rules = rules if policy == POLICY_ESA_PLUS else 0
        config[s].margin = margin
        config[s].level = level
        config[s].relay = relay
    return Switch(
        config,
        np.zeros((count, max(jobs, 1)), dtype=JOB).view(np.recarray),
        new_memory(count * slots, width),
        np.zeros((count, max(jobs, 1) + 1, len(COUNTER_NAMES)), dtype=np.int64),
        np.array([seed_word(seed, 1000 + s) for s in range(count)], dtype=np.uint64),
    )


@compiled
def admit_job(switch: Switch, s: int, job: int, priority_max: int, pool_base: int, pool_size: int) -> None:
    """From now on packets of `job` are served; `pool_*` matter under SwitchML only (in slots of two sets)."""
    record = switch.jobs[s, job]
    record.active = 1
    record.epoch = 0
    record.priority_max = priority_max
    record.slots_max = switch.config[s].slots
    record.used = 0
    record.pool_base = pool_base
    record.pool_size = pool_size
    record.place = -1
    record.heard_ns = -SHARES_NS


@compiled
def release_job(switch: Switch, s: int, job: int) -> int:
    """The job leaves: its aggregators are freed, later packets of it are dropped. Gives how many it held."""
    config = switch.config[s]
    freed = 0
    for at in range(config.first, config.first + config.slots):
        slot = switch.memory.slots[at]
        if slot.job == job:
            free(switch.memory, at)
            freed += 1
        if slot.left == job + 1:
            slot.left = 0
    switch.jobs[s, job].active = 0
    switch.jobs[s, job].used = 0
    switch.jobs[s, job].place = -1
    config.counted_ns = -SHARES_NS
    return freed


SHARES_NS = 30_000_000_000
"""A job that has sent within this time has a home."""
SIDE_BY_SIDE_NS = 20_000_000
MEMORY_NS = 5_000_000_000
"""For how long it counts how many jobs sent side by side."""


@compiled_apart
def count_sharers(switch: Switch, s: int, now_ns: int) -> None:
    """Who has sent of late, in the order of their numbers, and how many of them side by side."""
    config = switch.config[s]
    config.counted_ns = now_ns
    config.homes = 0
    together = 0
    for job in range(switch.jobs.shape[1]):
        record = switch.jobs[s, job]
        record.place = -1
        if record.active != 0 and record.heard_ns > now_ns - SHARES_NS and config.homes < SHARERS_MAX:
            record.place = config.homes
            config.homes += 1
            together += record.heard_ns > now_ns - SIDE_BY_SIDE_NS
    if together >= config.sharers:
        config.sharers = together
        config.sharers_ns = now_ns
    elif now_ns - config.sharers_ns > MEMORY_NS:
        config.sharers -= 1
        config.sharers_ns = now_ns


@compiled_inner
def tell_home(switch: Switch, s: int, packet: Any, now_ns: int) -> None:
    """What leaves for a job that asks says where its home is.

    Nowhere in particular, where less than half of the jobs send side by side: a part for each would leave much idle.
    """
    config = switch.config[s]
    record = switch.jobs[s, packet.job]
    if record.place < 0 or now_ns - config.counted_ns > SIDE_BY_SIDE_NS:
        count_sharers(switch, s, now_ns)
    packet.offer = HOME
    if record.place >= 0 and config.homes > 1 and 2 * config.sharers >= config.homes:
        packet.offer = home_word(record.place, config.homes)
