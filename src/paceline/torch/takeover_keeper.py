"""The keeper: a thread of one rank that holds the ledgers and answers the others over TCP.

Lines of JSON; the first of a connection carries the token that the ranks were given over their process group.
A request has an `id`, and so has its answer. A claim is answered when there is something for the rank, or when
the iteration is frozen; a claim `ahead` is answered at once. Without being asked, the keeper tells a rank that
its claim is fenced, and everybody, every second, that it is alive. A connection that ends is a rank that is gone: its
claims come back.

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
from dataclasses import dataclass, field
from typing import Any

from paceline.torch.takeover_ledgers import Grant, Paces, Step, warm_up

LINE_MAX = 1 << 24
TICK_S = 0.02
ALIVE_S = 1.0
START_S = 30.0


@dataclass
class _Peer:
    writer: asyncio.StreamWriter
    asks: tuple[int, int] | None = None
    """The step and the id of the claim that waits for an answer."""
    in_step: bool = False
    """It has begun an iteration and does not know yet how that ended."""

    def send(self, **message: Any) -> None:
        self.writer.write(json.dumps(message).encode() + b"\n")

    def answer(self, **message: Any) -> None:
        """What the rank waits for."""
        assert self.asks is not None
        self.send(id=self.asks[1], **message)
        self.asks = None
        self.in_step = "claim" in message


@dataclass
class _Iteration:
    step: Step
    indices: dict[int, list[Any]] = field(default_factory=dict)
    began_ns: int = 0
    result: dict[str, Any] | None = None


class Keeper:
    """Serves until `close`; `port` is where."""

    def __init__(self, host: str, token: str, ranks: int, lease_s: float) -> None:
        self.port = 0
        self._host, self._token, self._ranks = host, token, ranks
        self._lease_ns = int(lease_s * 1e9)
        self._paces = Paces()
        self._peers: dict[int, _Peer] = {}
        self._talks: set[asyncio.Task[Any]] = set()
        self._gone: set[int] = set()
        self._iterations: dict[int, _Iteration] = {}
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._warm: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="paceline-takeover-keeper", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_S) or self._error is not None:
            raise RuntimeError(f"the takeover keeper did not start: {self._error or 'no answer'}")

    def close(self) -> None:
        """Ends once every connected rank knows how its iteration ended, or a lease later."""
        if self._loop is not None and self._over is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join(timeout=self._lease_ns / 1e9 + 10.0)

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
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
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
                await asyncio.wait_for(self._over.wait(), TICK_S)
            self._answer_all()
            if time.monotonic() - told > ALIVE_S:
                told = time.monotonic()
                for peer in self._peers.values():
                    peer.send(kind="alive")
            if self._over.is_set():
                # Whoever computes still must learn how its iteration ended; no longer than a lease.
                await asyncio.sleep(TICK_S)
                owed = any(peer.in_step for peer in self._peers.values())
                until = min(until, time.monotonic() + self._lease_ns / 1e9) if owed else 0.0
        server.close()
        for peer in self._peers.values():
            peer.writer.close()
        if self._talks:
            await asyncio.wait(self._talks, timeout=5.0)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rank = -1
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        try:
            hello = json.loads(await asyncio.wait_for(reader.readline(), 10.0))
            if not hmac.compare_digest(str(hello["token"]), self._token) or hello["rank"] in self._peers:
                return
            rank = int(hello["rank"])
            self._peers[rank] = _Peer(writer)
            assert self._warm is not None
            await asyncio.shield(self._warm)
            while line := await reader.readline():
                self._handle(rank, json.loads(line))
                self._answer_all()
        except (TimeoutError, ValueError, KeyError, TypeError, OSError):
            pass
        finally:
            self._talks.discard(task)
            writer.close()
            if rank >= 0:
                self._lose(rank)

    def _lose(self, rank: int) -> None:
        del self._peers[rank]
        self._gone.add(rank)
        for iteration in self._iterations.values():
            iteration.step.leave(rank)
        self._answer_all()

    def _handle(self, rank: int, message: dict[str, Any]) -> None:
        number, peer, now_ns = int(message["step"]), self._peers[rank], time.monotonic_ns()
        kind = message["kind"]
        if kind != "begin" and number not in self._iterations:
            # Of an iteration that is over for everybody.
            return
        iteration = self._iteration(number)
        step = iteration.step
        if kind == "begin":
            peer.in_step = True
            iteration.indices[rank] = message["micro_batches"]
            step.begin(rank, len(message["micro_batches"]))
        elif kind == "claim" and message["ahead"]:
            grant = None if step.frozen else step.claim(rank, now_ns, self._asking(number), ahead=True)
            peer.send(id=message["id"], **_as_message(iteration, rank, grant))
        elif kind == "claim":
            peer.asks = (number, int(message["id"]))
        elif kind == "finish":
            owner, m, claim = message["claim"]
            kept, losers = step.finish(rank, owner, m, claim, message["took_ns"])
            peer.send(id=message["id"], kept=kept)
            for loser, lost in losers:
                if loser in self._peers:
                    self._peers[loser].send(kind="fenced", claim=[number, owner, lost])
        elif kind == "renew":
            for owner, m, claim in message["claims"]:
                step.renew(owner, m, claim, now_ns)
        elif kind == "abandon":
            peer.in_step = False
            step.leave(rank)

    def _iteration(self, number: int) -> _Iteration:
        if number not in self._iterations:
            self._iterations[number] = _Iteration(Step(self._ranks, self._lease_ns, self._paces))
            self._iterations[number].began_ns = time.monotonic_ns()
            # The one before is kept for a rank that asks late.
            self._iterations.pop(number - 2, None)
        return self._iterations[number]

    def _asking(self, number: int) -> set[int]:
        return {rank for rank, peer in self._peers.items() if peer.asks and peer.asks[0] == number}

    def _answer_all(self) -> None:
        """Give the waiting ranks what there is for them, the quickest first; freeze when all is computed."""
        waiting = [(peer.asks[0], rank) for rank, peer in self._peers.items() if peer.asks]
        for number, rank in sorted(waiting, key=lambda item: self._paces.of(item[1])):
            iteration, peer = self._iterations[number], self._peers[rank]
            lost = sorted(self._gone.difference(iteration.step.ledgers))
            if lost:
                text = f"rank {lost[0]} is gone, and had not given its micro-batches of this iteration"
                peer.answer(error=text)
            elif iteration.step.freeze():
                peer.answer(frozen=self._result(iteration))
            else:
                grant = iteration.step.claim(rank, time.monotonic_ns(), self._asking(number))
                if grant is not None:
                    peer.answer(**_as_message(iteration, rank, grant))

    def _result(self, iteration: _Iteration) -> dict[str, Any]:
        if iteration.result is None:
            step = iteration.step
            iteration.result = {
                "shares": [step.shares()[owner] for owner in sorted(step.ledgers)],
                "reasons": step.reasons,
                "gone": sorted(step.gone),
                "thrown_away": step.thrown_away,
                "paces_s": [self._paces.of(rank) / 1e9 for rank in range(self._ranks)],
                "seconds": (time.monotonic_ns() - iteration.began_ns) / 1e9,
            }
        return iteration.result


def _as_message(iteration: _Iteration, rank: int, grant: Grant | None) -> dict[str, Any]:
    """A claim that was given; whoever is not the owner is told which samples it is about."""
    if grant is None:
        return {"later": True}
    indices = None if grant.owner == rank else iteration.indices[grant.owner][grant.m]
    return {"claim": list(grant[:3]), "indices": indices, "reason": grant.reason}
