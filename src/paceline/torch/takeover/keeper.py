"""The keeper of the ledgers: what it makes of the ranks' messages, and the thread that carries them.

The driver of `core/help/takeover.py` in PyTorch: every rank's ledger is open to all from the start, and a rank
is sent from one to the next by progress alone. A request has an `id`, and so has its answer. A claim is answered when
there is something for the rank, or when the iteration is frozen; a claim `ahead` is answered at once. A rank whose
claim became worthless is told so unasked. `Keeper` does no I/O: messages and the time go in, messages come out.

**Whole.** Where the ranks were alike in the iteration before, and nothing was taken over, a rank computes all of its
own micro-batches without a question, and has no ledger; it tells when it is done. Where somebody has waited for such a
rank for half a micro-batch, it is *recalled*: what it has not begun is free from then on, and claimed as ever. So help
costs two messages a rank where nobody needs it.

`KeeperServer` carries them over TCP and keeps the time. Lines of JSON; the first of a connection has the token that the
ranks were given over their process group (`listener`). Every second everybody hears that the keeper is alive. A
connection that ends is a rank that is gone.
"""

import asyncio
import contextlib
import json
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from paceline.core.help.ledger import Claim, Ledgers
from paceline.core.help.takeover import Fenced, Grant, Paces, TakeoverPolicy, Wait
from paceline.torch.takeover.listener import Hello, TokenListener

REASONS_MAX = 1000
READ_BYTES = 1 << 16
LINE_MAX = 1 << 24
"""Bytes of a message: the indices of a rank's micro-batches are in one."""
TICK_S = 0.02
ALIVE_S = 1.0
START_S = 30.0
ALIKE = 1.25
"""Ranks are alike if the slowest takes no more than so many times as long for a micro-batch as the quickest."""
RECALL_AFTER = 0.5
"""Of a micro-batch: for so long somebody waits before those that compute without a ledger are recalled."""


class Outgoing(NamedTuple):
    """A message for a rank."""

    rank: int
    message: dict[str, Any]


@dataclass
class _Peer:
    asks: tuple[int, int] | None = None
    """The step and the id of the claim that waits for an answer."""
    in_step: bool = False
    """It has begun an iteration and does not know yet how that ended."""


