"""Limits of our HTTP servers for connections that ask for nothing: half-open ones keep nobody else out.

Of connections without a request the oldest is closed when there are too many, and each after a few seconds. One
whose other side takes nothing of an answer for long is closed by the kernel.
"""

import socket
from typing import Any

IDLE_MAX = 256
"""Connections without a request."""
REQUEST_S = 5.0
"""A connection that has sent no whole request by then is closed, and a body that is not there refused."""
UNREAD_S = 30.0
"""So long an answer may lie there without a byte of it being taken."""


def bounded_protocol() -> Any:
    """Uvicorn's protocol, with limits for connections that ask for nothing."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    idle: dict[Any, None] = {}

    class BoundedProtocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.get_extra_info("socket").setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_S * 1e3)
            )
            self._deadline = self.loop.call_later(REQUEST_S, self._close_idle)
            idle[self] = None
            if len(idle) > IDLE_MAX:
                next(iter(idle))._close_idle()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._deadline.cancel()
                idle.pop(self, None)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            idle[self] = None

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._deadline.cancel()
            idle.pop(self, None)

        def _close_idle(self) -> None:
            idle.pop(self, None)
            self.transport.abort()

    return BoundedProtocol
