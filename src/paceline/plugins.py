"""Policies from outside: `module:Class` on the command line, or an entry point of an installed package.

Two kinds. A scheduling policy has `name`, `online` and `plan(problem, objective)` (`schedule/policies/__init__.py`).
A memory policy of the simulator has `base`, one of the rules that are compiled in, and `priority(remaining_s,
comm_over_comp, layer, layers)`, which gives each tensor 0..255: under `esa`, `esa-plus`, `always-preempt` and the like
that decides whose packets hold the switch's aggregators. The rules themselves run inside one compiled loop, packet by
packet, and are compiled with it: a Python function from outside could not be called there.
"""

import importlib
import importlib.metadata
import inspect
import sys
from pathlib import Path
from typing import Any

from paceline.errors import UserError

SCHEDULING = "paceline.policies"
MEMORY = "paceline.memory_policies"
"""Groups of entry points; the name of an entry is what `--policy` takes."""


def known(group: str) -> list[str]:
    """The names that installed packages offer."""
    return sorted(entry.name for entry in importlib.metadata.entry_points(group=group))


def is_plugin(name: str, group: str) -> bool:
    """Whether a policy's name stands for one from outside."""
    return ":" in name or name in known(group)


def make(name: str, group: str, needed: tuple[str, ...], **settings: object) -> Any:
    """An object of the policy's class, with those of the settings that its constructor takes."""
    factory = _factory(name, group)
    try:
        taken = inspect.signature(factory).parameters
        every = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken.values())
        made = factory(**{key: value for key, value in settings.items() if every or key in taken})
    except (TypeError, ValueError) as error:
        raise UserError(f"{name} cannot be made: {error}", place="--policy") from None
    missing = [attribute for attribute in needed if not hasattr(made, attribute)]
    if missing:
        raise UserError(f"{name} is no policy: it has no {', '.join(missing)}", place="--policy")
    return made


def _factory(name: str, group: str) -> Any:
    for entry in importlib.metadata.entry_points(group=group):
        if entry.name == name:
            try:
                return entry.load()
            except (ImportError, AttributeError) as error:
                raise UserError(
                    f"{name} ({entry.value}) cannot be loaded: {error}", place="--policy"
                ) from None
    module_name, _, class_name = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # A script's own folder is there, a command's is not.
    try:
        found = getattr(importlib.import_module(module_name), class_name, None)
    except ImportError as error:
        raise UserError(f"{module_name} cannot be loaded: {error}", place="--policy") from None
    if not callable(found):
        raise UserError(f"{module_name} has no class {class_name!r}", place="--policy")
    return found
