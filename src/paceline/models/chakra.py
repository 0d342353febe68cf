"""A Chakra execution trace (MLCommons, protocol buffers, `.et`) as a profile: computing before each all-reduce.

A trace is a graph of one rank: nodes that compute for a time, collectives with a size, each after those it depends on.
Walked with sending that takes no time, it tells when each all-reduce could begin: its gradients are released then. The
backward pass begins with the first node whose name says so. Of passes that repeat, the first is read. What could not be
read is named.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from paceline.errors import UserError
from paceline.models import protobuf
from paceline.models.catalogue import BACKWARD_OVER_FORWARD
from paceline.models.profile import Measured
from paceline.whole_files import read_bytes

COMPUTE, COLLECTIVE = 4, 7
"""Types of nodes (`NodeType`)."""
_OTHERS = {2: "memory loads", 3: "memory stores", 5: "sends", 6: "receives"}
_BACKWARD = re.compile(r"bwd|backward|autograd::engine", re.IGNORECASE)
_SCALARS = (7, 9, 11, 13, 27)
"""Fields of an attribute that hold a whole number or a truth."""


@dataclass
class TraceNode:
    """A node of the graph; microseconds."""

    number: int = 0
    name: str = ""
    type: int = 0
    waits_for: list[int] = field(default_factory=list)
    takes_us: int = 0
    attributes: dict[str, int] = field(default_factory=dict)
    starts_us: float = 0.0
    """When it can begin, if sending takes no time."""
    ends_us: float = 0.0

    @property
    def all_reduce_bytes(self) -> int:
        """What it reduces; 0 if it does not."""
        if self.type != COLLECTIVE:
            return 0
        named = "allreduce" in self.name.lower().replace("_", "")
        # A field that has its default is not written: ALL_REDUCE is 0.
        reduces = self.attributes["comm_type"] == 0 if "comm_type" in self.attributes else named
        return self.attributes.get("comm_size", 0) if reduces else 0


def read_chakra(path: Path) -> Measured:
    """The profile of a trace, or one line that says why there is none."""
    place = str(path)
    nodes = _nodes(path)
    _walk(nodes, place)
    reduces = [node for node in nodes if node.all_reduce_bytes]
    if not reduces:
        raise UserError("has no all-reduce with a size (comm_size): nothing is exchanged", place=place)
    unread = ["names of parameters, the all-reduces are taken, a bucket each", "samples of a step, 1 is taken",
              "workers, 1 is taken", "jitter (one pass), 0 is taken"]  # fmt: skip
    unread += _left_out(nodes)
    one_pass = _first_pass(reduces)
    if len(one_pass) < len(reduces):
        unread.append(f"passes after the first of {len(reduces) // len(one_pass)}")
    computing = [node for node in nodes if node.type == COMPUTE and node.takes_us > 0]
    last_us = max(node.starts_us for node in one_pass)
    begins = [node.starts_us for node in computing if _BACKWARD.search(node.name)]
    if begins and min(begins) < last_us:
        backward_us = min(begins)
    else:
        backward_us = last_us / (1 + BACKWARD_OVER_FORWARD)
        unread.append(
            f"where the backward pass begins, it is taken for {BACKWARD_OVER_FORWARD} times the forward pass"
        )
    forward_us = backward_us
    if len(one_pass) == len(reduces):
        # What comes after the last gradient: the optimizer.
        forward_us += max(0.0, max((node.ends_us for node in computing), default=0.0) - last_us)
    released = [max(1e-9, 1e-6 * (node.starts_us - backward_us)) for node in one_pass]
    if max(released) <= 1e-9:
        raise UserError(
            "nothing is computed before its all-reduces: nodes have no duration_micros", place=place
        )
    return Measured(
        "a Chakra execution trace",
        1,
        1,
        [(1e-6 * forward_us, released)],
        [f"bucket {number}: {node.name}" for number, node in enumerate(one_pass)],
        [node.all_reduce_bytes for node in one_pass],
        unread=tuple(unread),
    )


def _nodes(path: Path) -> list[TraceNode]:
    data = read_bytes(path)
    if data.lstrip()[:1] in (b"{", b"["):
        raise UserError(
            "is JSON, a host's trace without times: link it with the profiler's and convert it (chakra_trace_link, "
            "chakra_converter), or read the profiler's own with --kineto",
            place=str(path),
        )
    found = []
    at = 0
    try:
        for at, message in protobuf.messages(data):
            if at > 0:  # The first describes the trace.
                found.append(_node(message))
    except (protobuf.DamagedError, UnicodeDecodeError, TypeError) as error:
        raise UserError(
            f"is no Chakra execution trace: {error} (message at byte {at})", place=str(path)
        ) from None
    if not found:
        raise UserError("is no Chakra execution trace: it holds no nodes", place=str(path))
    return found


def _node(message: bytes) -> TraceNode:
    node = TraceNode()
    for number, kind, value in protobuf.fields(message):
        if number == 1 and isinstance(value, int):
            node.number = value
        elif number == 2 and isinstance(value, bytes):
            node.name = value.decode()
        elif number == 3 and isinstance(value, int):
            node.type = value
        elif number == 5:
            node.waits_for += _numbers(kind, value)
        elif number == 7 and isinstance(value, int):
            node.takes_us = value
        elif number == 10 and isinstance(value, bytes):
            name, known = _attribute(value)
            if known is not None:
                node.attributes[name] = known
    return node


def _numbers(kind: int, value: int | bytes) -> list[int]:
    """A repeated number, packed or not."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while kind == protobuf.BYTES and at < len(value):
        number, at = protobuf.varint(value, at)
        found.append(number)
    return found


