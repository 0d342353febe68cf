"""Which way contributions go: by the switch, or straight to custodians; when to change, and when to give up.

A switch says nothing while a worker is late, so silence alone proves nothing: an agent that waits asks (a query that
a living switch brings back). No answer for `silence_ns`, asked at least three times: the switch is taken for dead,
everything under way goes to the custodians, and each change is an event. From then on the agent goes on asking;
when every shard answers, new contributions go by the switch again. Workers decide for themselves: masks make every
mixture of the two ways exact.

A switch can answer and be of no use: where a standstill (`core.progress`) has lasted for `_SLOW_NS` on the way by
the switch, it is left as if it were dead. It is not tried again for `hold_off_ns`, nor is one that was left again
within `_FORGIVEN_NS` of the return to it, for whatever reason; twice as long each further time.
"""

from typing import Any

from paceline.compile.decorators import compiled, compiled_apart, compiled_inner
from paceline.core.custodian import program as custody
from paceline.core.progress import GOOD, LOOK_EVERY_NS, look, rest, slow_ns
from paceline.core.sender import program as sending
from paceline.core.sender.program import NEVER_NS
from paceline.core.wire import LEAVES, PULL
from paceline.live.agent.receive import pull
from paceline.live.agent.send import ping_switch, send_small, shard_of, tell_done
from paceline.live.agent.state import (
    BECAUSE_ANSWERS,
    BECAUSE_ASKED,
    BECAUSE_SILENT,
    BECAUSE_SLOW,
    BY_CUSTODIANS,
    BY_SWITCH,
    COMMAND_CUSTODIANS,
    COMMAND_PROBE,
    COMMAND_SWITCH,
    EVENT_PATH,
    EVENT_SLOW,
    NO_FAILURE,
    PATH_CHANGES,
    RESULTS,
    STANDSTILLS,
    SWITCH_SILENT,
    TIMED_OUT,
    Loop,
)
from paceline.live.agent.tensors import fail, note

_ASKS_BEFORE_DEATH = 3
_TURNS_OF_SILENCE = 10
_TELL_EVERY_NS = 20_000_000
_SLOW_NS = 4_000_000_000
_FORGIVEN_NS = 60_000_000_000
_HOLD_OFF_DOUBLES = 5


@compiled_apart
def handle_command(loop: Loop, now_ns: int) -> None:
    """Python asks for another way, or suspects the switch."""
    control = loop.control[0]
    command = control.command
    control.command = 0
    if command & COMMAND_CUSTODIANS:
        control.switch_allowed = 0
        if control.path == BY_SWITCH:
            change_path(loop, BY_CUSTODIANS, BECAUSE_ASKED, now_ns)
    if command & COMMAND_SWITCH:
        control.switch_allowed = 1
        control.leaves = 0
        control.ping_due_ns = now_ns
        control.source = 0
    if command & COMMAND_PROBE:
        control.ping_due_ns = now_ns


@compiled_apart
def change_path(loop: Loop, path: int, reason: int, now_ns: int) -> None:
    """Another way from now on; what went to a dead switch goes again."""
    control = loop.control[0]
    control.path = path
    if path == BY_CUSTODIANS and reason != BECAUSE_ASKED:
        stayed_ns = now_ns - control.path_since_ns
        control.leaves = leaves_after(control.leaves, reason == BECAUSE_SLOW, stayed_ns)
    control.path_since_ns = now_ns
    control.waiting_since_ns = now_ns
    control.pings = 0
    rest(loop.progress[0], loop.counters[RESULTS], now_ns)
    loop.counters[PATH_CHANGES] += 1
    loop.custodians.state[0].reminders = 1 if path == BY_SWITCH and control.reminds != 0 else 0
    if path == BY_CUSTODIANS:
        sending.change_epoch(loop.senders, 0, loop.senders.state[0].epoch)
    note(loop, EVENT_PATH, path, reason, now_ns)


@compiled_inner
def _heard_ns(loop: Loop) -> int:
    """When the shard that has been silent longest was last heard."""
    heard = NEVER_NS
    for shard in range(loop.control[0].shards):
        heard = min(heard, loop.shard_heard[shard])
    return int(heard)


