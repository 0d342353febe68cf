"""What of a chunk a custodian has counted: the accept rule, over workers, racks and shares.

A packet of level 1 brings workers of one rack and micro-batches of one owner, a packet of level 2 whole racks.
`racks` has the racks that are complete, `masks[..., rack]` the workers of the others, `owners` and `shares` the
micro-batches of workers that are helped, for each owner apart. When an owner's share is all ones, its bit takes its
place; so a rack is complete when all of its bits are in, whichever way they came.
"""

from typing import Any

from paceline.compile.decorators import compiled_apart, compiled_inner
from paceline.core.bits import NO_BITS, bit, popcount
from paceline.core.custodian.state import Custodians
from paceline.core.help.shares import ALL_SHARES, owner_bit


@compiled_inner
def clear(custodians: Custodians, k: int, at: int) -> None:
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
