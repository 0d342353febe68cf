"""Collectives that are not ours, handed to Gloo without holding Python's lock.

torch lets a subclass of `ProcessGroup` leave collectives out, but then calls its own with Python's global lock held
(2.13: the lookup of an override and the call behind it are one scope). Gloo's threads need that lock to drop the
tensors of a finished collective, and hold Gloo's own lock meanwhile; so a rank can come to stand still for good. A
`ProcessGroup` that is no subclass, over the same Gloo group, has no such scope: its calls release the lock.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import ProcessGroup

from paceline.torch.work import untraced

_ProcessGroup: Any = ProcessGroup


def plain_group(store: Any, rank: int, size: int, inner: Any) -> Any:
    """A group of torch's own class around a Gloo group; without a store, some of its methods would crash."""
    group = _ProcessGroup(store, rank, size)
    register_gloo(group, inner)
    return group


def register_gloo(group: Any, inner: Any) -> None:
    """Make a Gloo group do a group's collectives of CPU tensors."""
    group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, inner)
    group._set_default_backend(ProcessGroup.BackendType.GLOO)


def collectives() -> list[str]:
    """What this version of torch has: the methods of a group that give a `Work`, by their signatures."""
    return [
        name for name in dir(ProcessGroup) if "-> c10d::Work" in (getattr(ProcessGroup, name).__doc__ or "")
    ]


def hand_over(cls: type) -> None:
    """Give a class every collective that it does not have itself, by its `over_gloo`."""
    for name in collectives():
        if name not in cls.__dict__:
            setattr(cls, name, _handed(name))


def _handed(name: str) -> Callable[..., Any]:
    def collective(self: Any, *args: Any, **more: Any) -> Any:
        return self.over_gloo(name, *args, **more)

    collective.__name__ = collective.__qualname__ = name
    collective.__doc__ = f"torch's `{name}`, over Gloo."
    return untraced(collective)
