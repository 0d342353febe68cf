"""The keeper's thread: carries messages between the ranks and the keeper over TCP, and keeps its time.

Lines of JSON; the first of a connection carries the token that the ranks were given over their process group.
Every second everybody hears that the keeper is alive. A connection that ends is a rank that is gone.

The ledger's functions are compiled (the first time on a machine, seconds) while the ranks already connect: they
meet by collectives of their group, which have a time-out that is not ours.
"""

import asyncio
import contextlib
import hmac
import json
import logging
import threading
import time
from typing import Any

from paceline.torch.takeover.keeper import Keeper, Outgoing, warm_up

LINE_MAX = 1 << 24
TICK_S = 0.02
ALIVE_S = 1.0
START_S = 30.0


class KeeperServer:
    """Serves until `close`; `port` is where."""

    def __init__(self, host: str, token: str, ranks: int, lease_s: float) -> None:
        self.port = 0
        self._host, self._token, self._lease_s = host, token, lease_s
        self._keeper = Keeper(ranks, int(lease_s * 1e9))
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._talks: set[asyncio.Task[Any]] = set()
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._warm: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="paceline-takeover-keeper", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_S) or self._error is not None:
            raise RuntimeError(f"the takeover keeper did not start: {self._error or 'no answer'}")

    def close(self) -> None:
        """Ends once every connected rank knows how its iteration ended, or a lease later."""
        if self._loop is not None and self._closing is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(timeout=self._lease_s + 10.0)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            # The ranks see their connections end; this says why.
            self._error = error
            logging.getLogger("paceline.takeover").error("the takeover keeper has ended: %r", error)
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        self._warm = asyncio.create_task(asyncio.to_thread(warm_up))
        server = await asyncio.start_server(self._talk, self._host, 0, limit=LINE_MAX)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        told = time.monotonic()
        until = float("inf")
        while time.monotonic() < until:
            if self._warm.done():
                self._warm.result()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), TICK_S)
            self._send(self._keeper.answer_waiting(time.monotonic_ns()))
            if time.monotonic() - told > ALIVE_S:
                told = time.monotonic()
                self._send([Outgoing(rank, {"kind": "alive"}) for rank in self._writers])
            if self._closing.is_set():
                # Whoever computes still must learn how its iteration ended; no longer than a lease.
                await asyncio.sleep(TICK_S)
                owed = self._keeper.owes_an_answer()
                until = min(until, time.monotonic() + self._lease_s) if owed else 0.0
        server.close()
        for writer in self._writers.values():
            writer.close()
        if self._talks:
            await asyncio.wait(self._talks, timeout=5.0)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rank = -1
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        try:
            hello = json.loads(await asyncio.wait_for(reader.readline(), 10.0))
            if not hmac.compare_digest(str(hello["token"]), self._token):
                return
            if not self._keeper.join(int(hello["rank"])):
                return
            rank = int(hello["rank"])
            self._writers[rank] = writer
            assert self._warm is not None
            await asyncio.shield(self._warm)
            while line := await reader.readline():
                self._send(self._keeper.handle(rank, json.loads(line), time.monotonic_ns()))
        except (TimeoutError, ValueError, KeyError, TypeError, OSError):
            pass
        finally:
            self._talks.discard(task)
            writer.close()
            if rank >= 0:
                del self._writers[rank]
                self._send(self._keeper.lose(rank, time.monotonic_ns()))

    def _send(self, messages: list[Outgoing]) -> None:
        for rank, message in messages:
            if rank in self._writers:
                self._writers[rank].write(json.dumps(message).encode() + b"\n")
