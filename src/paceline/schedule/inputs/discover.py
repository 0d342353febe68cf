"""A cluster from what another system knows of it: Slurm's nodes and topology, Ray's nodes, a list of nodes as CSV.

Each reader gives `Found`: nodes with GPUs and racks, and notes on what was left out or assumed. `to_toml` writes them
as the cluster file that `paceline plan` reads.

- Slurm: the text of `scontrol show node --oneliner`, and of `topology.conf` or `scontrol show topology`. A node's rack
  is the switch that names it; `LinkSpeed` of that switch (kilobits a second, as Slurm has it) is the rate of its links;
- Ray: the JSON of `ray list nodes --format json` or of `ray.nodes()`; a node's rack is its label `rack`, if it has one;
- CSV: columns `name` and `gpus`, and if known `rack` and `link`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline import json_text
from paceline.errors import UserError
from paceline.names import shown
from paceline.schedule.inputs.columns import read_rows
from paceline.units import format_rate, parse_rate_bps

_NO_RACK = "rack0"
GPUS_MAX = 4096
"""Of a node."""
_GPUS = re.compile(r"gpu(?::[^:(,]+)?:(\d{1,9})")


@dataclass(frozen=True)
class Node:
    """One machine."""

    name: str
    gpus: int
    rack: str = _NO_RACK
    link_bps: float | None = None


@dataclass(frozen=True)
class Found:
    """What was read."""

    nodes: tuple[Node, ...]
    notes: tuple[str, ...] = ()


def from_slurm(nodes_text: str, topology_text: str, nodes_place: str, topology_place: str) -> Found:
    """Nodes with GPUs, in the racks of a topology; without one, all are under one switch."""
    nodes: dict[str, Node] = {}
    notes = []
    without: set[str] = set()
    for number, line in enumerate(nodes_text.splitlines(), 1):
        if not line.strip():
            continue
        fields = _fields(line)
        if "NodeName" not in fields:
            raise UserError(
                "no NodeName here: give what `scontrol show node --oneliner` prints",
                place=f"{nodes_place}:{number}",
            )
        gpus = sum(int(count) for count in _GPUS.findall(fields.get("Gres", "")))
        if gpus == 0:
            without.add(fields["NodeName"])
            continue
        nodes[fields["NodeName"]] = Node(fields["NodeName"], gpus)
    if without:
        notes.append(f"{len(without)} nodes without GPUs were left out")
    if not nodes:
        raise UserError("no node has a GPU (Gres=gpu:...)", place=nodes_place)
    if topology_text:
        notes += _put_in_racks(nodes, topology_text, topology_place, without)
    else:
        notes.append("no topology was given: all nodes are taken to be under one switch")
    return Found(tuple(nodes.values()), tuple(notes))


def _fields(line: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in line.split() if "=" in part)


def _put_in_racks(nodes: dict[str, Node], text: str, place: str, left_out: set[str]) -> list[str]:
    notes = []
    seen: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        fields = _fields(line.partition("#")[0])
        if "SwitchName" not in fields or "Switches" in fields or "Nodes" not in fields:
            continue
        # `scontrol show topology` prints LinkSpeed=1 where nobody has set it.
        told = fields.get("LinkSpeed", "1")
        if not told.isdecimal():
            raise UserError(f"LinkSpeed={told} is no number of kilobits a second", place=f"{place}:{number}")
        speed = int(told)
        for name in expand_hosts(fields["Nodes"], f"{place}:{number}"):
            if name in left_out:
                continue
            if name not in nodes:
                raise UserError(f"node {name!r} is not among the nodes", place=f"{place}:{number}")
            seen.add(name)
            rate_bps = speed * 1e3 if speed > 1 else None
            nodes[name] = replace(nodes[name], rack=fields["SwitchName"], link_bps=rate_bps)
    if not seen:
        raise UserError("no switch with nodes (SwitchName=... Nodes=...) here", place=place)
    if missing := [name for name in nodes if name not in seen]:
        notes.append(
            f"no switch names {', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}: rack {_NO_RACK!r}"
        )
    return notes


def expand_hosts(text: str, place: str) -> list[str]:
    """Slurm's host lists: `gpu[01-03,7],login` as names."""
    names: list[str] = []
    for part in re.findall(r"[^,\[\]]+(?:\[[^\]]*\])?[^,\[\]]*", text):
        match = re.fullmatch(r"([^\[\]]*)\[([0-9,-]+)\]([^\[\]]*)", part)
        if match is None:
            if "[" in part or "]" in part:
                raise UserError(f"{part!r} is no host list; write it like 'gpu[01-03,07]'", place=place)
            names.append(part)
            continue
        for span in match.group(2).split(","):
            low, _, high = span.partition("-")
            high = high or low
            if len(high) > 6:
                raise UserError(f"{span!r} in {part!r} is more than a million nodes", place=place)
            if not low.isdecimal() or not high.isdecimal() or int(high) < int(low):
                raise UserError(f"{span!r} in {part!r} is no range of numbers", place=place)
            names += [
                f"{match.group(1)}{number:0{len(low)}d}{match.group(3)}"
                for number in range(int(low), int(high) + 1)
            ]
    return names


