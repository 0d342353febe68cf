"""The commands, one module each; none imports an engine before it runs."""

from collections.abc import Callable
from typing import Any

COMMANDS: dict[str, Callable[..., Any]] = {}
REPRODUCTIONS: dict[str, Callable[..., Any]] = {}
