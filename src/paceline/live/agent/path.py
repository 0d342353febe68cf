"""Which way contributions go: by the switch, or straight to custodians; when to change, and when to give up.

A switch says nothing while a worker is late, so silence alone proves nothing: an agent that waits asks, with queries
that a living switch brings back, one of them of full size. Only what came back of full size, and results of that
size, prove the way there and back; other packets of the switch prove the way here alone. No proof for
`silence_ns`, asked at least three times: everything under way goes to the custodians, and each change is an event.

**Together.** Masks make every mixture of the two ways exact, but a mixture is slow: each sum waits for a reminder. So
a worker that cannot use the switch says so to the others, with what it knows of the reason, and they leave it too. On
the custodians' way all go on asking the switch, and tell each other; when each of them has proved it anew, both ways
and with packets of full size, new contributions go by the switch again. Who was told by Python to do without it
(`COMMAND_CUSTODIANS`) tells nobody.

A switch can answer and be of no use: where a standstill (`core.progress`) has lasted for `_SLOW_NS` on the way by
the switch, it is left as if it were dead; so it is where hardly any results came for so long, and most questions to
the switch were lost. It is not tried again for `hold_off_ns`, nor is one that was left again
within `_FORGIVEN_NS` of the return to it, for whatever reason; twice as long each further time.
"""

from typing import Any

from paceline.compile.decorators import compiled, compiled_apart, compiled_inner
from paceline.core.custodian import program as custody
from paceline.core.progress import GOOD, LOOK_EVERY_NS, look, rest, restart, slow_ns
from paceline.core.sender import program as sending
from paceline.core.sender.flights import forget_backoff
from paceline.core.sender.program import NEVER_NS
from paceline.core.wire import LEAVES, PULL
from paceline.live.agent.receive import pull
from paceline.live.agent.send import ping_switch, send_small, shard_of, tell_done, tell_path
from paceline.live.agent.state import (
    BECAUSE_ANSWERS,
    BECAUSE_ASKED,
    BECAUSE_DOWN,
    BECAUSE_LOSSY,
    BECAUSE_NARROW,
    BECAUSE_SILENT,
    BECAUSE_SLOW,
    BECAUSE_UP,
    BY_CUSTODIANS,
    BY_SWITCH,
    CANNOT,
    COMMAND_CUSTODIANS,
    COMMAND_FORGIVE,
    COMMAND_PROBE,
    COMMAND_SWITCH,
    EVENT_PATH,
    EVENT_SLOW,
    HAS_PROVED,
    NO_FAILURE,
    PATH_CHANGES,
    RESULTS,
    STANDSTILLS,
    SWITCH_SILENT,
    TIMED_OUT,
    WAITS_TO_USE,
    Loop,
)
from paceline.live.agent.tensors import fail, note

_ASKS_BEFORE_DEATH = 3
_ASKS_IN_VAIN = 2
_PINGS_A_SILENCE = 8
_PING_SLOW_NS = 125_000_000
_SEEK_NS = 1_000_000_000
_ASKS_BEFORE_LOSS = 6
_TURNS_OF_SILENCE = 10
_TELL_EVERY_NS = 20_000_000
_SLOW_NS = 1_500_000_000
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
    if command & COMMAND_FORGIVE:
        control.leaves = 0
    if command & COMMAND_SWITCH:
        control.switch_allowed = 1
        control.job = control.next_job
        loop.senders.state[0].job = control.job
        loop.custodians.state[0].job = control.job
        control.ping_due_ns = now_ns
        control.source = 0
    if command & COMMAND_PROBE:
        control.ping_due_ns = now_ns


