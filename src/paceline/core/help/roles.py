"""Roles: who leads in the transport, and whose work others may take.

With custody a change of roles begins an epoch: leaders complete sums at their own fan-in and keep them among
themselves, stragglers' packets never hold an aggregator (`core/sender/roles.py`). Takeover alone changes no role there.
With both, custody is for what takeover does not reach: a slow link.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.core.help.detect import BANDWIDTH_STRAGGLER, COMPUTE_STRAGGLER, LEADING


@dataclass(frozen=True)
class Leaders:
    """Who completes sums, and whether that is without the others."""

    ranks: frozenset[int]
    without_others: bool


def choose_leaders(roles: Mapping[int, int], has_custody: bool, takes_over: bool) -> Leaders:
    """From the roles of the living; without custody, or without leaders, everyone is equal."""
    leading = frozenset(rank for rank, role in roles.items() if role == LEADING)
    held_up = BANDWIDTH_STRAGGLER in roles.values()
    # Custodians need not wait for a straggler that takeover is there for.
    needs_custody = has_custody and (held_up or not takes_over)
    if needs_custody and leading and len(leading) < len(roles):
        return Leaders(leading, True)
    return Leaders(frozenset(roles), False)


def choose_owners(roles: Mapping[int, int], dead: set[int], pays: bool) -> list[int]:
    """Whose work others may take: the dead, and compute stragglers while somebody leads and it is worth it."""
    slow = [rank for rank, role in roles.items() if role == COMPUTE_STRAGGLER]
    leads = LEADING in roles.values()
    return sorted(dead) + (slow if pays and leads else [])
