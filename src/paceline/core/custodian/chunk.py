"""A custodian's chunk from one state to the next: the steps that `program.py` makes, and the packets they end in.

Which step is right, by what is counted and what has come, `program.py` decides.
"""

from typing import Any

from paceline.compile.decorators import compiled_apart, compiled_inner
from paceline.core.bits import NO_BITS, add_modulo, popcount
from paceline.core.custodian.counted import clear
from paceline.core.custodian.state import (
    ACKNOWLEDGE,
    ACKS_SENT,
    FINISHED,
    FINISHES,
    LED,
    LED_IN_PART,
    MULTICAST,
    NOT_LED,
    NOTHING,
    OPEN,
    UNICAST,
    Custodians,
)
from paceline.core.wire import ACK, CUSTODY, ECN, FLUSH, RESULT, WINDOW_MAX


@compiled_inner
def open_entry(custodians: Custodians, k: int, at: int, packet: Any, now_ns: int) -> None:
    """The packet is the first to speak of its chunk; nothing is counted yet."""
    custodian = custodians.state[k]
    entry = custodians.chunks[k, at]
    entry.chunk = packet.chunk
    entry.state = OPEN
    entry.flag = 0
    entry.led = NOT_LED
    # What was flushed is not in the switch any more: no reminder there, the workers are asked at once.
    entry.attempts = 1 if custodian.eager != 0 and packet.flag & FLUSH else 0
    entry.priority = packet.priority
    entry.index = packet.index
    entry.window = WINDOW_MAX
    entry.custody = packet.flag & CUSTODY != 0
    entry.due_ns = now_ns + custodian.patience_ns
    clear(custodians, k, at)
    for rack in range(custodians.leads.shape[2]):
        custodians.leads[k, at, rack] = NO_BITS
    for lane in range(custodians.values.shape[2]):
        custodians.values[k, at, lane] = 0
    if custodian.high == 0:
        custodian.low = packet.chunk
    custodian.low = min(custodian.low, packet.chunk)
    custodian.high = max(custodian.high, packet.chunk + 1)
    if custodian.reminders != 0 or custodian.pulls != 0:
        custodian.timer_ns = min(custodian.timer_ns, entry.due_ns)


@compiled_inner
def copy_in(custodians: Custodians, k: int, at: int, buffer: Any, row: int, overwrite: bool) -> None:
    """Add a row to the sum, or put it in the sum's place."""
    for lane in range(min(buffer.shape[1], custodians.values.shape[2])):
        if overwrite:
            custodians.values[k, at, lane] = buffer[row, lane]
        else:
            custodians.values[k, at, lane] = add_modulo(custodians.values[k, at, lane], buffer[row, lane])


@compiled_inner
def acknowledge(custodians: Custodians, k: int, packet: Any) -> int:
    """The packet becomes an acknowledgement to the workers inside it; without a bit there is one, its sender."""
    custodians.counters[k, ACKS_SENT] += 1
    packet.kind = ACK
    packet.flag = CUSTODY | (packet.flag & ECN)
    packet.count = 0
    packet.custodian = custodians.state[k].endpoint
    packet.level = 2 if custodians.state[k].fan_in_upper > 1 else 1
    return ACKNOWLEDGE if packet.mask else UNICAST


@compiled_inner
def is_led(custodians: Custodians, k: int, at: int, packet: Any) -> bool:
    """Are all leaders of the packet's rack counted? True of who has nobody to wait for: stragglers, a single leader."""
    return bool(
        packet.fan_in <= 1
        or packet.mask == NO_BITS
        or popcount(custodians.leads[k, at, packet.rack]) >= packet.fan_in
    )


@compiled_apart
def count_leaders(custodians: Custodians, k: int, at: int, packet: Any, now_ns: int) -> int:
    """Acknowledge to all leaders of a rack at once; while some are missing, the wait for them is short."""
    custodian = custodians.state[k]
    entry = custodians.chunks[k, at]
    if packet.fan_in <= 1 or packet.mask == NO_BITS:
        return acknowledge(custodians, k, packet)
    custodians.leads[k, at, packet.rack] |= packet.mask
    if is_led(custodians, k, at, packet):
        entry.led = LED
        entry.attempts = 0
        entry.due_ns = now_ns + custodian.patience_ns
        packet.mask = custodians.leads[k, at, packet.rack]
        return acknowledge(custodians, k, packet)
    if entry.led != LED_IN_PART and custodian.patience_led_ns > 0:
        entry.due_ns = now_ns + custodian.patience_led_ns
        if custodian.reminders != 0 or custodian.pulls != 0:
            custodian.timer_ns = min(custodian.timer_ns, entry.due_ns)
    entry.led = LED_IN_PART
    return NOTHING


@compiled_inner
def pass_by(custodians: Custodians, k: int, at: int) -> None:
    """A chunk is done: what is still open well below it was overtaken; and if it had been asked for, asking pays."""
    custodian = custodians.state[k]
    entry = custodians.chunks[k, at]
    entry.state = FINISHED
    custodian.passed = max(custodian.passed, entry.chunk)
    if entry.attempts > 0:
        custodian.reach = min(2 * custodian.reach, custodian.ring)


@compiled_inner
def finish(custodians: Custodians, k: int, at: int, packet: Any, buffer: Any, row: int) -> int:
    """The sum is complete: the packet becomes the result, for everyone."""
    custodians.counters[k, FINISHES] += 1
    pass_by(custodians, k, at)
    make_result(custodians, k, at, packet, buffer, row)
    return MULTICAST


@compiled_inner
def make_result(custodians: Custodians, k: int, at: int, packet: Any, buffer: Any, row: int) -> None:
    """The packet becomes the chunk's result; `worker` stays, so that it can be sent to the asker alone."""
    entry = custodians.chunks[k, at]
    packet.kind = RESULT
    packet.flag = entry.flag
    packet.count = custodians.state[k].count
    packet.window = entry.window
    packet.offer = entry.offer
    packet.priority = entry.priority
    packet.index = entry.index
    packet.fan_in_upper = custodians.state[k].fan_in_upper
    packet.level = 2 if custodians.state[k].fan_in_upper > 1 else 1
    packet.share = NO_BITS
    packet.owner = 0
    for lane in range(min(buffer.shape[1], custodians.values.shape[2])):
        buffer[row, lane] = custodians.values[k, at, lane]
