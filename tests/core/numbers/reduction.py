"""What agents do with a tensor, without a network; as a program, the digest of sums in every form."""

import hashlib
from typing import Any

import numpy as np

from paceline.core.numbers import layout as tensors_layout
from paceline.core.numbers import payload as payloads
from paceline.core.numbers.layout import BLOCK_ELEMENTS, DTYPES, LAYOUT, OPS, PLACE


def new_layout(numbers: int, kind: int, op: int, elements: int, workers: int, wire: int = 32) -> Any:
    """The layout of a tensor."""
    layout = np.zeros(1, dtype=LAYOUT).view(np.recarray)[0]
    tensors_layout.lay_out(layout, numbers, kind, op, elements, workers, wire)
    return layout


def reduce_all(arrays: list[Any], dtype: str, op: str = "sum", elements: int = 96, wire: int = 32) -> Any:
    """What the agents do with a tensor, without a network: the result of the first worker."""
    kind, code = DTYPES[dtype], OPS[op]
    workers = len(arrays)
    arrays = [array.copy() for array in arrays]
    layout = new_layout(arrays[0].size, kind, code, elements, workers, wire)
    place = np.zeros(1, dtype=PLACE).view(np.recarray)[0]
    exponents = [np.full(layout.blocks + layout.patches, 9999, dtype=np.int32) for _ in arrays]
    payload = np.zeros(elements, dtype=np.int32)
    for local in range(layout.chunks):
        tensors_layout.find_place(layout, local, place)
        total = np.zeros(elements, dtype=np.int64)
        for array, own in zip(arrays, exponents, strict=True):
            payload[:] = 77
            payloads.write_chunk(layout, place, array.ctypes.data, kind, own, payload.ctypes.data)
            total += payload
        payload[:] = ((total + 2**31) % 2**32 - 2**31).astype(np.int32)
        for array, own in zip(arrays, exponents, strict=True):
            address = payload.ctypes.data
            status = payloads.read_chunk(layout, place, array.ctypes.data, kind, code, own, address)
            assert status == 0
    for array in arrays[1:]:
        assert array.tobytes() == arrays[0].tobytes()
    return arrays[0]


def to_bfloat16(values: Any) -> Any:
    """The bit patterns of float32 numbers, cut to bfloat16."""
    return (np.asarray(values, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)


def from_bfloat16(bits: Any) -> Any:
    """The numbers of bit patterns."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def digest_of_sums() -> str:
    """Of sums in every form, with numbers of many sizes, NaN and infinities."""
    rng = np.random.default_rng(58)
    spread = np.repeat(2.0 ** rng.integers(-30, 30, 600), 32)
    found = hashlib.sha256()
    for numbers, dtype, wire in (
        *((7, dtype, 32) for dtype in ("float32", "bfloat16", "float16")),
        *((BLOCK_ELEMENTS + 300, dtype, 16) for dtype in ("float32", "bfloat16", "float16")),
        (2000, "float32", 32),
    ):
        arrays = []
        for worker in range(3):
            values = (rng.standard_normal(numbers) * spread[:numbers]).astype(np.float32)
            values[worker::97] = (np.inf, -np.inf, np.nan)[worker] if numbers > 50 else 1.0
            if dtype == "float16":
                values = np.clip(values, -60_000, 60_000) if numbers < 50 else values * np.float32(2.0**-16)
            arrays.append(
                to_bfloat16(values) if dtype == "bfloat16" else values.astype(dtype).view(_views(dtype))
            )
        for op in OPS:
            found.update(reduce_all(arrays, dtype, op, wire=wire).tobytes())
    return found.hexdigest()


def _views(dtype: str) -> Any:
    return np.uint16 if dtype == "float16" else np.float32


if __name__ == "__main__":
    print(digest_of_sums())
