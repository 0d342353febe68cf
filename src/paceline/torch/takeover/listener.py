"""A listener that lets in who knows a token, and keeps next to nothing of anybody else.

The first line of a connection is JSON with the token. Before it is read and found right, a connection has no buffer:
bytes are taken from the kernel one by one, at most `HELLO_MAX`, within `HELLO_S`. At most `STRANGERS_MAX` connections
are at that point; one more, and the oldest of them is closed, since a rank says its line at once.
"""

import asyncio
import contextlib
import hmac
import json
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

HELLO_MAX = 512
"""Bytes of the first line."""
HELLO_S = 5.0
STRANGERS_MAX = 32

Hello = dict[str, Any]
Talk = Callable[[Hello, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class TokenListener:
    """`talk` gets the first line and the streams of a connection with the token, and closes them."""

    def __init__(self, host: str, token: str, line_max: int, talk: Talk) -> None:
        self._token, self._line_max, self._talk = token, line_max, talk
        self._socket = _listen(host)
        self.port = int(self._socket.getsockname()[1])
        self._strangers: dict[asyncio.Task[Hello | None], None] = {}  # in the order in which they came
        self._talks: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept())

    async def close(self, timeout_s: float) -> None:
        """Let nobody in any more, and wait for those who are in; their streams are to be closed before."""
        self._accepting.cancel()
        for stranger in list(self._strangers):
            stranger.cancel()
        await asyncio.wait([self._accepting, *self._strangers, *self._talks], timeout=timeout_s)
        self._socket.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._socket)
            except OSError:  # it has gone again, or this process has no file left for it
                await asyncio.sleep(0.05)
                continue
            if len(self._strangers) >= STRANGERS_MAX:
                # Gone at once: of many that are accepted in a row each makes another one leave.
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                oldest.cancel()
            task = asyncio.create_task(self._meet(connection))
            self._strangers[task] = None
            task.add_done_callback(partial(self._met, connection))

    async def _meet(self, connection: socket.socket) -> Hello | None:
        """The first line, if it has the token."""
        try:
            hello = await asyncio.wait_for(_first_line(connection), HELLO_S)
            known = hmac.compare_digest(str(hello["token"]).encode(), self._token.encode())
        except (TimeoutError, ValueError, KeyError, TypeError, OSError):
            return None
        return hello if known else None

    def _met(self, connection: socket.socket, task: "asyncio.Task[Hello | None]") -> None:
        """Also of a task that was cancelled, perhaps before it began."""
        self._strangers.pop(task, None)
        hello = None if task.cancelled() else task.result()
        if hello is None:
            connection.close()
            return
        talk = asyncio.create_task(self._let_in(hello, connection))
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)

    async def _let_in(self, hello: Hello, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=self._line_max)
        await self._talk(hello, reader, writer)


def _listen(host: str) -> socket.socket:
    """At a free port of this address, or of all that this machine has."""
    everywhere = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if everywhere else socket.AF_INET
    made = socket.create_server((host, 0), family=family, backlog=128, dualstack_ipv6=everywhere)
    made.setblocking(False)
    return made


async def _first_line(connection: socket.socket) -> Hello:
    """What is behind it stays in the kernel. `ValueError`: it is no JSON, or too long."""
    connection.setblocking(False)
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    loop = asyncio.get_running_loop()
    line = bytearray()
    while len(line) < HELLO_MAX:
        byte = await loop.sock_recv(connection, 1)
        if byte in (b"", b"\n"):
            hello = json.loads(line)
            if isinstance(hello, dict):
                return hello
            break
        line += byte
    raise ValueError("no first line of a rank")
