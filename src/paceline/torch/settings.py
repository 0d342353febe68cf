"""What a group is asked to be: by the environment, by its options, and by torch; mistakes are told here.

The environment is read once, when a group is made:

| variable | meaning |
|---|---|
| `PACELINE_SWITCH` | `host[:port]` or `[ipv6]:port` of a switch, or several with commas; unset: no switch |
| `PACELINE_SWITCH_CA` | certificates by which the switch is known over TLS; or |
| `PACELINE_SWITCH_FINGERPRINT` | the SHA-256 of its own certificate |
| `PACELINE_TOKEN` | the cluster's token; or `PACELINE_TOKEN_FILE`, a file that holds it |
| `PACELINE_HOST_REDUCE` | `0`: ranks of one host do not reduce in shared memory first |
| `PACELINE_ADDRESS` | this host's own address, where the route to the switch does not tell it |
| `PACELINE_JOB` | the job's name in the switch's lists; else torchrun's run id |
| `PACELINE_RACK` | this rank's rack, where racks have switches of their own: `PACELINE_SWITCH` is then its rack's |
| `PACELINE_SERVER` | the server that this rank belongs to: only ranks of one server share memory |
| `PACELINE_REMAINING_S` | the time the job still needs, for its priority |
| `PACELINE_REMAINING_FILE` | a file with the same, which a planner renews |
| `PACELINE_PRIORITY_MAX`, `PACELINE_SLOTS_MAX` | what to ask for at admission |
| `PACELINE_PASSPORT` | `1`, or a folder: keep a hash of every result there, for `paceline verify` |
| `PACELINE_DSCP` | `off`: packets do not tell the network how urgent they are |
| `PACELINE_WIRE` | bits of a number on the wire: `32` for all formats, or `16` for float32 too, with error feedback |
| `PACELINE_STRAGGLER` | `custody`: leading workers go on without a straggling one; the first worker's counts |

`pg_options` of `init_process_group` and `new_group` is either `Settings` (in place of the environment) or the options
of the inner Gloo group.

`paceline run` writes the seconds that it expects a job to need into PACELINE_REMAINING_FILE at every plan, so that the
job's priority in the switch follows the schedule while it runs. The file's own time says when that was: all ranks that
read it expect the same end. Without a file, PACELINE_REMAINING_S counts from when the group was made.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import ProcessGroupGloo

from paceline.errors import UserError
from paceline.live.agent.config import STRAGGLER_MODES
from paceline.live.switch_tls import Trust, trust_in
from paceline.secret_files import read_secret

PASSPORT_FOLDER = "passport"
"""Where passports go by default: here, or in the attempt's folder under `paceline run`."""
_Gloo: Any = ProcessGroupGloo
LOOK_S = 1.0
"""At most so often is the file with the remaining time looked at."""
LEAST_S = 1.0
REMAINING_LETTERS = 64
"""A job that is late is not infinitely urgent."""


@dataclass(frozen=True)
class Settings:
    """The variables above, checked."""

    switch: str = ""
    token: str = ""
    host_reduce: bool = True
    address: str = ""
    job: str = "torch"
    server: str = ""
    rack: str = ""
    remaining_s: float | None = None
    remaining_file: str = ""
    priority_max: int | None = None
    slots_max: int | None = None
    straggler: str = "off"
    trust: Trust | None = None
    passport: str = ""
    wire: int | None = None
    """Bits of a number on the wire; None: 16 for the formats of 16 bits, 32 for float32."""


def read_settings(env: Mapping[str, str] = os.environ) -> Settings:
    """The settings of this process; a mistake is a `UserError` that names the variable."""
    return Settings(
        switch=env.get("PACELINE_SWITCH", "").strip(),
        token=_token(env),
        host_reduce=_flag(env, "PACELINE_HOST_REDUCE", True),
        address=env.get("PACELINE_ADDRESS", "").strip(),
        job=env.get("PACELINE_JOB") or env.get("TORCHELASTIC_RUN_ID") or "torch",
        server=env.get("PACELINE_SERVER", "").strip(),
        rack=env.get("PACELINE_RACK", "").strip(),
        remaining_s=_number(env, "PACELINE_REMAINING_S"),
        remaining_file=env.get("PACELINE_REMAINING_FILE", ""),
        priority_max=_whole(env, "PACELINE_PRIORITY_MAX"),
        slots_max=_whole(env, "PACELINE_SLOTS_MAX"),
        straggler=_straggler(env),
        trust=trust_in(env),
        passport=passport_folder(env),
        wire=_wire(env),
    )


def _token(env: Mapping[str, str]) -> str:
    path = env.get("PACELINE_TOKEN_FILE")
    if env.get("PACELINE_TOKEN") or not path:
        return env.get("PACELINE_TOKEN", "")
    return read_secret(Path(path), "PACELINE_TOKEN_FILE")


def _straggler(env: Mapping[str, str]) -> str:
    mode = env.get("PACELINE_STRAGGLER", "").strip() or "off"
    if mode not in STRAGGLER_MODES:
        raise UserError(f'"{mode}" is none of {", ".join(STRAGGLER_MODES)}', place="PACELINE_STRAGGLER")
    return mode


