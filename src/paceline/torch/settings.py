"""What the environment asks of the backend; read once, when a group is made.

| variable | meaning |
|---|---|
| `PACELINE_SWITCH` | `host[:port]` of a switch's control plane; unset: no switch |
| `PACELINE_TOKEN` | the cluster's token; or `PACELINE_TOKEN_FILE`, a file that holds it |
| `PACELINE_HOST_REDUCE` | `0`: ranks of one host do not reduce in shared memory first |
| `PACELINE_ADDRESS` | this host's own address, where the route to the switch does not tell it |
| `PACELINE_JOB` | the job's name in the switch's lists; else torchrun's run id |
| `PACELINE_SERVER` | the server that this rank belongs to: only ranks of one server share memory |
| `PACELINE_REMAINING_S` | the time the job still needs, for its priority |
| `PACELINE_REMAINING_FILE` | a file with the same, which a planner renews |
| `PACELINE_PRIORITY_MAX`, `PACELINE_SLOTS_MAX` | what to ask for at admission |
| `PACELINE_STRAGGLER` | `custody`: leading workers go on without a straggling one; the first worker's counts |
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import UserError
from paceline.live.agent.config import STRAGGLER_MODES


@dataclass(frozen=True)
class Settings:
    """The variables above, checked."""

    switch: str = ""
    token: str = ""
    host_reduce: bool = True
    address: str = ""
    job: str = "torch"
    server: str = ""
    remaining_s: float | None = None
    remaining_file: str = ""
    priority_max: int | None = None
    slots_max: int | None = None
    straggler: str = "off"


def read_settings(env: Mapping[str, str] = os.environ) -> Settings:
    """The settings of this process; a mistake is a `UserError` that names the variable."""
    return Settings(
        switch=env.get("PACELINE_SWITCH", "").strip(),
        token=_token(env),
        host_reduce=_flag(env, "PACELINE_HOST_REDUCE", True),
        address=env.get("PACELINE_ADDRESS", "").strip(),
        job=env.get("PACELINE_JOB") or env.get("TORCHELASTIC_RUN_ID") or "torch",
        server=env.get("PACELINE_SERVER", "").strip(),
        remaining_s=_number(env, "PACELINE_REMAINING_S"),
        remaining_file=env.get("PACELINE_REMAINING_FILE", ""),
        priority_max=_whole(env, "PACELINE_PRIORITY_MAX"),
        slots_max=_whole(env, "PACELINE_SLOTS_MAX"),
        straggler=_straggler(env),
    )


def _token(env: Mapping[str, str]) -> str:
    path = env.get("PACELINE_TOKEN_FILE")
    if env.get("PACELINE_TOKEN") or not path:
        return env.get("PACELINE_TOKEN", "")
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", place="PACELINE_TOKEN_FILE") from error


def _straggler(env: Mapping[str, str]) -> str:
    mode = env.get("PACELINE_STRAGGLER", "").strip() or "off"
    if mode not in STRAGGLER_MODES:
        raise UserError(f'"{mode}" is none of {", ".join(STRAGGLER_MODES)}', place="PACELINE_STRAGGLER")
    return mode


def _flag(env: Mapping[str, str], name: str, default: bool) -> bool:
    text = env.get(name, "").strip().lower()
    if text in ("", "0", "1", "false", "true", "no", "yes"):
        return default if not text else text in ("1", "true", "yes")
    raise UserError(f'"{text}" is neither 0 nor 1', place=name)


def _number(env: Mapping[str, str], name: str) -> float | None:
    text = env.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value > 0:
        raise UserError(f'"{text}" is not a number above 0', place=name)
    return value


def _whole(env: Mapping[str, str], name: str) -> int | None:
    value = _number(env, name)
    if value is None:
        return None
    if value != int(value):
        raise UserError(f"{value} is not a whole number", place=name)
    return int(value)
