"""A device for the tests: `emu`, PrivateUse1 by its dispatch key, whose memory is the host's.

`on_emu(tensor)` gives a tensor of it. Every operation is done on the host tensor behind it; copies between the two are
noted in `COPIES`, so that a test sees in which pieces a tensor travelled. Streams and events are torch's own for a
device without any: they order nothing, and a copy is over when the call returns.
"""

from typing import Any

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_torch: Any = torch
COPIES: list[tuple[str, int]] = []
"""Each `in` (to the host) or `out`, and its elements."""


class EmuTensor(torch.Tensor):
    """Looks like a tensor of the device; `raw` has its values."""

    raw: torch.Tensor
    __torch_function__ = _torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: Any, raw: torch.Tensor) -> "EmuTensor":
        made: Any = _torch.Tensor._make_wrapper_subclass(
            cls, raw.size(), strides=raw.stride(), dtype=raw.dtype, device="emu:0"
        )
        made.raw = raw
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        more = dict(kwargs or {})
        plain, plain_more = tree_map_only(EmuTensor, lambda tensor: tensor.raw, (args, more))
        target = torch.device(more["device"]).type if more.get("device") is not None else "emu"
        if "device" in plain_more:
            plain_more["device"] = "cpu"
        if func is torch.ops.aten.copy_.default and isinstance(args[0], EmuTensor) != isinstance(
            args[1], EmuTensor
        ):
            COPIES.append(("out" if isinstance(args[0], EmuTensor) else "in", args[0].numel()))
        result = func(*plain, **plain_more)
        if func._schema.is_mutable:
            return args[0]
        return tree_map_only(torch.Tensor, EmuTensor, result) if target == "emu" else result


def set_up() -> None:
    """Make the device known to torch; once a process."""
    _setup_privateuseone_for_python_backend("emu")


def on_emu(tensor: torch.Tensor) -> EmuTensor:
    """The same values on the device."""
    return EmuTensor(tensor.clone())