@compiled_apart
def change_path(loop: Loop, path: int, reason: int, now_ns: int, worker: int = -1) -> None:
    """Another way from now on, for our own reason or that of `worker`; what went to a dead switch goes again."""
    control = loop.control[0]
    control.path = path
    if path == BY_CUSTODIANS and reason != BECAUSE_ASKED:
        stayed_ns = now_ns - control.path_since_ns
        was_slow = reason == BECAUSE_SLOW or reason == BECAUSE_LOSSY
        control.leaves = leaves_after(control.leaves, was_slow, stayed_ns)
    control.left_because = reason if path == BY_CUSTODIANS else 0
    control.path_since_ns = now_ns
    control.waiting_since_ns = now_ns
    control.pings = 0
    restart(loop.progress[0])
    loop.counters[PATH_CHANGES] += 1
    loop.custodians.state[0].reminders = 1 if path == BY_SWITCH and control.reminds != 0 else 0
    if path == BY_CUSTODIANS:
        sending.change_epoch(loop.senders, 0, loop.senders.state[0].epoch)
    note(loop, EVENT_PATH, path, reason, now_ns, worker)


@compiled_inner
def _proved_ns(loop: Loop) -> int:
    """When the shard that was proved longest ago was: both ways, with a packet of full size."""
    proved = NEVER_NS
    for shard in range(loop.control[0].shards):
        proved = min(proved, loop.shard_proved[shard])
    return int(proved)


@compiled_inner
def _heard_ns(loop: Loop) -> int:
    """When anything last came from the switch."""
    heard = 0
    for shard in range(loop.control[0].shards):
        heard = max(heard, loop.shard_heard[shard])
    return int(heard)


@compiled_apart
def watch_switch(loop: Loop, now_ns: int) -> int:
    """Ask where there is silence, change the way where that is due; when to look again."""
    control = loop.control[0]
    if control.shards == 0 or control.switch_allowed == 0 or control.failed != NO_FAILURE:
        return int(NEVER_NS)
    silence_ns = max(control.silence_ns, _TURNS_OF_SILENCE * control.step_ns)
    every_ns = silence_ns // 4
    proved_ns = _proved_ns(loop)
    if control.path != BY_SWITCH:
        return _seek_switch(loop, proved_ns, now_ns)
    if control.pool == 0:
        peer = _who_cannot(loop)
        if peer >= 0:
            _follow(loop, peer, now_ns - proved_ns < 2 * every_ns, now_ns)
            return now_ns
    if loop.senders.state[0].unfinished == 0:
        control.waiting_since_ns = now_ns
        control.pings = 0
        return int(NEVER_NS)
    since_ns = max(proved_ns, control.waiting_since_ns)
    slow = loop.progress[0].slow_since_ns != 0
    if now_ns < since_ns + every_ns:
        if control.pings >= _ASKS_IN_VAIN:
            # It was away for less than it takes to leave it: nobody waits for the end of a back-off.
            forget_backoff(loop.senders, 0, now_ns)
        control.pings = 0
        if not slow:
            return int(since_ns + every_ns)
    if control.pings >= _ASKS_BEFORE_DEATH and now_ns >= since_ns + silence_ns:
        _switch_is_dead(loop, silence_ns, now_ns)
        return now_ns
    if now_ns >= control.ping_due_ns:
        wait_ns = silence_ns // _PINGS_A_SILENCE
        control.ping_due_ns = now_ns + (min(wait_ns, _PING_SLOW_NS) if slow else wait_ns)
        control.pings += 1
        ping_switch(loop)
    if now_ns < since_ns + silence_ns:
        return int(min(control.ping_due_ns, since_ns + silence_ns))
    return int(control.ping_due_ns)