def from_ray(text: str, place: str) -> Found:
    """Nodes that are alive and have GPUs."""
    entries = json_text.parse(text, place)
    if isinstance(entries, Mapping):
        entries = entries.get("result", entries.get("nodes"))
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise UserError("no list of nodes: give what `ray list nodes --format json` prints", place=place)
    nodes = []
    left_out = 0
    for number, entry in enumerate(entries):
        node = _ray_node(entry, f"{place}: node {number}")
        if node is None:
            left_out += 1
        else:
            nodes.append(node)
    if not nodes:
        raise UserError("no node that is alive has a GPU", place=place)
    notes = [f"{left_out} nodes that are dead or have no GPU were left out"] if left_out else []
    if all(node.rack == _NO_RACK for node in nodes):
        notes.append("no node has a label 'rack': all are taken to be under one switch")
    return Found(tuple(nodes), tuple(notes))


def _ray_node(entry: Any, place: str) -> Node | None:
    if not isinstance(entry, Mapping):
        raise UserError("is no table of keys", place=place)
    resources = entry.get("resources_total", entry.get("Resources"))
    if not isinstance(resources, Mapping):
        raise UserError("has no 'resources_total' (or 'Resources')", place=place)
    alive = entry.get("state", "ALIVE") == "ALIVE" and entry.get("Alive", entry.get("alive", True))
    gpus = _ray_gpus(resources.get("GPU", 0), place)
    if not alive or gpus == 0:
        return None
    name = (
        entry.get("node_name")
        or entry.get("NodeName")
        or entry.get("node_ip")
        or entry.get("NodeManagerAddress")
    )
    if not name:
        raise UserError("has no name and no address", place=place)
    labels = entry.get("labels") or entry.get("Labels") or {}
    if not isinstance(labels, Mapping):
        raise UserError("'labels' is no table of keys", place=place)
    return Node(shown(str(name)), gpus, shown(str(labels.get("rack", _NO_RACK))))


def _ray_gpus(value: Any, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= GPUS_MAX:
        raise UserError(f"'GPU' is no number of GPUs up to {GPUS_MAX}", place=place)
    return int(value)


def from_nodes(text: str, place: str) -> Found:
    """A list of nodes as CSV."""
    reader, _ = read_rows(text, place, ("name", "gpus", "rack", "link"), ("name", "gpus"))
    nodes: dict[str, Node] = {}
    for row in reader:
        line = f"{place}:{reader.line_num}"
        name, gpus = (row["name"] or "").strip(), (row["gpus"] or "").strip()
        if not name:
            raise UserError("the name is missing", place=line)
        if name in nodes:
            raise UserError(f"node {name!r} is there twice", place=line)
        if not gpus.isdecimal() or len(gpus) > 4 or not 1 <= int(gpus) <= GPUS_MAX:
            raise UserError(f"gpus: {gpus!r} is no number of GPUs up to {GPUS_MAX}", place=line)
        try:
            link_bps = parse_rate_bps(row["link"].strip()) if (row.get("link") or "").strip() else None
        except ValueError as error:
            raise UserError(f"link: {error}", place=line) from None
        nodes[name] = Node(name, int(gpus), (row.get("rack") or "").strip() or _NO_RACK, link_bps)
    if not nodes:
        raise UserError("the list holds no nodes", place=place)
    return Found(tuple(nodes.values()))


def to_toml(found: Found, link_bps: float | None = None) -> str:
    """The cluster file: a group for each node, and the slowest link that is known."""
    rates = [node.link_bps for node in found.nodes if node.link_bps is not None]
    rate_bps = link_bps or (min(rates) if rates else None)
    lines = [f"# {note}" for note in found.notes]
    if rate_bps is None:
        lines.append("# No link speed was given: the default of 25 Gbit/s holds unless you set it here.")
        lines.append("[network]")
    else:
        if len(set(rates)) > 1 and link_bps is None:
            lines.append("# Links differ: the slowest counts.")
        lines += ["[network]", f'inter_server = "{format_rate(rate_bps)}"']
    for node in found.nodes:
        name, rack = _quoted(node.name), _quoted(node.rack)
        lines += ["", "[[servers]]", f"name = {name}", f"gpus = {node.gpus}", f"rack = {rack}"]
    return "\n".join(lines) + "\n"


def _quoted(name: str) -> str:
    """A name as TOML has it."""
    escaped = shown(name).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
