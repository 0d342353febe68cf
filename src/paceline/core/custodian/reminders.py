"""A custodian's questions: reminders to the switch and pulls to the workers, for chunks that have waited too long.

`handle_timeout` begins a round over the open chunks, `poll_transmit` gives what is overdue. At each chunk a reminder
and a pull take turns, with back-off. A pull names what is missing: workers, racks, or micro-batches of one owner.

Where a worker is late, every chunk waits, and asking for each would only fill the links. So a custodian asks for chunks
that later ones have overtaken, and for the `reach` oldest: one, twice as many when an answer completes a chunk, half as
many when there is none.
"""

from typing import Any

from paceline.compile.decorators import compiled, compiled_apart, compiled_inner
from paceline.core.bits import NO_BITS, bit
from paceline.core.custodian.state import LED_IN_PART, OPEN, PULLS_SENT, REMINDERS_SENT, Custodians
from paceline.core.sender.state import NEVER_NS
from paceline.core.wire import PULL, REMINDER, clear

_ATTEMPTS_FEW = 4


@compiled
def handle_timeout(custodians: Custodians, k: int, now_ns: int) -> None:
    """Begin a round over the open chunks; `poll_transmit` then gives what is overdue."""
    custodian = custodians.state[k]
    custodian.timer_ns = NEVER_NS
    custodian.now_ns = now_ns
    custodian.low = max(custodian.low, custodian.high - custodian.ring)
    while custodian.low < custodian.high:
        entry = custodians.chunks[k, custodian.low % custodian.ring]
        if entry.state == OPEN and entry.chunk == custodian.low:
            break
        custodian.low += 1
    custodian.cursor = custodian.low
    custodian.seen = 0


@compiled
def poll_transmit(custodians: Custodians, k: int, packet: Any) -> bool:
    """The next reminder or pull of the round that `handle_timeout` began; they take turns at a chunk."""
    custodian = custodians.state[k]
    if custodian.reminders == 0 and custodian.pulls == 0:
        return False
    while custodian.cursor < custodian.high:
        at = custodian.cursor % custodian.ring
        entry = custodians.chunks[k, at]
        custodian.cursor += 1
        if entry.state != OPEN or entry.chunk != custodian.cursor - 1:
            continue
        overdue = entry.due_ns <= custodian.now_ns
        if entry.attempts < _ATTEMPTS_FEW:
            # What has been asked for often may be done everywhere, a late copy of it having come; it holds nobody back.
            custodian.seen += 1
        overtaken = entry.chunk + custodian.reorder_chunks <= custodian.passed
        if overdue and custodian.seen > custodian.reach and not overtaken and entry.custody == 0:
            # Somebody is late, and those before it tell of that.
            custodian.timer_ns = min(custodian.timer_ns, custodian.now_ns + custodian.patience_ns)
            continue
        if overdue:
            if entry.attempts >= 2:
                custodian.reach = max(1, custodian.reach // 2)
            hurries = entry.led == LED_IN_PART and custodian.patience_led_ns > 0
            patience_ns = custodian.patience_led_ns if hurries else custodian.patience_ns
            wait_ns = patience_ns << min(entry.attempts // 2, 10)
            entry.due_ns = custodian.now_ns + min(wait_ns, custodian.patience_max_ns)
            entry.attempts += 1
        custodian.timer_ns = min(custodian.timer_ns, entry.due_ns)
        if overdue:
            if custodian.reminders != 0 and (entry.attempts % 2 == 1 or custodian.pulls == 0):
                custodians.counters[k, REMINDERS_SENT] += 1
                _ask(custodians, k, at, packet, REMINDER)
            else:
                custodians.counters[k, PULLS_SENT] += 1
                _ask(custodians, k, at, packet, PULL)
            return True
    return False


@compiled_inner
def _ask(custodians: Custodians, k: int, at: int, packet: Any, kind: int) -> None:
    """A packet without payload about a chunk; a pull names who is missing: workers, or whole racks."""
    custodian = custodians.state[k]
    entry = custodians.chunks[k, at]
    clear(packet, kind)
    packet.priority = entry.priority
    packet.job = custodian.job
    packet.chunk = entry.chunk
    packet.epoch = custodian.epoch
    packet.index = entry.index
    packet.fan_in = custodians.fan_in[k, 0]
    packet.fan_in_upper = custodian.fan_in_upper
    packet.custodian = custodian.endpoint
    if custodian.fan_in_upper > 1:
        packet.level = 2
        packet.mask = ~entry.racks
    else:
        counted = NO_BITS
        for rack in range(custodians.masks.shape[2]):
            counted |= custodians.masks[k, at, rack]
        packet.mask = ~counted
    if entry.owners != 0 and kind == PULL:
        _ask_for_shares(custodians, k, at, packet)


@compiled_apart
def _ask_for_shares(custodians: Custodians, k: int, at: int, packet: Any) -> None:
    """The pull also names micro-batches: what is missing of one owner, of each in its turn."""
    entry = custodians.chunks[k, at]
    turn = entry.attempts // 2 % entry.owners
    for place in range(custodians.owners.shape[2]):
        owner = custodians.owners[k, at, place]
        if owner < 0:
            continue
        if packet.fan_in_upper == 1:
            packet.mask &= ~bit(owner & 63)
        if turn == 0:
            packet.owner = owner
            packet.share = ~custodians.shares[k, at, place]
        turn -= 1
