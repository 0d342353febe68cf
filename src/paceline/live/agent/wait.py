"""A thread that sleeps until the loop changes a word in memory, without the GIL."""

import numpy as np

from paceline.compile.decorators import compiled
from paceline.live.hostmem.words import futex
from paceline.live.net.libc import address_of

_WAIT_PRIVATE = 128


@compiled
def _sleep(address: int, value: int, timeout: int) -> None:
    futex(address, _WAIT_PRIVATE, value, timeout)


def sleep_while(address: int, value: int, timeout_s: float) -> None:
    """Sleep while the 32-bit word at `address` has this value, at most for `timeout_s`; may return early."""
    timeout = np.array([int(timeout_s), int(timeout_s % 1.0 * 1e9)], dtype=np.int64)
    _sleep(address, value, address_of(timeout))
