"""The generated parts of docs/simulating.md: every key of a scenario with its unit, default and meaning.

    python -m paceline.sim.describe [PAGE ...]

rewrites the parts between markers in each page, or prints them all. A key's meaning is the text below it in
`scenario.py` or `faults.py`; `MEANINGS` has those of the keys that have none there.
"""

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from paceline.generated import field_texts, renew, table
from paceline.sim import faults, scenario
from paceline.toml import Section
from paceline.units import (
    format_rate,
    format_seconds,
    format_size,
    parse_rate_bps,
    parse_size_bytes,
    parse_time_ns,
)

UNITS: dict[Any, str] = {parse_rate_bps: "rate", parse_size_bytes: "size", parse_time_ns: "time"}
TABLES: dict[str, type[Section]] = {
    "scenario keys": scenario.Scenario,
    "network keys": scenario.Network,
    "host keys": scenario.Hosts,
    "switch keys": scenario.SwitchSettings,
    "transport keys": scenario.Transport,
    "custodian keys": scenario.CustodianSettings,
    "straggler keys": scenario.Help,
    "job keys": scenario.ScenarioJob,
    "fault keys": faults.Faults,
}
MEANINGS = {
    "Scenario.name": "Shown in reports.",
    "Scenario.seed": "Of all randomness in a run; `--seed` replaces it.",
    "Scenario.policies": "What to compare; `--policy` replaces it.",
    "Network.topology": "One switch or, with `switches`, servers around a hub; or leaf switches under upper switches.",
    "Network.leaves": "Leaf-spine: rack switches; hosts are dealt to them in equal runs.",
    "Network.uppers": "Leaf-spine: upper switches; all packets of a chunk meet at one of them.",
    "Network.rate": "Of each host's link, in each direction.",
    "SwitchSettings.slots": "Aggregators of each switch.",
    "Transport.window_min": "The window is never halved below this.",
    "Transport.window_start": "At the start of a job; by default `window`.",
    "Transport.rto_min": "Shortest retransmission timer.",
    "Transport.rto_max": "Longest, back-off included.",
    "Transport.rto_start": "Before the first round trip was measured.",
    "Transport.reorder_chunks": "A chunk is taken for lost when results so far ahead of it have come. Default 64 with "
    "several switches for a job, whose results overtake each other.",
    "Transport.reorder_rtts": "... and so many round trips have passed since it was sent.",
    "Transport.resends_max": "A job fails when one chunk timed out more often.",
    "CustodianSettings.per_job": "How many, when dedicated.",
    "CustodianSettings.patience_max": "Longest wait between two questions about a chunk.",
    "ScenarioJob.name": "By default the model and a number; copies get a number of their own.",
    "ScenarioJob.model": "One that `paceline models` lists.",
    "ScenarioJob.workers": "One a host, unless `hosts` says otherwise.",
    "ScenarioJob.iterations": "Forward and backward passes of each worker.",
    "ScenarioJob.arrival": "When the job starts, if none must end before.",
    "ScenarioJob.copies": "So many equal jobs.",
    "ScenarioJob.batch": "Samples a worker and iteration; by default the model's own.",
    "ScenarioJob.flop_rate": "What a worker sustains, in operations a second.",
    "*.job": "Name of the job; a copy has its number: `comm-1`.",
    "*.time": "When it happens.",
    "SlowWorker.worker": "Its rank, from 0.",
    "SlowWorker.factor": "Times as long.",
    "SlowSpells.factor": "Times as long, while the spell lasts.",
    "OtherTraffic.host": "Whose link; numbered as below `host_dies`.",
    "OtherTraffic.rate": "Less than the link's own.",
    "OtherTraffic.start": "When it begins.",
    "SwitchDeath.switch": "Leaf switches are numbered first, then the upper ones; a star has switch 0.",
    "HostDeath.host": "Workers' hosts come first, then those of dedicated custodians.",
}