def _wire(env: Mapping[str, str]) -> int | None:
    text = env.get("PACELINE_WIRE", "").strip()
    if text not in ("", "16", "32"):
        raise UserError(f'"{text}" is neither 16 nor 32', place="PACELINE_WIRE")
    return int(text) if text else None


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
    if not 0 < value < math.inf:
        raise UserError(f'"{text}" is not a number above 0', place=name)
    return value


def _whole(env: Mapping[str, str], name: str) -> int | None:
    value = _number(env, name)
    if value is None:
        return None
    if value != int(value):
        raise UserError(f"{value} is not a whole number", place=name)
    return int(value)


def passport_folder(env: Mapping[str, str]) -> str:
    """Where passports go; empty: nowhere."""
    text = env.get("PACELINE_PASSPORT", "").strip()
    if text.lower() in ("", "0", "no", "false"):
        return ""
    if text.lower() not in ("1", "yes", "true"):
        return text
    status = env.get("PACELINE_STATUS", "")
    return str(Path(status).parent / PASSPORT_FOLDER) if status else PASSPORT_FOLDER


class RemainingTime:
    """How long this job is expected to take from now on; None where nobody has told."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self._file, self._clock = settings.remaining_file, clock
        self._ends = None if settings.remaining_s is None else clock() + settings.remaining_s
        self._looked, self._written_ns = float("-inf"), -1

    def seconds(self) -> float | None:
        """Seconds that are left."""
        now = self._clock()
        if self._file and now - self._looked >= LOOK_S:
            self._looked = now
            self._read()
        return None if self._ends is None else max(LEAST_S, self._ends - now)

    def _read(self) -> None:
        try:
            with Path(self._file).open(encoding="ascii") as file:
                written_ns = os.fstat(file.fileno()).st_mtime_ns
                if written_ns != self._written_ns:
                    remaining_s = float(file.read(REMAINING_LETTERS))
                    if math.isfinite(remaining_s):
                        self._ends = written_ns / 1e9 + remaining_s
                    self._written_ns = written_ns
        except (OSError, ValueError):
            pass  # what was known stays: a planner may be gone for good


@dataclass(frozen=True)
class GroupRequest:
    """The group to be made, as this rank sees it."""

    store: Store
    rank: int
    size: int
    timeout: timedelta
    name: str
    settings: Settings
    gloo_options: Any = None
    """torch's options of the inner group, if it was given some."""
    global_ranks: tuple[int, ...] = ()
    """Of the group's ranks, in the whole job; empty: not told."""

    @classmethod
    def of_torch(cls, options: Any, backend_options: Any) -> "GroupRequest":
        """From what torch hands to a backend."""
        _check_devices()
        settings, gloo_options = _read_options(backend_options)
        # A shared store still has the keys of the attempt before, under the same names.
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"restart/{restarts}/", options.store) if restarts != "0" else options.store
        return cls(
            store,
            options.group_rank,
            options.group_size,
            options.timeout,
            options.group_id or "0",
            settings,
            gloo_options,
            tuple(options.global_ranks_in_group),
        )

    def part(self, ranks: list[int], name: str, timeout: timedelta | None, options: Any) -> "GroupRequest":
        """The same for some of the ranks, in this order."""
        given = (self.settings, None) if options is None else _read_options(options)
        return replace(
            self,
            store=PrefixStore(f"{name}/", self.store),
            rank=ranks.index(self.rank),
            size=len(ranks),
            timeout=timeout or self.timeout,
            name=name,
            settings=given[0],
            gloo_options=given[1],
            global_ranks=tuple(self.global_ranks[rank] for rank in ranks) if self.global_ranks else (),
        )

    def make_gloo(self) -> Any:
        """The inner group."""
        if self.gloo_options is None:
            inner = _Gloo(self.store, self.rank, self.size, timeout=self.timeout)
        else:
            self.gloo_options._timeout = self.timeout
            inner = _Gloo(self.store, self.rank, self.size, self.gloo_options)
        inner.options.global_ranks_in_group = list(self.global_ranks)
        inner.options.group_name = self.name
        inner._set_sequence_number_for_group()
        return inner


def _read_options(given: Any) -> tuple[Settings, Any]:
    if given is None:
        return read_settings(), None
    if isinstance(given, Settings):
        return given, None
    if isinstance(given, _Gloo._Options):
        return read_settings(), given
    raise UserError(
        f"{type(given).__name__} is neither paceline.torch.settings.Settings nor ProcessGroupGloo._Options",
        place="pg_options",
    )


def _check_devices() -> None:
    """Refuse `cpu:paceline,cuda:nccl`: torch stops at the first group that is written in Python.

    Nothing that torch hands to a backend says what else was asked for, so this looks at its caller's variables; under
    another version of torch that has no such variable nothing is refused.
    """
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back  # type: ignore[assignment]
    config = frame.f_locals.get("backend_config") if frame is not None else None
    if config is None:
        return
    others = {device: name for device, name in config.get_device_backend_map().items() if name != "paceline"}
    if others:
        told = ", ".join(f"{device}:{name}" for device, name in others.items())
        raise UserError(
            f"{told} would be lost beside paceline, which torch makes the whole group: give it a group of its own "
            "(torch.distributed.new_group)",
            place="the backend of a group",
        )
