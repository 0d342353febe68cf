"""A connection between every two workers that carries nothing: when it breaks, the other one is gone.

The kernel keeps it, not the process. A worker that is starved or stopped keeps its connections; one that ends, however
that comes about, loses them at once; a host that is gone stops answering the kernel's probes (`PROBES`). So a death is
known within seconds, and load gives no false alarm. A worker that leaves in order says so first.

No thread: what happened is in the sockets, for whoever looks. Where a connection cannot be made, its end is not seen
here, and heartbeats (`peers`) are all there is. A copy of the process (fork) gives its sockets back: it must not keep
the connections of the one that ended."""

import json
import os
import secrets
import socket
import time
import weakref
from contextlib import suppress
from typing import Any

from paceline.torch.rendezvous import Keys

PROBES = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3}
"""After 2 s without traffic the kernel asks every second, and gives up after the third question."""
_KEPT, _GOODBYE = b"+", b"."
_TOKEN_BYTES = 32
_GREETING_BYTES = _TOKEN_BYTES + 4


class Lifelines:
    """One worker's connections to all others."""

    def __init__(self, keys: Keys, worker: int, workers: int, address: str, timeout_s: float) -> None:
        """Meet the others; whoever is not there in time is left out."""
        self._lines: dict[int, socket.socket] = {}
        self._ended: set[int] = set()
        _MADE.add(self)
        token = secrets.token_hex(_TOKEN_BYTES // 2)
        try:
            server = socket.create_server((address, 0), backlog=workers)
        except OSError:
            keys.set(f"line/{worker}", json.dumps(None))
            return
        with server:
            keys.set(f"line/{worker}", json.dumps([*server.getsockname()[:2], token]))
            for other in range(worker):
                listener = json.loads(keys.get(f"line/{other}"))
                line = _call(listener, worker, timeout_s) if listener is not None else None
                if line is not None:
                    self._keep(other, line)
            callers = [w for w in range(worker + 1, workers) if json.loads(keys.get(f"line/{w}")) is not None]
            end = time.monotonic() + timeout_s
            while not self._lines.keys() >= set(callers) and (left_s := end - time.monotonic()) > 0:
                server.settimeout(left_s)
                with suppress(OSError):
                    self._answer(server.accept()[0], token, callers, left_s)

    def _answer(self, line: socket.socket, token: str, callers: list[int], timeout_s: float) -> None:
        """Keep the line of a worker, and tell it so: a line that one side alone keeps would look broken to it."""
        caller = _greeting(line, token, timeout_s)
        if caller not in callers or caller in self._lines:
            line.close()
            return
        line.sendall(_KEPT)
        self._keep(caller, line)

    def _keep(self, worker: int, line: socket.socket) -> None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in PROBES.items():
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        line.setblocking(False)
        self._lines[worker] = line

    def ended(self) -> set[int]:
        """The workers whose connection has broken without a goodbye."""
        for worker, line in list(self._lines.items()):
            try:
                said = line.recv(1)
            except BlockingIOError:
                continue
            except OSError:
                said = b""
            if not said:
                self._ended.add(worker)
            line.close()
            del self._lines[worker]
        return self._ended

    def close(self) -> None:
        """Leave in order."""
        for line in self._lines.values():
            with suppress(OSError):
                line.send(_GOODBYE)
        self.drop()

    def drop(self) -> None:
        """Close without a word."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()


_MADE: "weakref.WeakSet[Lifelines]" = weakref.WeakSet()


def _in_a_copy() -> None:
    for lines in list(_MADE):
        lines.drop()


os.register_at_fork(after_in_child=_in_a_copy)


def _call(listener: list[Any], worker: int, timeout_s: float) -> socket.socket | None:
    """A line that the other one has said to keep, or none."""
    host, port, token = listener
    try:
        line = socket.create_connection((host, port), timeout_s)
    except OSError:
        return None
    with suppress(OSError):
        line.sendall(f"{token}{worker:4d}".encode())
        if line.recv(1) == _KEPT:
            return line
    with suppress(OSError):
        line.sendall(_GOODBYE)  # it may be kept yet
    line.close()
    return None


def _greeting(line: socket.socket, token: str, timeout_s: float) -> int:
    """The worker that calls, or -1 for a stranger."""
    line.settimeout(min(timeout_s, 2.0))
    text = b""
    with suppress(OSError):
        while len(text) < _GREETING_BYTES and (more := line.recv(_GREETING_BYTES - len(text))):
            text += more
    if len(text) < _GREETING_BYTES or not secrets.compare_digest(text[:_TOKEN_BYTES], token.encode()):
        return -1
    return int(text[_TOKEN_BYTES:])