def _attribute(message: bytes) -> tuple[str, int | None]:
    name, known = "", None
    for number, _, value in protobuf.fields(message):
        if number == 1 and isinstance(value, bytes):
            name = value.decode()
        elif number in _SCALARS and isinstance(value, int):
            known = value
    return name, known


def _walk(nodes: list[TraceNode], place: str) -> None:
    """Give every node its times; collectives take none."""
    by_number = {node.number: node for node in nodes}
    after: dict[int, list[TraceNode]] = {}
    missing = {}
    for node in nodes:
        for other in node.waits_for:
            if other not in by_number:
                raise UserError(
                    f"node {node.number} ({node.name}) waits for node {other}, which is not in it",
                    place=place,
                )
            after.setdefault(other, []).append(node)
        missing[node.number] = len(node.waits_for)
    ready = [node for node in nodes if not node.waits_for]
    done = 0
    while ready:
        node = ready.pop()
        done += 1
        node.ends_us = node.starts_us + (node.takes_us if node.type == COMPUTE else 0)
        for following in after.get(node.number, []):
            following.starts_us = max(following.starts_us, node.ends_us)
            missing[following.number] -= 1
            if missing[following.number] == 0:
                ready.append(following)
    if done < len(nodes):
        stuck = next(node for node in nodes if missing[node.number])
        raise UserError(
            f"node {stuck.number} ({stuck.name}) waits for itself, or a node is in it twice", place=place
        )


def _first_pass(reduces: list[TraceNode]) -> list[TraceNode]:
    """The all-reduces up to where all of them begin to repeat."""
    kinds = [(node.name, node.all_reduce_bytes) for node in reduces]
    for length in range(1, len(kinds)):
        if len(kinds) % length == 0 and kinds == kinds[:length] * (len(kinds) // length):
            # A single kind, again and again, may as well be the buckets of one pass.
            return reduces[:length] if length > 1 else reduces
    return reduces


def _left_out(nodes: list[TraceNode]) -> list[str]:
    counts: dict[str, int] = {}
    for node in nodes:
        what = _OTHERS.get(node.type)
        if node.type == COLLECTIVE and not node.all_reduce_bytes:
            what = "collectives that are no all-reduce with a size"
        if what:
            counts[what] = counts.get(what, 0) + 1
    return [f"{count} {what}, left out" for what, count in counts.items()]
