"""When somebody dies: who stands in for it, and carries its part in the sums.

What a dead worker held or had computed is free again, and its own micro-batches are a ledger without an owner. Where
packets tell shares, a helper has shares of one owner; a dead worker that no helper has room for is *adopted*: one
worker computes all that is left of it and carries its bit. Where bits alone are counted, one worker that has yet to
send carries the bit, once all of the dead one's work has been taken.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from paceline.core.help.ledger import Ledgers

NOBODY = -1


def find_adoptable(ledgers: Ledgers, rank: int, dead: set[int], others: Callable[[int], bool]) -> int:
    """A dead worker with something to compute that no helper has room for; -1 if there is none.

    `others(owner)`: will somebody else come to compute some of it?
    """
    for owner in sorted(dead & ledgers.open.keys()):
        if ledgers.free(owner) and ledgers.takers(owner) <= {rank} and not others(owner):
            return owner
    return NOBODY


def find_orphan(
    ledgers: Ledgers,
    rank: int,
    dead: set[int],
    adopted: set[int],
    adopter: Callable[[int], int],
    coming: bool,
) -> int:
    """A dead worker whose part a straggler must compute, since nobody else will come to it; -1 if there is none.

    What it has begun to adopt it adopts as a whole, whoever may have come since. `coming`: somebody else may come.
    """
    for owner in sorted(adopted & dead & ledgers.open.keys()):
        if adopter(owner) == rank and ledgers.free(owner):
            return owner
    if coming:
        return NOBODY
    return find_adoptable(ledgers, rank, dead, lambda _: False)


def choose_carriers(
    carriers: Mapping[int, int], dead: Iterable[int], alive: Collection[int], ready: list[int]
) -> dict[int, int]:
    """Where bits alone are counted: who carries the bit of each dead worker, one of those that have yet to send."""
    chosen = dict(carriers)
    for gone in dead:
        if chosen.get(gone) not in alive and ready:
            chosen[gone] = ready[0]
    return chosen
