"""One tensor to be reduced, as the reducers see it: a flat NumPy view, its format, and whom to tell."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.distributed import ReduceOp

from paceline.torch.work import PacelineWork

KINDS = {
    torch.float32: "float32",
    torch.int32: "int32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}
_SUM: Any = ReduceOp.SUM
_AVG: Any = ReduceOp.AVG
OPS = {int(_SUM): "sum", int(_AVG): "avg"}
DEFAULT_PRIORITY = 128
DRAIN_S = 5.0
"""How long a group that is closed waits for reductions that are under way."""


@dataclass
class Reduction:
    """An all-reduce of one contiguous array, in place."""

    array: npt.NDArray[Any]
    kind: str
    op: str
    priority: int
    timeout_s: float
    work: PacelineWork

    def divisor(self, ranks: int) -> int:
        """What the sum over all ranks is divided by."""
        return ranks if self.op == "avg" else 1

    def tensor(self) -> torch.Tensor:
        """The array as a flat tensor over the same memory."""
        if self.array.dtype != np.uint16:
            return torch.from_numpy(self.array)
        half = torch.bfloat16 if self.kind == "bfloat16" else torch.float16
        return torch.from_numpy(self.array.view(np.int16)).view(half)


class Reducer(Protocol):
    """Does all-reduces in the order in which they are submitted, which is the same on all ranks."""

    def submit(self, reduction: Reduction) -> None:
        """Begin; returns at once."""

    def try_now(self, reduction: Reduction) -> bool:
        """Do it on the calling thread if nothing is under way and that is quicker; False: submit it."""

    def status(self) -> dict[str, Any]:
        """`path` and figures."""

    def close(self, drain_s: float = DRAIN_S) -> None:
        """Finish what is under way, or give it up after `drain_s`, and end all threads."""


def supported(tensors: list[torch.Tensor], op: Any) -> bool:
    """Whether this all-reduce is ours; the answer is the same on all ranks."""
    if len(tensors) != 1 or _op_code(op) not in OPS:
        return False
    tensor = tensors[0]
    return tensor.dtype in KINDS and tensor.layout == torch.strided and tensor.device.type == "cpu"


def op_name(op: Any) -> str:
    """ "sum" or "avg"."""
    return OPS[_op_code(op)]


def _op_code(op: Any) -> int:
    try:
        return int(op.op if hasattr(op, "op") else op)
    except (TypeError, ValueError):
        return -1


def dense_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where its memory can be worked on as it is, or a copy of its values."""
    if tensor.is_contiguous() and not tensor.is_neg():
        return tensor
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        raise ValueError(
            "all_reduce of a tensor in which several elements have one place in memory: clone it first"
        )
    return tensor.resolve_neg().contiguous()


def copy_back(tensor: torch.Tensor, dense: torch.Tensor) -> None:
    """Bring the result from a copy to where it belongs."""
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        tensor.copy_(dense)


def flat_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The tensor's memory as a flat array; 16-bit floats as bit patterns."""
    flat = tensor.detach().view(-1)
    if tensor.dtype in (torch.bfloat16, torch.float16):
        return flat.view(torch.int16).numpy().view(np.uint16)
    return flat.numpy()
