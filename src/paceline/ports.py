"""Ports to be told to others before they are bound, from below those that Linux hands out by itself.

A port that was bound with number 0 and let go can be anybody's a moment later: every connection that the machine
opens takes one of the same range, and a training process imports for seconds before it listens. Below that range
nobody comes by chance. Each process looks from a place of its own on, and never gives one out twice in a row.
"""

import contextlib
import itertools
import random
import socket
import threading

FIRST_PORT, PORTS = 20_000, 10_000
"""Also where an engine's job number or token is turned into MASTER_PORT."""

_lock = threading.Lock()
_next = itertools.count(random.SystemRandom().randrange(PORTS))


def free_port(after: int = 0) -> int:
    """A TCP port that is free on this machine now, and the UDP ports after it: as many as `after`."""
    with _lock:
        for _ in range(PORTS):
            port = FIRST_PORT + next(_next) % (PORTS - after)
            if _is_free(port, after):
                for _ in range(after):
                    next(_next)
                return port
    raise OSError(f"none of the ports {FIRST_PORT} to {FIRST_PORT + PORTS - 1} is free")


def _is_free(port: int, after: int) -> bool:
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(socket.socket()).bind(("", port))
            for other in range(port + 1, port + 1 + after):
                stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)).bind(("", other))
        except OSError:
            return False
    return True
