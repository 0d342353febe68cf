"""The generated parts of pages: the package's names (docs/api.md) and rooms (docs/ARCHITECTURE.md), a switch's metrics.

python -m paceline.describe docs/api.md docs/ARCHITECTURE.md docs/switch.md
"""

import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline import api
from paceline.core.describe import ERROR_RULES, SWITCH_COUNTER_MEANINGS
from paceline.core.switch.program import COUNTER_NAMES
from paceline.generated import field_texts, renew, table
from paceline.live.switch.metrics import METRICS
from paceline.live.switch.shard_state import DROP_REASONS, OWN_DROPS
from paceline.report.run.read import RunData
from paceline.schedule.plan import Schedule
from paceline.sim.results import JobResult, RunResult

PACKAGE = Path(__file__).resolve().parent
RESULTS = (RunResult, JobResult, Schedule, RunData)
"""What the functions give; users get these, and make none."""
_COLUMN = 26


def first_sentence(path: Path) -> str:
    """What a module says of itself, up to the first full stop or the end of its first paragraph."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    line = text.partition("\n\n")[0].replace("\n", " ")
    return line.partition(". ")[0].removesuffix(".")


def tree(folder: Path = PACKAGE, depth: int = 0) -> Iterator[tuple[int, str, str]]:
    """Depth, name and meaning: the modules of a room, then the rooms inside it, each before what it holds."""
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name)):
        if path.is_dir() and (path / "__init__.py").exists():
            yield depth, f"{path.name}/", first_sentence(path / "__init__.py")
            yield from tree(path, depth + 1)
        elif path.suffix == ".py" and path.name != "__init__.py":
            yield depth, path.name, first_sentence(path)


def _map() -> str:
    lines = []
    for depth, name, meaning in tree():
        if depth == 0 and name.endswith("/"):
            lines.append("")
        lines.append(f"{'  ' * depth + name:<{_COLUMN}}{meaning}")
    return "```\n" + "\n".join(lines).strip("\n") + "\n```"


def _signature(name: str, function: Any) -> str:
    """A call as a reader wants it: names and defaults, without types."""
    shown = []
    star = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            shown.append("*")
            star = True
        value = getattr(parameter.default, "__name__", repr(parameter.default))
        default = "" if parameter.default is parameter.empty else f"={value}"
        shown.append(f"{parameter.name}{default}")
    return f"`{name}({', '.join(item for item in shown if item not in ('self', 'cls'))})`"


def _text(value: Any) -> str:
    """A docstring as Markdown."""
    return inspect.cleandoc(value.__doc__ or "")


def _kind(annotation: Any) -> str:
    """A type as it is written, without the modules it comes from."""
    text = (
        annotation.__name__
        if isinstance(annotation, type) and "[" not in str(annotation)
        else str(annotation)
    )
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", text).replace("|", "or")


def _fields(kind: type[Any]) -> str:
    known = field_texts(kind)
    rows = []
    for field in dataclasses.fields(kind):
        default = "" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
        rows.append((f"`{field.name}`", f"`{_kind(field.type)}`", default, known[field.name]))
    return table(("field", "type", "default", "meaning"), rows)


def _members(kind: type[Any]) -> str:
    """Its own methods and properties that say what they are."""
    rows = []
    for name, member in vars(kind).items():
        function = member.__func__ if isinstance(member, classmethod) else member
        if (
            name.startswith("_")
            or not (callable(function) or hasattr(member, "__get__"))
            or not member.__doc__
        ):
            continue
        shown = _signature(f".{name}", function) if callable(function) else f"`.{name}`"
        rows.append((shown, _text(member).partition("\n\n")[0].replace("\n", " ")))
    return table(("member", "meaning"), rows) if rows else ""


def _names() -> str:
    """Functions first, then what they take and give."""
    parts = [
        f"### {name}\n\n{_signature(f'paceline.{name}', function)}\n\n{_text(function)}"
        for name in api.__all__
        if inspect.isfunction(function := getattr(api, name))
    ]
    for name in ("Job", "Cluster"):
        kind = getattr(api, name)
        parts += [f"### {name}\n\n{_text(kind)}", _fields(kind), _members(kind)]
    parts.append(f"### POLICIES\n\n{_policies()}")
    return "\n\n".join(part for part in parts if part)


def _policies() -> str:
    rows = [
        (f"`POLICIES[{key!r}]`", ", ".join(f"`{name}`" for name in names))
        for key, names in api.POLICIES.items()
    ]
    return table(("for", "names"), rows)


def _results() -> str:
    parts = []
    for kind in RESULTS:
        parts += [f"### {kind.__name__}\n\n{_text(kind)}", _fields(kind), _members(kind)]
    return "\n\n".join(part for part in parts if part)


def _metrics() -> str:
    rows = [
        (f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels), meaning)
        for name, (kind, labels, meaning) in METRICS.items()
    ]
    return table(("metric", "type", "labels", "meaning"), rows)


def _drops() -> str:
    meanings = dict(zip(DROP_REASONS[1:], ERROR_RULES[1:], strict=False)) | OWN_DROPS
    for counter, meaning in zip(COUNTER_NAMES, SWITCH_COUNTER_MEANINGS, strict=True):
        if counter.startswith("drop_"):
            reason = counter.removeprefix("drop_")
            known = meanings.get(reason)
            meanings[reason] = f"{known}; {meaning}" if known and known != meaning else meaning
    return table(("reason", "meaning"), [(f"`{reason}`", meaning) for reason, meaning in meanings.items()])


def sections() -> dict[str, str]:
    """Every generated part, by the name in its marker."""
    return {"map": _map(), "names": _names(), "results": _results(), "metrics": _metrics(), "drops": _drops()}


if __name__ == "__main__":
    renew(sys.argv[1:], sections())
