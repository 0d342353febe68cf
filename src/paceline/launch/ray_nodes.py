"""Which node of a Ray cluster is which server of the plan, from what Ray tells of its nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_COMMON = ("CPU", "GPU", "memory", "object_store_memory")


@dataclass(frozen=True)
class Node:
    """A node that can be a server: how it is pinned, and what it offers."""

    name: str
    pin: str
    kind: str
    slots: int
    address: str


def nodes_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Node]:
    """The nodes by every name they can be called by, from what Ray tells of them; a name is one node's alone."""
    alive = [row for row in rows if row["Alive"]]
    holders: dict[str, int] = {}
    for row in alive:
        for resource in row["Resources"]:
            holders[resource] = holders.get(resource, 0) + 1
    found: dict[str, Node] = {}
    for row in alive:
        offered, address = row["Resources"], str(row["NodeManagerAddress"])
        kind = "GPU" if offered.get("GPU") else "CPU"
        slots = int(offered.get(kind, 0))
        own = sorted(r for r in offered if holders[r] == 1 and r not in _COMMON and ":" not in r)
        names = [(name, name) for name in own]
        if holders.get(f"node:{address}") == 1:
            names += [(address, f"node:{address}"), (str(row["NodeManagerHostname"]), f"node:{address}")]
        for name, pin in names:
            if slots:
                found.setdefault(name, Node(name, pin, kind, slots, address))
    return found