@compiled_apart
def watch_switch(loop: Loop, now_ns: int) -> int:
    """Ask where there is silence, change the way where that is due; when to look again."""
    control = loop.control[0]
    if control.shards == 0 or control.switch_allowed == 0 or control.failed != NO_FAILURE:
        return int(NEVER_NS)
    if control.path == BY_SWITCH and loop.senders.state[0].unfinished == 0:
        control.waiting_since_ns = now_ns
        control.pings = 0
        return int(NEVER_NS)
    heard_ns = _heard_ns(loop)
    silence_ns = max(control.silence_ns, _TURNS_OF_SILENCE * control.step_ns)
    every_ns = silence_ns // 4
    since_ns = max(heard_ns, control.waiting_since_ns)
    if control.path == BY_SWITCH:
        if now_ns < since_ns + every_ns:
            control.pings = 0
            return int(since_ns + every_ns)
        if control.pings >= _ASKS_BEFORE_DEATH and now_ns >= since_ns + silence_ns:
            _switch_is_dead(loop, now_ns)
            return now_ns
    elif now_ns < _held_until_ns(control):
        return int(_held_until_ns(control))
    elif heard_ns > control.path_since_ns and now_ns - heard_ns < 2 * every_ns:
        change_path(loop, BY_SWITCH, BECAUSE_ANSWERS, now_ns)
        return int(now_ns + every_ns)
    if now_ns >= control.ping_due_ns:
        # On the way back the switch is asked as often as ever, however slow this machine was once.
        control.ping_due_ns = now_ns + (every_ns if control.path == BY_SWITCH else control.silence_ns // 4)
        control.pings += 1
        ping_switch(loop)
    return int(control.ping_due_ns)


@compiled
def leaves_after(leaves: int, was_slow: bool, stayed_ns: int) -> int:
    """How often the switch was left of late, this time counted; the first time for lack of progress counts as two."""
    if stayed_ns > _FORGIVEN_NS:
        leaves = 0
    return max(leaves + 1, 2 if was_slow else 1)


@compiled
def kept_away_ns(leaves: int, hold_off_ns: int) -> int:
    """For how long a switch that was left so often is not tried again."""
    if leaves < 2:
        return 0
    return hold_off_ns << min(leaves - 2, _HOLD_OFF_DOUBLES)


@compiled_inner
def _held_until_ns(control: Any) -> int:
    return int(control.path_since_ns + kept_away_ns(control.leaves, control.hold_off_ns))


@compiled_apart
def watch_progress(loop: Loop, now_ns: int) -> int:
    """Tell of a standstill, and leave the switch where it lasts; when to look again."""
    control = loop.control[0]
    progress = loop.progress[0]
    sender = loop.senders.state[0]
    if sender.unfinished == 0 or control.failed != NO_FAILURE:
        rest(progress, loop.counters[RESULTS], now_ns)
        return int(NEVER_NS)
    cause = look(progress, sender, loop.counters[RESULTS], now_ns)
    if cause != GOOD:
        loop.counters[STANDSTILLS] += 1
        note(loop, EVENT_SLOW, cause, control.path, now_ns)
    if control.path == BY_SWITCH and control.pool == 0 and slow_ns(progress, now_ns) >= _SLOW_NS:
        change_path(loop, BY_CUSTODIANS, BECAUSE_SLOW, now_ns)
    return int(max(now_ns, progress.since_ns) + LOOK_EVERY_NS)


@compiled_apart
def _switch_is_dead(loop: Loop, now_ns: int) -> None:
    if loop.control[0].pool != 0:
        fail(loop, SWITCH_SILENT, now_ns)
    else:
        change_path(loop, BY_CUSTODIANS, BECAUSE_SILENT, now_ns)


@compiled_inner
def watch_deadline(loop: Loop, now_ns: int) -> int:
    """End what has taken too long; when the oldest tensor's time is up."""
    control = loop.control[0]
    if control.tail >= control.taken or control.failed != NO_FAILURE:
        return int(NEVER_NS)
    deadline_ns = loop.tasks[control.tail % loop.tasks.shape[0]].deadline_ns
    if now_ns >= deadline_ns:
        fail(loop, TIMED_OUT, now_ns)
        return int(NEVER_NS)
    return int(deadline_ns)


@compiled_apart
def custodian_round(loop: Loop, now_ns: int) -> None:
    """Ask for what this custodian lacks: reminders to the switch, pulls to the workers."""
    control = loop.control[0]
    packet = loop.packets[2]
    custody.handle_timeout(loop.custodians, 0, now_ns)
    while custody.poll_transmit(loop.custodians, 0, packet):
        if packet.kind == PULL:
            pull(loop, packet, now_ns)
        elif control.path == BY_SWITCH:
            send_small(loop.out, packet, shard_of(loop, packet.chunk))


@compiled_apart
def take_leave(loop: Loop, now_ns: int) -> int:
    """Closing: has everyone all results that we could give? Else ask, and say when to look again."""
    control = loop.control[0]
    goal = loop.senders.state[0].next
    missing = 0
    for peer in range(control.workers):
        if peer != control.worker and loop.peer_done[peer] < goal:
            missing += 1
    if missing == 0:
        control.left = 1
        return now_ns
    if now_ns >= control.ack_due_ns:
        control.ack_due_ns = now_ns + _TELL_EVERY_NS
        for peer in range(control.workers):
            if peer != control.worker and loop.peer_done[peer] < goal:
                tell_done(loop, peer, LEAVES)
    return int(control.ack_due_ns)
