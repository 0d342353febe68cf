"""The generated parts of docs/protocol.md: layouts, names and state tables, read from the code.

    python -m paceline.core.describe [PAGE ...]

rewrites the parts between markers in each page and the pictures beside it, or prints the parts. What the code cannot
say for itself (what a field means, which changes of state there are) is said here, next to the check that nothing is
left out; the tests hold the changes of state to those seen in running networks.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from paceline.core import draw, wire
from paceline.core.custodian import program as custodian
from paceline.core.help import detect, ledger
from paceline.core.sender import program as sender
from paceline.core.sender import state as sender_state
from paceline.core.switch import memory
from paceline.core.switch import program as switch
from paceline.generated import renew, table

FIELD_MEANINGS = {
    "magic": f"`{wire.MAGIC:#06x}`",
    "version": f"{wire.VERSION}",
    "kind": "the message, below",
    "flag": "bits, below",
    "priority": "ESA: 1..255, higher takes; 0 never takes an aggregator",
    "job": "who it belongs to",
    "chunk": "which chunk of the job, numbered without end; below 2^62",
    "epoch": "generation of the job's partial sums; older ones are dropped",
    "count": f"integers in the payload, 0..{wire.MAX_ELEMENTS}",
    "index": "aggregator to use, chosen by the sender (SwitchML: place in the job's pool)",
    "mask": "contributions inside: workers of a rack at level 1, racks at level 2; of a pull, who is missing",
    "fan_in": f"contributions that complete level 1 in this rack, 1..{wire.CONTRIBUTORS_MAX}",
    "fan_in_upper": f"racks that complete level 2, 1..{wire.CONTRIBUTORS_MAX}; 1 if the job has one rack",
    "rack": "the rack it comes from",
    "level": "1: workers are being summed; 2: racks",
    "worker": "the sending worker, or the one a result is for",
    "custodian": "endpoint of the job that keeps this chunk; from host to host, the receiver",
    "share": "micro-batches of `owner` inside, spread over all 64 bits; of a pull, which are missing",
    "owner": "whose micro-batches they are: 64 x rack + place in the rack's masks",
    "window": "the least window of the contributors inside, in chunks; 0: not told",
    "offer": "in a result the job's home (first bit set, where it begins in 16 bits, how many share in 15); or, with "
    "`collision`, the aggregator to use from now on in this place of the window; in a contribution the bit asks",
    "tag": "SipHash-2-4 under the job's key; zero in the simulator",
}
KIND_PATHS = {
    wire.GRADIENT: ("worker, rack switch", "switch", "yes"),
    wire.PARTIAL: ("switch", "custodian", "yes"),
    wire.RESULT: ("switch or custodian", "every worker, or one", "yes"),
    wire.REMINDER: ("custodian", "switch", "no"),
    wire.PULL: ("custodian", "workers in its mask", "no"),
    wire.ANSWER: ("worker", "custodian", "yes"),
    wire.QUERY: ("worker", "switch, else custodian", "no"),
    wire.ACK: ("switch, custodian", "the asker, or workers in its mask", "no"),
    wire.NACK: ("custodian", "the asker", "no"),
    wire.RECEIPT: ("worker", "its predecessor in the ring", "no"),
    wire.HAS: ("worker", "worker", "no"),
    wire.LEAVES: ("worker", "worker", "no"),
    wire.REPORT: ("worker", "coordinator", "no"),
    wire.ROLE: ("coordinator", "worker", "no"),
    wire.PATH: ("worker", "worker", "no"),
}
KIND_FIELDS = {
    wire.RECEIPT: {
        "chunk": ("arrived", "the packet that gave rise to it"),
        "index": ("received", "all packets below this have come"),
    },
    wire.HAS: {"chunk": ("oldest", "all results below this are here")},
    wire.LEAVES: {"chunk": ("oldest", "all results below this are here")},
    wire.REPORT: {
        "chunk": ("computed", "chunks that were handed in"),
        "mask": ("sent", "chunks that have left the host"),
        "share": ("finished", "all results below this are here"),
        "window": ("window", "its present window, in chunks"),
    },
    wire.ROLE: {
        "mask": ("leaders", "workers that lead in this epoch, one bit each; none: all, without help"),
    },
    wire.PATH: {
        "chunk": ("oldest", "all results below this are here"),
        "index": ("number", "counts up; what was said before is not heard any more"),
        "window": ("reason", "why it has left the switch"),
        "offer": (
            "state",
            "0: uses it, 1: cannot, 2: waits for others or for a proof, 3: has proved it both ways",
        ),
    },
}
"""What the fields of messages between hosts are called where they are not what their name says."""
ERROR_RULES = (
    "a header",
    f"fewer than {wire.HEADER_BYTES} bytes, or fewer than were announced",
    "not ours",
    "another version",
    f"kind outside {wire.GRADIENT}..{wire.KIND_LAST}",
    "a flag that does not exist",
    f"more than {wire.MAX_ELEMENTS} elements",
    f"length is not {wire.HEADER_BYTES} + 4 x count",
    f"a fan-in outside 1..{wire.CONTRIBUTORS_MAX}",
    f"rack from {wire.CONTRIBUTORS_MAX} on, or a level other than 1 and 2",
    "a gradient or partial that holds nothing",
    "chunk from 2^62 on",
    "an owner that cannot be; or, in a gradient or partial, a share at level 2, or beside its owner's bit",
)
VERDICT_MEANINGS = (
    "nothing leaves",
    "to endpoint `custodian` of the job",
    "to the upper switch",
    "to every member of the job below this switch",
    "to endpoint `worker` of the job",
    "to the rack switch `rack`",
    "refused, and counted under its reason",
)
CUSTODIAN_VERDICT_MEANINGS = (
    "nothing leaves",
    "the packet is now the result, for every worker",
    "the packet is now a result, an ack, a nack or a pull, for endpoint `worker` alone",
    "the packet is now an ack, for the workers in its mask",
    "the packet is now a pull: workers in its mask were inside a partial that overlaps",
)
PULL_ANSWER_MEANINGS = (
    "nothing to do",
    "send the held result to the custodian, as an answer",
    "poll the sender: a flush or a query is to be sent",
)
SWITCH_COUNTER_MEANINGS = (
    "sums over all of a level that left",
    "aggregators taken from another chunk",
    "packets that found no place and went on to their custodian",
    "partial sums given out to a reminder",
    "holders whose priority was halved by a failed try",
    "contributions that were already inside",
    "partial sums given out to a resend or a question",
    "with custody: stragglers' packets, and those of a rack's only leader, that passed the aggregators by",
    "job not admitted here",
    "epoch older than the job's",
    "index outside the memory, or outside the job's pool",
    "SwitchML: older than the chunk in its place",
    "SwitchML: the aggregation program is gone",
    "level above this switch's, or (SwitchML) another level",
    "a gradient without a contribution, or with a share that cannot be (SwitchML: any share)",
)
CUSTODIAN_COUNTER_MEANINGS = (
    "partials merged",
    "partials dropped whole: they overlap what is counted",
    "packets for a chunk whose place has a later one",
    "results made here",
    "results given again",
    "reminders sent",
    "pulls sent",
    "another job's, another kind, an impossible rack, fan-in, mask or share, or one owner too many",
    "results made by a switch and kept here",
    "acknowledgements sent",
)
AGGREGATOR_CHANGES = (
    ("empty", "filling", "a first contribution is stored"),
    (
        "empty",
        "held",
        "the first contribution is all of its level, and the policy holds (ATP; a SwitchML rack)",
    ),
    ("empty", "answered", "SwitchML: the same, at the top level"),
    (
        "filling",
        "empty",
        "complete (ESA); or given out to a resend or a reminder; or its result passed; or its job left",
    ),
    ("filling", "held", "complete: ATP waits for the parameter packet, a SwitchML rack for the upper switch"),
    ("filling", "answered", "SwitchML: complete at the top level"),
    ("held", "empty", "the result passed; or given out to a resend; or its job left"),
    (
        "held",
        "filling",
        "ATP: stale, and taken by another chunk; or what it holds is of an epoch that is over",
    ),
    ("held", "answered", "SwitchML: the upper switch's result passed through the rack"),
    ("answered", "filling", "SwitchML: the next round of this set began"),
    ("answered", "held", "SwitchML: the same, in a rack with one worker of the job"),
    ("answered", "empty", "SwitchML: the job left"),
)
FLIGHT_CHANGES = (
    ("idle", "sent", "stream: window, span, budget and limit allow the next chunk"),
    ("idle", "queued", "pool: the place's next chunk was released"),
    ("idle", "credited", "stream: the same as idle to sent, for a worker that contributes nothing"),
    ("queued", "sent", "pool: its turn came"),
    (
        "sent",
        "lost",
        "a nack or a pull says that it is missing; or, where nobody asks, it is overdue; or a new epoch",
    ),
    (
        "sent",
        "credited",
        "an ack: its custodian counts it; or a new epoch, in which the worker contributes nothing",
    ),
    ("lost", "sent", "sent again: after a nack and in a new epoch as new, else with the flush flag"),
    ("lost", "credited", "the same as sent to credited, before the resend"),
    ("credited", "lost", "a pull after a query: its custodian lacks it; or a new epoch"),
    ("sent", "done", "stream: its result came, an older one is missing"),
    ("sent", "idle", "its result came, and nothing older is missing; pool: nothing to follow yet"),
    ("sent", "queued", "pool: its result came, and the chunk that follows is released"),
    ("done", "idle", "stream: the older results have come"),
    ("lost", "done", "stream: the result came before the resend; an older one is missing"),
    ("lost", "idle", "the same, and nothing older is missing; pool: nothing to follow yet"),
    ("lost", "queued", "pool: the same, and the chunk that follows is released"),
    ("credited", "done", "its result came, an older one is missing"),
    ("credited", "idle", "its result came, and nothing older is missing"),
)
CHUNK_CHANGES = (
    ("absent", "open", "a first partial, or a query"),
    ("absent", "done", "a partial that is complete by itself; an answer; a result made by a switch"),
    ("open", "done", "the last contribution; an answer; a result made by a switch"),
    ("done", "open", "a partial of the chunk one ring further took the place"),
    ("open", "absent", "a new epoch: all contributions come again; or the custodian lost its state"),
    ("done", "absent", "the custodian lost its state"),
)
BATCH_CHANGES = (
    ("free", "claimed", "a claim: the owner's from the head, a helper's from the tail; or adopted"),
    ("claimed", "free", "its lease ran out, or its worker died, and there is no second claim"),
    ("claimed", "computed", "finished by the first of its claims to do so; the other is fenced"),
    ("claimed", "committed", "its worker's last, to be sent while it is computed; a second claim is fenced"),
    ("committed", "computed", "finished"),
    ("committed", "free", "its worker died: a new epoch"),
    ("computed", "free", "its worker died; after the freeze: a new epoch"),
)
ROLE_CHANGES = (
    ("leading", "compute straggler", "behind for `windows` windows in a row, its computation as well"),
    ("leading", "bandwidth straggler", "the same, its computation is not behind"),
    ("compute straggler", "leading", "`clean_iterations` whole iterations without being behind"),
    ("bandwidth straggler", "leading", "the same"),
)


def _layout() -> str:
    assert set(FIELD_MEANINGS) == set(wire.FIELD_NAMES)
    rows = []
    for name in wire.FIELD_NAMES:
        kind, offset = wire.WIRE.fields[name][:2]  # type: ignore[index]
        signed = "signed" if kind.kind == "i" else "unsigned"
        rows.append((offset, kind.itemsize, f"`{name}`", signed, FIELD_MEANINGS[name]))
    return table(("offset", "bytes", "field", "", "meaning"), rows)


def _named(names: Mapping[int, str], paths: Mapping[int, tuple[str, str, str]] | None = None) -> str:
    rows: list[tuple[object, ...]] = []
    for code, text in names.items():
        name, meaning = text.split(": ", 1)
        rows.append((code, f"**{name}**", *(paths[code] if paths else ()), meaning))
    return table(("code", "name", *(("from", "to", "payload") if paths else ()), "meaning"), rows)


def _fields_of_kinds() -> str:
    assert set(KIND_FIELDS) == set(range(wire.BETWEEN_HOSTS, wire.KIND_LAST + 1))
    rows = [
        (wire.KIND_NAMES[kind].partition(":")[0], f"`{field}`", f"`{name}`", meaning)
        for kind, fields in KIND_FIELDS.items()
        for field, (name, meaning) in fields.items()
    ]
    return table(("kind", "in the place of", "field", "meaning"), rows)


def _numbered(names: Sequence[str], meanings: Sequence[str], title: str) -> str:
    assert len(names) == len(meanings), title
    rows = [(i, f"`{name}`", meanings[i]) for i, name in enumerate(names)]
    return table(("code", title, "meaning"), rows)


def _changes(
    names: Sequence[str], changes: Sequence[tuple[str, str, str]], record: np.dtype[np.void] | type
) -> str:
    """A record's states and what leads from one to another; `record` is an array's, or a dataclass."""
    assert {name for change in changes for name in change[:2]} == set(names)
    states = ", ".join(f"`{name}` {code}" for code, name in enumerate(names))
    if isinstance(record, np.dtype):
        assert record.names is not None
        described, fields = f"A record of {record.itemsize} bytes", record.names
    else:
        described, fields = "Its fields", tuple(field.name for field in dataclasses.fields(record))
    shown = ", ".join(f"`{name}`" for name in fields)
    tabled = table(("", "from", "to", "when"), [(i, *change) for i, change in enumerate(changes, 1)])
    return f"States: {states}. {described}: {shown}.\n\n{tabled}"


def sections() -> dict[str, str]:
    """Every generated part, by the name in its marker."""
    return {
        "header": _layout(),
        "kinds": _named(wire.KIND_NAMES, KIND_PATHS),
        "fields of kinds": _fields_of_kinds(),
        "flags": _named(wire.FLAG_NAMES),
        "decode errors": _numbered(wire.ERROR_NAMES, ERROR_RULES, "error"),
        "verdicts": _numbered(switch.VERDICT_NAMES, VERDICT_MEANINGS, "verdict"),
        "switch counters": _numbered(switch.COUNTER_NAMES, SWITCH_COUNTER_MEANINGS, "counter"),
        "custodian counters": _numbered(custodian.COUNTER_NAMES, CUSTODIAN_COUNTER_MEANINGS, "counter"),
        "aggregator states": _changes(memory.STATE_NAMES, AGGREGATOR_CHANGES, memory.AGGREGATOR),
        "flight states": _changes(sender.FLIGHT_STATES, FLIGHT_CHANGES, sender.FLIGHT),
        "chunk states": _changes(custodian.CHUNK_STATES, CHUNK_CHANGES, custodian.CUSTODIAN_CHUNK),
        "custodian verdicts": _numbered(custodian.VERDICT_NAMES, CUSTODIAN_VERDICT_MEANINGS, "verdict"),
        "pull answers": _numbered(sender_state.PULL_ANSWERS, PULL_ANSWER_MEANINGS, "answer"),
        "micro-batch states": _changes(ledger.BATCH_STATES, BATCH_CHANGES, ledger.MicroBatch),
        "roles": _changes(detect.ROLE_NAMES, ROLE_CHANGES, detect.WORKER),
        "policies": ", ".join(f"`{name}` ({code})" for name, code in memory.POLICIES.items()) + ".",
    }


def pictures() -> dict[str, str]:
    """Every picture of the page, by its file below `images/`."""
    return {
        "way-messages.svg": draw.message_ways(wire.KIND_NAMES, KIND_PATHS),
        "way-switch.svg": draw.verdicts(switch.VERDICT_NAMES, VERDICT_MEANINGS),
        "states-aggregator.svg": draw.states(memory.STATE_NAMES, AGGREGATOR_CHANGES, "An aggregator"),
        "states-flight.svg": draw.states(sender.FLIGHT_STATES, FLIGHT_CHANGES, "A chunk at its sender"),
        "states-chunk.svg": draw.states(custodian.CHUNK_STATES, CHUNK_CHANGES, "A chunk at its custodian"),
        "states-micro-batch.svg": draw.states(ledger.BATCH_STATES, BATCH_CHANGES, "A micro-batch"),
    }


if __name__ == "__main__":
    renew(sys.argv[1:], sections())
    for page in sys.argv[1:]:
        for name, picture in pictures().items():
            (Path(page).parent / "images" / name).write_text(picture, encoding="utf-8")