def kind_of(hint: Any) -> str:
    """A key's unit, choices or bounds, in words."""
    arguments = get_args(hint)
    metadata: list[Any] = []
    for item in getattr(hint, "__metadata__", ()):
        metadata += item.metadata if isinstance(item, FieldInfo) else [item]
    for item in metadata:
        if isinstance(item, BeforeValidator):
            above = any(hasattr(other, "gt") for other in metadata)
            return UNITS[item.func] + (" > 0" if above else "")
    if metadata:
        bounds = [
            f"{sign} {getattr(item, name)}"
            for item in metadata
            for name, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))
            if hasattr(item, name)
        ]
        return f"{kind_of(arguments[0])} {', '.join(bounds)}".strip()
    if get_origin(hint) is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if get_origin(hint) is list:
        return f"list of {kind_of(arguments[0])}"
    if arguments:
        return kind_of(next(part for part in arguments if part is not type(None)))
    return {int: "whole number", float: "number", str: "text", bool: "true or false"}.get(hint, "table")


def shown(value: Any, kind: str) -> str:
    """A default as a user would write it."""
    if value is PydanticUndefined:
        return "required"
    if value is None or value == "" or value == []:
        return "-"
    if value == 0 and not isinstance(value, bool):
        return "`0`"
    if kind.startswith("rate"):
        return f"`{format_rate(value)}`"
    if kind.startswith("size"):
        return f"`{format_size(value)}`"
    if kind.startswith("time"):
        whole = value >= 1_000_000_000 and value % 1_000_000_000 == 0
        return f"`{value // 1_000_000_000} s`" if whole else f"`{format_seconds(value * 1e-9)}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    if isinstance(value, list):
        return ", ".join(f"`{item}`" for item in value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def meaning_of(model: type[Section], key: str, tables: Mapping[str, object] = MappingProxyType({})) -> str:
    """From the source, or from `MEANINGS`; a key without any is an error that says where to write it."""
    if key in tables:
        return f"tables `[[faults.{key}]]`, below"
    places = (
        field_texts(model),
        {key: MEANINGS.get(f"{model.__name__}.{key}") or MEANINGS.get(f"*.{key}")},
    )
    for place in places:
        if text := place.get(key):
            return text
    raise LookupError(f"{model.__name__}.{key} has no meaning: write it as a text below the key")


def fault_models() -> dict[str, type[Section]]:
    """The tables inside `[faults]`, by key."""
    hints = {key: get_args(hint) for key, hint in get_type_hints(faults.Faults).items()}
    return {key: part[0] for key, part in hints.items() if part and issubclass(part[0], Section)}


def fault_tables() -> str:
    """Each table inside `[faults]`: what it is, and its keys."""
    parts = []
    for key, model in fault_models().items():
        text = " ".join((model.__doc__ or "").split())
        parts.append(f"`[[faults.{key}]]`: {text}\n\n{keys(model)}")
    return "\n\n".join(parts)


def keys(model: type[Section]) -> str:
    """A table of a section's own keys; tables inside it have their own."""
    hints = get_type_hints(model, include_extras=True)
    rows = []
    for key, info in model.model_fields.items():
        default = info.get_default(call_default_factory=True)
        if isinstance(default, Section | dict) or f"{model.__name__}.{key}" == "Scenario.job":
            continue
        kind = kind_of(hints[key])
        tables = fault_models() if model is faults.Faults else {}
        rows.append((f"`{key}`", kind, shown(default, kind), meaning_of(model, key, tables)))
    return table(("key", "unit or choices", "default", "meaning"), rows)


def tuned() -> str:
    """What each policy has instead of the defaults above."""
    rows = [
        (f"`{policy}`", f"`{section}.{key}`", f"`{str(value).lower() if isinstance(value, bool) else value}`")
        for policy, parts in scenario.TUNED.items()
        for section, values in parts.items()
        for key, value in values.items()
    ]
    return table(("policy", "key", "default"), rows)


def sections() -> dict[str, str]:
    """Every generated part, by the name in its marker."""
    parts = {name: keys(model) for name, model in TABLES.items()}
    return {**parts, "fault tables": fault_tables(), "tuned keys": tuned()}


if __name__ == "__main__":
    renew(sys.argv[1:], sections())
