"""Arrays of records as the engine likes them: in whole cache lines.

A large run touches more hosts in turn than a processor's nearest caches hold, so an event takes as long as the lines
that it must fetch. A record that lies across the edge of a line costs one more.
"""

from typing import Any

import numpy as np

LINE_BYTES = 64


def in_lines(*fields: tuple[Any, ...]) -> np.dtype[Any]:
    """A record that fills whole lines, if `aligned_records` keeps it."""
    plain = np.dtype(list(fields), align=True)
    assert plain.fields is not None
    places = {name: plain.fields[name] for name, *_ in fields}
    return np.dtype(
        {
            "names": list(places),
            "formats": [kind for kind, *_ in places.values()],
            "offsets": [offset for _, offset, *_ in places.values()],
            "itemsize": -(-plain.itemsize // LINE_BYTES) * LINE_BYTES,
        },
        align=True,
    )


def aligned_records(count: int, dtype: np.dtype[Any]) -> Any:
    """Zeroed records, addressable by field name; the first begins with a line."""
    memory = np.zeros(count * dtype.itemsize + LINE_BYTES, dtype=np.uint8)
    begin = -memory.ctypes.data % LINE_BYTES
    return memory[begin : begin + count * dtype.itemsize].view(dtype).view(np.recarray)