class Iteration:
    """Begun by every rank; claims and finishes in any order; then one freeze for all."""

    def __init__(self, ranks: int, lease_ns: int, paces: Paces, now_ns: int) -> None:
        self.ranks, self.began_ns = ranks, now_ns
        self.ledgers = Ledgers(lease_ns)
        self.policy = TakeoverPolicy(self.ledgers, paces)
        self.indices: dict[int, list[Any]] = {}
        self.reasons: list[dict[str, Any]] = []
        self.thrown_away = 0
        self.is_frozen = False
        self.result: dict[str, Any] | None = None
        self._holders: dict[tuple[int, int], tuple[int, int]] = {}
        """Rank and micro-batch of every claim (owner, number) that was given and not finished."""
        self._ahead: dict[int, Claim] = {}
        self._waits: set[int] = set()
        self._whole: dict[int, int] = {}
        """Ranks that compute their own without a ledger, and when each was recalled; 0: it was not."""
        self._waited_since_ns = 0

    def begin(self, rank: int, micro_batches: list[Any], now_ns: int, whole: bool = False) -> None:
        """The rank's micro-batches may be claimed from now on; `whole`: once it is done or was recalled."""
        self.indices[rank] = micro_batches
        if whole:
            self._whole[rank] = 0
        else:
            self.ledgers.create(rank, len(micro_batches), now_ns)

    def end_whole(self, rank: int, took_ns: list[int], working_ns: int | None, now_ns: int) -> None:
        """The rank has computed so many of its own; `working_ns`: for how long it is at work on the next one.

        Too late, where it was recalled a lease ago: others compute these.
        """
        if self._whole.pop(rank, None) is None:
            return
        self.ledgers.create(rank, len(self.indices[rank]), now_ns, len(took_ns), working_ns is not None)
        self.ledgers.open[rank].keep = 0  # it takes part in the sum, whatever it has computed
        for each in took_ns:
            self.policy.paces.note(rank, each)
        claim = self.ledgers.first_claim(rank)
        if working_ns is not None and claim is not None:
            self._holders[rank, claim[2]] = rank, claim[1]
            self.policy.start(claim, now_ns - working_ns)

    def recall(self, now_ns: int) -> list[int]:
        """Somebody waits: ranks without a ledger that are recalled now. One that does not answer loses what it did."""
        if not self._whole:
            return []
        self._waited_since_ns = self._waited_since_ns or now_ns
        found = []
        for rank, recalled_ns in list(self._whole.items()):
            if recalled_ns == 0:
                if now_ns - self._waited_since_ns >= RECALL_AFTER * self.policy.paces.of(rank):
                    self._whole[rank] = now_ns
                    found.append(rank)
            elif now_ns - recalled_ns >= self.ledgers.lease_ns:
                self._note(rank, rank, None, f"worker {rank} was recalled, and says nothing")
                self.end_whole(rank, [], None, now_ns)
        return found

    def claim(self, rank: int, now_ns: int, ahead: bool = False) -> Grant | None:
        """The micro-batch that this rank computes next, or None; `ahead`: it is still at work on another one."""
        ready_ns = now_ns + round(self.policy.paces.of(rank)) if ahead else None
        # Everybody asks until the iteration is over.
        coming = dict.fromkeys(self.ledgers.open.keys() - self.ledgers.gone - {rank}, 0.0)
        got = self.policy.claim(rank, now_ns, ready_ns=ready_ns, coming=coming, may_race=not ahead)
        if isinstance(got, Wait):
            if got.reason and not ahead and rank not in self._waits:
                self._waits.add(rank)
                self._note(rank, rank, None, got.reason)
            return None
        self._holders[got.owner, got.number] = rank, got.m
        self._waits.discard(rank)
        if ahead:
            self._ahead[rank] = got.claim
        if got.reason:
            self._note(rank, got.owner, got.m, got.reason)
        return got

    def finish(self, rank: int, claim: Claim, took_ns: int, now_ns: int) -> tuple[bool, list[Fenced]]:
        """Whether the gradient counts, and the claims that this makes worthless."""
        owner, m, number = claim
        if self._holders.pop((owner, number), None) != (rank, m):
            return False, []
        counts, fenced = self.policy.finish(rank, claim, took_ns)
        if not counts:
            self.thrown_away += 1
        if following := self._ahead.pop(rank, None):
            self.policy.start(following, now_ns)
        return counts, fenced

    def renew(self, claim: Claim, now_ns: int) -> None:
        owner, m, number = claim
        if self._holders.get((owner, number), (-1, -1))[1] == m:
            self.ledgers.renew(claim, now_ns)

    def leave(self, rank: int) -> None:
        """A rank is gone: what it held or had computed is for the others."""
        if self.is_frozen or rank in self.ledgers.gone:
            return
        if rank in self._whole:
            self.end_whole(rank, [], None, 0)
        freed = self.ledgers.leave(rank)
        self._note(rank, rank, None, f"worker {rank} is gone; {freed} micro-batches came back from it")

    def freeze(self) -> bool:
        """Fix who contributes what, once every rank's micro-batches are computed."""
        if not self.is_frozen:
            self.is_frozen = len(self.ledgers.open) == self.ranks and self.ledgers.freeze()
        return self.is_frozen

    def shares(self) -> list[list[int]]:
        """After the freeze: `shares[owner][m]` is the rank whose gradient of it counts."""
        assert self.is_frozen
        return [self.ledgers.workers_of(owner) for owner in sorted(self.ledgers.open)]

    def _note(self, rank: int, owner: int, m: int | None, reason: str) -> None:
        if len(self.reasons) < REASONS_MAX:
            self.reasons.append({"rank": rank, "owner": owner, "micro_batch": m, "reason": reason})


