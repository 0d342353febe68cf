"""What torch's flight recorder has, and the reductions that it cannot see, in one dump of its own form.

    paceline.torch.flight_recorder.write("/tmp/trace_")     # then: torchfrtrace --prefix trace_ /tmp

torch records what goes over Gloo (`TORCH_FR_BUFFER_SIZE` says how much) and lets nobody add to it. Reductions of our
own come from the groups' journals, each group as one of its own beside that over Gloo, since their numbers are apart.
"""

import pickle
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from paceline.torch.journal import ReductionRecord

_c10d: Any = c10d
VERSION = "2.10"
"""Of the form, where torch has none to tell."""
DTYPES = {"float32": "Float", "int32": "Int", "bfloat16": "BFloat16", "float16": "Half"}
STATES = {"under way": "started", "done": "completed", "failed": "started"}


def dump() -> dict[str, Any]:
    """`entries`, `pg_config` and more, as `torchfrtrace` reads them."""
    from paceline.torch.process_group import GROUPS

    whole: dict[str, Any] = pickle.loads(_c10d._dump_fr_trace())
    whole.setdefault("version", VERSION)
    entries = list(whole.get("entries", []))
    config = dict(whole.get("pg_config", {}))
    for group in sorted(GROUPS, key=lambda each: str(each.journal.group)):
        name = f"{group.journal.group}:paceline"
        config[name] = {"name": name, "desc": group.group_desc, "ranks": str(group.global_ranks())}
        entries += [_entry(name, group.group_desc, record) for record in group.journal.latest()]
    entries.sort(key=lambda entry: entry["time_created_ns"])
    return {
        **whole,
        "entries": [{**entry, "record_id": i} for i, entry in enumerate(entries)],
        "pg_config": config,
    }


def write(prefix: str) -> Path:
    """To the file of this rank, `PREFIX` and its number."""
    path = Path(f"{prefix}{dist.get_rank()}")
    path.write_bytes(pickle.dumps(dump()))
    return path


def _entry(name: str, description: str, record: ReductionRecord) -> dict[str, Any]:
    sizes, dtypes = [[record.elements]], [DTYPES[record.dtype]]
    begun_ns = round(record.begun * 1e9)
    return {
        "frames": [],
        "pg_id": 0,
        "process_group": (name, description),
        "collective_seq_id": record.number + 1,
        "p2p_seq_id": 0,
        "op_id": record.number + 1,
        "profiling_name": "paceline:all_reduce",
        "time_created_ns": begun_ns,
        "time_discovered_started_ns": begun_ns,
        "time_discovered_completed_ns": None if record.ended is None else round(record.ended * 1e9),
        "input_sizes": sizes,
        "input_dtypes": dtypes,
        "output_sizes": sizes,
        "output_dtypes": dtypes,
        "state": STATES[record.state],
        "retired": record.state != "under way",
        "timeout_ms": round(record.timeout_s * 1e3),
        "is_p2p": False,
    }
