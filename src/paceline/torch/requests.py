"""What a group is asked to be: by torch, by its options, and by the environment; mistakes are told here.

`pg_options` of `init_process_group` and `new_group` is either `paceline.torch.settings.Settings` (in place of the
environment) or the options of the inner Gloo group."""

import os
import sys
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore
from torch.distributed import ProcessGroupGloo

from paceline.errors import UserError
from paceline.torch.settings import Settings, read_settings

_Gloo: Any = ProcessGroupGloo


@dataclass(frozen=True)
class Request:
    """The group to be made, as this rank sees it."""

    store: Any
    rank: int
    size: int
    timeout: timedelta
    name: str
    settings: Settings
    gloo_options: Any = None
    global_ranks: tuple[int, ...] = ()

    @classmethod
    def of_torch(cls, options: Any, backend_options: Any) -> "Request":
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

    def part(self, ranks: list[int], name: str, timeout: timedelta | None, options: Any) -> "Request":
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