@dataclass
class Keeper:
    """All iterations of a group of `ranks`."""

    ranks: int
    lease_ns: int
    paces: Paces = field(default_factory=Paces)
    _peers: dict[int, _Peer] = field(default_factory=dict)
    _gone: set[int] = field(default_factory=set)
    _iterations: dict[int, Iteration] = field(default_factory=dict)

    def join(self, rank: int) -> bool:
        """A rank has come; False if it is there already."""
        if rank in self._peers:
            return False
        self._peers[rank] = _Peer()
        return True

    def lose(self, rank: int, now_ns: int) -> list[Outgoing]:
        """A rank is gone: its claims come back."""
        del self._peers[rank]
        self._gone.add(rank)
        for iteration in self._iterations.values():
            iteration.leave(rank)
        return self.answer_waiting(now_ns)

    def owes_an_answer(self) -> bool:
        """Is there a rank that does not know yet how its iteration ended?"""
        return any(peer.in_step for peer in self._peers.values())

    def handle(self, rank: int, message: dict[str, Any], now_ns: int) -> list[Outgoing]:
        """One message of a rank, and whatever can be answered after it."""
        number, kind = int(message["step"]), message["kind"]
        out: list[Outgoing] = []
        if kind == "begin":
            self._peers[rank].in_step = True
            iteration = self._iteration(number, now_ns)
            iteration.begin(rank, message["micro_batches"], now_ns, bool(message.get("whole")))
        elif number in self._iterations:
            # Otherwise of an iteration that is over for everybody.
            out = self._handle_in(self._iterations[number], rank, message, now_ns)
        return out + self.answer_waiting(now_ns)

    def _handle_in(
        self, iteration: Iteration, rank: int, message: dict[str, Any], now_ns: int
    ) -> list[Outgoing]:
        number, kind, peer = int(message["step"]), message["kind"], self._peers[rank]
        out: list[Outgoing] = []
        if kind == "claim" and message["ahead"]:
            grant = None if iteration.is_frozen else iteration.claim(rank, now_ns, ahead=True)
            out.append(Outgoing(rank, {"id": message["id"], **_as_message(iteration, rank, grant)}))
        elif kind == "claim":
            peer.asks = (number, int(message["id"]))
        elif kind == "finish":
            claim = _as_claim(message["claim"])
            kept, fenced = iteration.finish(rank, claim, message["took_ns"], now_ns)
            out.append(Outgoing(rank, {"id": message["id"], "kept": kept}))
            for loser, lost in fenced:
                if loser in self._peers:
                    out.append(Outgoing(loser, {"kind": "fenced", "claim": [number, claim[0], lost]}))
        elif kind == "whole":
            iteration.end_whole(rank, message["took_ns"], message["working_ns"], now_ns)
        elif kind == "renew":
            for claim in message["claims"]:
                iteration.renew(_as_claim(claim), now_ns)
        elif kind == "abandon":
            peer.in_step = False
            iteration.leave(rank)
        return out

    def answer_waiting(self, now_ns: int) -> list[Outgoing]:
        """Give the waiting ranks what there is for them, the quickest first; freeze when all is computed."""
        out = []
        waiting = [(peer.asks[0], rank) for rank, peer in self._peers.items() if peer.asks]
        for number, rank in sorted(waiting, key=lambda item: self.paces.of(item[1])):
            iteration, peer = self._iterations[number], self._peers[rank]
            lost = sorted(self._gone.difference(iteration.ledgers.open))
            if lost:
                text = f"rank {lost[0]} is gone, and had not given its micro-batches of this iteration"
                message: dict[str, Any] = {"error": text}
            elif iteration.freeze():
                message = {"frozen": self._result(iteration, now_ns), "whole": self._alike(iteration)}
            elif grant := iteration.claim(rank, now_ns):
                message = _as_message(iteration, rank, grant)
            else:
                recalled = [peer for peer in iteration.recall(now_ns) if peer in self._peers]
                out += [Outgoing(other, {"kind": "recall", "step": number}) for other in recalled]
                continue
            assert peer.asks is not None
            out.append(Outgoing(rank, {"id": peer.asks[1], **message}))
            peer.asks, peer.in_step = None, "claim" in message
        return out

    def _iteration(self, number: int, now_ns: int) -> Iteration:
        if number not in self._iterations:
            self._iterations[number] = Iteration(self.ranks, self.lease_ns, self.paces, now_ns)
            # The one before is kept for a rank that asks late.
            self._iterations.pop(number - 2, None)
        return self._iterations[number]

    def _alike(self, iteration: Iteration) -> bool:
        """Whether all may compute their own without a ledger next time: nobody was slow, nobody was helped."""
        if iteration.ledgers.gone or any(iteration.ledgers.given(owner) for owner in iteration.ledgers.open):
            return False
        paces = [self.paces.of(rank) for rank in range(self.ranks)]
        return max(paces) <= ALIKE * min(paces)

    def _result(self, iteration: Iteration, now_ns: int) -> dict[str, Any]:
        if iteration.result is None:
            iteration.result = {
                "shares": iteration.shares(),
                "reasons": iteration.reasons,
                "gone": sorted(iteration.ledgers.gone),
                "thrown_away": iteration.thrown_away,
                "paces_s": [self.paces.of(rank) / 1e9 for rank in range(self.ranks)],
                "seconds": (now_ns - iteration.began_ns) / 1e9,
            }
        return iteration.result


