"""Paceline: many deep-learning jobs finish sooner on one shared cluster.

    import paceline

    paceline.simulate("examples/simulate/quick.toml", "esa")
    paceline.plan("examples/plan/jobs.toml", "examples/plan/cluster.toml")
    paceline.read_run("run1")

The names in `__all__` are for users; docs/api.md shows them. Each is loaded when it is first asked for: importing the
package alone is quick. Their types are in `__init__.pyi`, since every module depends on what this file imports.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

__all__ = ["POLICIES", "Cluster", "Job", "Scenario", "UserError", "plan", "read_run", "simulate"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "errors" if name == "UserError" else "api"
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
