"""The backend without a change in the script: `PACELINE_BACKEND=auto` puts it in Gloo's place.

A script that asks `init_process_group` for Gloo gets `paceline`, and so does one that asks for nothing on a machine
without an accelerator (with one, torch would take that device's own backend, NCCL say, and still does). Whatever else a
script asks for, it gets. Rank 0 prints which backend is in use, in a line that `paceline run` reads:

    PACELINE_BACKEND {"used": "paceline", "asked": "gloo", "reason": "..."}
"""

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from paceline.errors import UserError

VARIABLE = "PACELINE_BACKEND"
MODES = ("auto", "off")
_torch: Any = torch


def choose(asked: str | None, accelerator: str) -> tuple[str | None, str]:
    """What to ask torch for in place of `asked`, and why; `accelerator` is this machine's device type, if any."""
    words = (asked or "").lower()
    if words in ("gloo", "cpu:gloo"):
        return "paceline", f"{VARIABLE}=auto takes Gloo's place"
    if words not in ("", "undefined"):
        return asked, "the script asks for it"
    if accelerator:
        return asked, f"the script asks for nothing, and tensors on {accelerator} have a backend of their own"
    return "paceline", f"the script asks for nothing, and {VARIABLE}=auto"


def install(env: Mapping[str, str] = os.environ) -> None:
    """Stand before `init_process_group`, if the environment asks for it; a second time does nothing."""
    mode = env.get(VARIABLE, "").strip()
    original: Any = dist.init_process_group
    if mode in ("", "off") or hasattr(original, "paceline_mode"):
        return
    chosen = _choosing(original, mode)
    # torch's own modules have taken the name from one another.
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.") and getattr(module, "init_process_group", None) is original:
            module.init_process_group = chosen  # type: ignore[attr-defined]


def _choosing(original: Callable[..., None], mode: str) -> Callable[..., None]:
    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **more: Any) -> None:
        if mode not in MODES:
            raise UserError(f'"{mode}" is neither auto nor off', place=VARIABLE)
        used, reason = choose(backend, _accelerator())
        original(used, *args, **more)
        if dist.get_rank() == 0:
            told = {"used": str(dist.get_backend()), "asked": backend or "nothing", "reason": reason}
            print(f"{VARIABLE} {json.dumps(told)}", file=sys.stderr, flush=True)

    marked: Any = init_process_group
    marked.paceline_mode = mode
    return init_process_group


def _accelerator() -> str:
    """The type of this machine's accelerator, or nothing."""
    found = _torch.accelerator.current_accelerator(check_available=True)
    return "" if found is None else str(found.type)
