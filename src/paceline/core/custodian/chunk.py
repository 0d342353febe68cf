"""A custodian's chunk: what of it is counted, the steps from one state to the next, and the packets they end in.

**Counted** (the accept rule). A packet of level 1 brings workers of one rack and micro-batches of one owner, a packet
of level 2 whole racks. `racks` has the racks that are complete, `masks[..., rack]` the workers of the others,
`owners` and `shares` the micro-batches of workers that are helped, for each owner apart. When an owner's share is all
ones, its bit takes its place; so a rack is complete when all of its bits are in, whichever way they came.

Which step is right, by what is counted and what has come, `program.py` decides.
"""

from typing import Any

from paceline.compile.decorators import compiled_apart, compiled_inner
from paceline.core.bits import ALL_SHARES, NO_BITS, add_modulo, bit, owner_bit, popcount
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
def count_nothing(custodians: Custodians, k: int, at: int) -> None:
    """Nothing is counted."""
    custodians.chunks[k, at].racks = NO_BITS
    custodians.chunks[k, at].owners = 0
    for rack in range(custodians.masks.shape[2]):
        custodians.masks[k, at, rack] = NO_BITS
    for place in range(custodians.owners.shape[2]):
        custodians.owners[k, at, place] = -1
        custodians.shares[k, at, place] = NO_BITS


@compiled_inner
def is_disjoint(custodians: Custodians, k: int, at: int, packet: Any) -> bool:
    """Has a packet nothing in common with what is counted?"""
    entry = custodians.chunks[k, at]
    if packet.level == 1:
        if packet.mask and entry.racks & bit(packet.rack):
            return False
        if custodians.masks[k, at, packet.rack] & packet.mask:
            return False
    else:
        if entry.racks & packet.mask:
            return False
        for rack in range(custodians.masks.shape[2]):
            if packet.mask & bit(rack) and custodians.masks[k, at, rack] != NO_BITS:
                return False
    if packet.share == NO_BITS and entry.owners == 0:
        return True
    return _shares_are_disjoint(custodians, k, at, packet)


@compiled_apart
def _shares_are_disjoint(custodians: Custodians, k: int, at: int, packet: Any) -> bool:
    if packet.share and _has_bit(custodians, k, at, packet.owner):
        return False
    for place in range(custodians.owners.shape[2]):
        owner = custodians.owners[k, at, place]
        if owner < 0:
            continue
        if packet.level == 1:
            if packet.mask & owner_bit(owner, packet.rack):
                return False
            if packet.share & custodians.shares[k, at, place] and packet.owner == owner:
                return False
        elif packet.mask & bit(owner >> 6):
            return False
    return True


@compiled_inner
def _has_bit(custodians: Custodians, k: int, at: int, owner: int) -> bool:
    """Is a worker counted by its bit, or with its rack?"""
    home = owner >> 6
    if custodians.chunks[k, at].racks & bit(home):
        return True
    return bool(custodians.masks[k, at, home] & bit(owner & 63))


@compiled_inner
def has_room(custodians: Custodians, k: int, at: int, owner: int) -> bool:
    """Can shares of this owner be kept?"""
    for place in range(custodians.owners.shape[2]):
        if custodians.owners[k, at, place] == owner or custodians.owners[k, at, place] < 0:
            return True
    return False


@compiled_inner
def covers(custodians: Custodians, k: int, at: int, packet: Any) -> bool:
    """Does a packet hold all that is counted, and more? Then it can stand in its place."""
    entry = custodians.chunks[k, at]
    news = packet.level == 1 or entry.racks != packet.mask
    if packet.level == 1:
        counted = custodians.masks[k, at, packet.rack]
        if entry.racks != NO_BITS or counted & ~packet.mask:
            return False
        news = counted != packet.mask
    elif entry.racks & ~packet.mask:
        return False
    for rack in range(custodians.masks.shape[2]):
        if custodians.masks[k, at, rack] == NO_BITS or entry.racks & bit(rack):
            continue
        if packet.level == 1:
            if rack != packet.rack:
                return False
        elif not packet.mask & bit(rack):
            return False
    if packet.share == NO_BITS and entry.owners == 0:
        return bool(news)
    return _covers_shares(custodians, k, at, packet, news)


@compiled_apart
def _covers_shares(custodians: Custodians, k: int, at: int, packet: Any, news: bool) -> bool:
    found = False
    for place in range(custodians.owners.shape[2]):
        owner = custodians.owners[k, at, place]
        if owner < 0:
            continue
        if packet.level != 1:
            if not packet.mask & bit(owner >> 6):
                return False
            news = True
        elif packet.share and owner == packet.owner:
            found = True
            counted = custodians.shares[k, at, place]
            if counted & ~packet.share:
                return False
            news |= counted != packet.share
        elif not packet.mask & owner_bit(owner, packet.rack):
            return False
    return bool(news or (packet.share and not found))


@compiled_inner
def includes(custodians: Custodians, k: int, at: int, packet: Any) -> bool:
    """Is all that a packet of level 1 holds counted already? True of a packet that holds nothing."""
    entry = custodians.chunks[k, at]
    if packet.mask & ~custodians.masks[k, at, packet.rack] and not entry.racks & bit(packet.rack):
        return False
    if packet.share == NO_BITS or _has_bit(custodians, k, at, packet.owner):
        return True
    for place in range(custodians.owners.shape[2]):
        if custodians.owners[k, at, place] == packet.owner:
            return not packet.share & ~custodians.shares[k, at, place]
    return False


@compiled_inner
def count_in(custodians: Custodians, k: int, at: int, packet: Any) -> bool:
    """Note the contributions of a packet that was accepted; True if now everything is in."""
    entry = custodians.chunks[k, at]
    if packet.share:
        _count_share(custodians, k, at, packet)
    if packet.level == 1:
        _count_workers(custodians, k, at, packet.rack, packet.mask)
    else:
        entry.racks |= packet.mask
    # Shares of an owner that no rack knows would make the sum another one.
    return bool(popcount(entry.racks) >= custodians.state[k].fan_in_upper and entry.owners == 0)


@compiled_inner
def _count_workers(custodians: Custodians, k: int, at: int, rack: int, mask: Any) -> None:
    custodians.masks[k, at, rack] |= mask
    if popcount(custodians.masks[k, at, rack]) >= custodians.fan_in[k, rack]:
        custodians.chunks[k, at].racks |= bit(rack)


@compiled_apart
def _count_share(custodians: Custodians, k: int, at: int, packet: Any) -> None:
    """Add to an owner's shares; the whole of them is its bit."""
    entry = custodians.chunks[k, at]
    place = -1
    for other in range(custodians.owners.shape[2]):
        if custodians.owners[k, at, other] == packet.owner:
            place = other
            break
        if place < 0 and custodians.owners[k, at, other] < 0:
            place = other
    if custodians.owners[k, at, place] < 0:
        custodians.owners[k, at, place] = packet.owner
        entry.owners += 1
    custodians.shares[k, at, place] |= packet.share
    if custodians.shares[k, at, place] == ALL_SHARES:
        custodians.owners[k, at, place] = -1
        custodians.shares[k, at, place] = NO_BITS
        entry.owners -= 1
        _count_workers(custodians, k, at, packet.owner >> 6, bit(packet.owner & 63))


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
    entry.offer = 0
    entry.window = WINDOW_MAX
    entry.custody = packet.flag & CUSTODY != 0
    entry.due_ns = now_ns + custodian.patience_ns
    count_nothing(custodians, k, at)
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