def _as_claim(numbers: list[int]) -> Claim:
    owner, m, number = numbers
    return int(owner), int(m), int(number)


def _as_message(iteration: Iteration, rank: int, grant: Grant | None) -> dict[str, Any]:
    """A claim that was given; a rank that is not the owner also gets the indices of the samples."""
    if grant is None:
        return {"later": True}
    indices = None if grant.owner == rank else iteration.indices[grant.owner][grant.m]
    return {"claim": list(grant.claim), "indices": indices, "reason": grant.reason}


class KeeperServer:
    """Serves until `close`; `port` is where."""

    def __init__(self, host: str, token: str, ranks: int, lease_s: float) -> None:
        self.port = 0
        self._host, self._token, self._lease_s = host, token, lease_s
        self._keeper = Keeper(ranks, int(lease_s * 1e9))
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
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
        listener = TokenListener(self._host, self._token, LINE_MAX, self._talk)
        self.port = listener.port
        self._ready.set()
        told = time.monotonic()
        until = float("inf")
        while time.monotonic() < until:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), TICK_S)
            self._send(self._keeper.answer_waiting(time.monotonic_ns()))
            if time.monotonic() - told > ALIVE_S:
                told = time.monotonic()
                self._send([Outgoing(rank, {"kind": "alive"}) for rank in self._writers])
            if self._closing.is_set():
                # A rank that still computes must learn how its iteration ended; no longer than a lease.
                await asyncio.sleep(TICK_S)
                owed = self._keeper.owes_an_answer()
                until = min(until, time.monotonic() + self._lease_s) if owed else 0.0
        for writer in self._writers.values():
            writer.close()
        await listener.close(5.0)

    async def _talk(self, hello: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rank = -1
        try:
            if not self._keeper.join(int(hello["rank"])):
                return
            rank = int(hello["rank"])
            self._writers[rank] = writer
            rest = b""
            while data := await reader.read(READ_BYTES):
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > LINE_MAX:
                    raise ValueError("a message that does not end")
                now_ns = time.monotonic_ns()
                self._send(
                    [out for line in lines for out in self._keeper.handle(rank, json.loads(line), now_ns)]
                )
        except (TimeoutError, ValueError, KeyError, TypeError, OSError):
            pass
        finally:
            writer.close()
            if rank >= 0:
                del self._writers[rank]
                self._send(self._keeper.lose(rank, time.monotonic_ns()))

    def _send(self, messages: list[Outgoing]) -> None:
        """In one write a rank: each wakes it."""
        lines: dict[int, bytes] = {}
        for rank, message in messages:
            lines[rank] = lines.get(rank, b"") + json.dumps(message).encode() + b"\n"
        for rank, data in lines.items():
            if rank in self._writers:
                self._writers[rank].write(data)