@compiled_apart
def _seek_switch(loop: Loop, proved_ns: int, now_ns: int) -> int:
    """On the custodians' way: prove the switch, tell the others, and return with them; when to look again."""
    control = loop.control[0]
    # The switch is asked as often as ever, however slow this machine was once.
    every_ns = min(control.silence_ns // 4, _SEEK_NS)
    held_until_ns = _held_until_ns(control)
    state = CANNOT if control.left_because != 0 else WAITS_TO_USE
    if proved_ns > control.path_since_ns and now_ns - proved_ns < 2 * every_ns and now_ns >= held_until_ns:
        state = HAS_PROVED
        control.left_because = 0
        if _nobody_waits(loop):
            change_path(loop, BY_SWITCH, BECAUSE_ANSWERS, now_ns)
            return int(now_ns + every_ns)
    if now_ns >= control.ping_due_ns:
        control.ping_due_ns = now_ns + every_ns
        _tell_all(loop, state)
        if now_ns >= held_until_ns:
            ping_switch(loop)
    return int(control.ping_due_ns)


@compiled_inner
def _who_cannot(loop: Loop) -> int:
    """A worker that says it cannot use the switch, or -1."""
    for peer in range(loop.control[0].workers):
        if loop.peer_path[peer] == CANNOT:
            return peer
    return -1


@compiled_inner
def _nobody_waits(loop: Loop) -> bool:
    """Can all others, as far as they have told, use the switch?"""
    waits = False
    for peer in range(loop.control[0].workers):
        waits |= loop.peer_path[peer] == CANNOT or loop.peer_path[peer] == WAITS_TO_USE
    return not waits


@compiled_apart
def _tell_all(loop: Loop, state: int) -> None:
    control = loop.control[0]
    for peer in range(control.workers):
        if peer != control.worker:
            tell_path(loop, peer, state)


@compiled_apart
def _follow(loop: Loop, peer: int, proved: bool, now_ns: int) -> None:
    """Another worker cannot use the switch: this one leaves it too, and notes whose packets are lost on which way."""
    reason, worker = loop.peer_reason[peer], peer
    sender = loop.senders.state[0]
    if reason == BECAUSE_SILENT:
        ahead = sender.oldest > loop.peer_oldest[peer]
        if proved or (ahead and sender.unfinished == 0):
            # Results that we have and it has not hold its contribution: that one arrived.
            reason = BECAUSE_DOWN if ahead else BECAUSE_UP
        elif sender.unfinished > 0:
            # We wait too, and nothing comes back: the switch is gone for everyone.
            worker = -1
    change_path(loop, BY_CUSTODIANS, reason, now_ns, worker)
    loop.control[0].left_because = 0
    loop.control[0].ping_due_ns = now_ns


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
        rest(progress, sender, loop.counters[RESULTS], now_ns)
        return int(NEVER_NS)
    cause = look(progress, sender, loop.counters[RESULTS], now_ns)
    if cause != GOOD:
        loop.counters[STANDSTILLS] += 1
        note(loop, EVENT_SLOW, cause, control.path, now_ns)
    if progress.slow_since_ns == 0:
        control.asked = control.answered = 0
    patience_ns = max(_SLOW_NS, _TURNS_OF_SILENCE * control.step_ns)
    if control.path == BY_SWITCH and control.pool == 0 and slow_ns(progress, now_ns) >= patience_ns:
        _leave(loop, BECAUSE_SLOW, now_ns)
    elif control.path == BY_SWITCH and control.pool == 0 and _loses_questions(loop, patience_ns, now_ns):
        loop.counters[STANDSTILLS] += 1
        _leave(loop, BECAUSE_LOSSY, now_ns)
    return int(max(now_ns, progress.since_ns) + LOOK_EVERY_NS)


@compiled_inner
def _loses_questions(loop: Loop, patience_ns: int, now_ns: int) -> bool:
    """Slow for long, and most questions of full size do not come back? Those of a worker that waits for others do."""
    control, since_ns = loop.control[0], loop.progress[0].slow_since_ns
    lost = control.asked >= _ASKS_BEFORE_LOSS * control.shards and 2 * control.answered < control.asked
    return bool(lost and since_ns != 0 and now_ns - since_ns >= patience_ns)


@compiled_apart
def _switch_is_dead(loop: Loop, silence_ns: int, now_ns: int) -> None:
    """Nothing of full size comes back. What else came of late tells where it is lost."""
    control = loop.control[0]
    reason = BECAUSE_SILENT
    if now_ns - control.echo_ns < silence_ns // 2:
        reason = BECAUSE_NARROW
    elif now_ns - _heard_ns(loop) < silence_ns // 2:
        reason = BECAUSE_UP
    if control.pool != 0:
        fail(loop, SWITCH_SILENT, now_ns)
    else:
        _leave(loop, reason, now_ns)


@compiled_apart
def _leave(loop: Loop, reason: int, now_ns: int) -> None:
    """This worker cannot use the switch: it goes by custodians, and the others are told at once."""
    change_path(loop, BY_CUSTODIANS, reason, now_ns)
    _tell_all(loop, CANNOT)
    loop.control[0].ping_due_ns = now_ns


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
