"""Who is alive, and whether anything moves: connections that break, heartbeats in the job's Store, a watch over agents.

**Lifelines.** A connection between every two workers that carries nothing: when it breaks, the other one is gone. The
kernel keeps it, not the process. A worker that is starved or stopped keeps its connections; one that ends, however
that comes about, loses them at once; a host that is gone stops answering the kernel's probes (`PROBES`). So a death is
known within seconds, and load gives no false alarm. A worker that leaves in order says so first.

**Heartbeats.** They come from a thread of their own, and also say how far each worker is. They are all there is where a
connection could not be made.

Both are looked at only when something takes long. A worker whose connection has broken, or whose heartbeat has not
moved for `DEAD_S` while somebody waits for it, is declared dead: everyone gets a failure notice with its rank.
"""

import json
import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from torch.distributed import DistBackendError

from paceline.live.agent.agent import Agent
from paceline.live.spread import SpreadAgent
from paceline.torch.failover.pending import PendingReduction
from paceline.torch.rendezvous import StorePrefix

PROBES = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3}
"""After 2 s without traffic the kernel asks every second, and gives up after the third question."""
BEAT_S = 1.0
DEAD_S = 20.0
SLOW_S = 1.5
"""A reduction that takes longer makes a worker look whether the others live."""
STALL_S = 10.0
"""Agents that bring nothing for this long, though every worker has submitted the reduction, have failed."""
_KEPT, _GOODBYE = b"+", b"."
_TOKEN_BYTES = 32
_GREETING_BYTES = _TOKEN_BYTES + 4
_NOTICE = "dead"
"""The key of the failure notice."""


class Lifelines:
    """One worker's connections to all others.

    No thread: what happened is in the sockets until somebody looks. A copy of the process (fork) gives its sockets
    back: it must not keep the connections of the one that ended.
    """

    def __init__(self, keys: StorePrefix, worker: int, workers: int, address: str, timeout_s: float) -> None:
        """Meet the others; a worker that is not there in time is left out."""
        self._lines: dict[int, socket.socket] = {}
        self._ended: set[int] = set()  # workers that are gone without a goodbye
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
        """Keep the connection of a worker, and tell it so: one that a single side keeps looks broken to that side."""
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
        """Close without a goodbye."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()


_MADE: "weakref.WeakSet[Lifelines]" = weakref.WeakSet()


def _drop_in_child() -> None:
    for lines in list(_MADE):
        lines.drop()


os.register_at_fork(after_in_child=_drop_in_child)


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


class PeerLostError(DistBackendError):
    """A rank of the group is gone; the text names it."""


class Peers:
    """One worker's view of the others."""

    def __init__(
        self,
        keys: StorePrefix,
        worker: int,
        first_ranks: tuple[int, ...],
        lifelines: Lifelines,
        submitted: Callable[[], int],
        lost: Callable[[PeerLostError], None],
    ) -> None:
        """`submitted()` is how far this worker is; `lost(error)` is called when somebody has found a rank dead."""
        self._keys, self._worker, self.first_ranks = keys, worker, first_ranks
        self._lifelines, self._submitted, self._lost = lifelines, submitted, lost
        self._seen: dict[int, tuple[str, float]] = {}  # the last heartbeat of each worker, and since when
        self.submitted: dict[int, int] = {}
        """How many reductions each worker had submitted at its last heartbeat that was looked at."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-beat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """Say that this worker lives, and how far it is; hear what others found."""
        count = 0
        while True:
            count += 1
            try:
                self._keys.set(f"beat/{self._worker}", json.dumps([count, self._submitted()]))
                if self._keys.ready(_NOTICE):
                    self._lost(PeerLostError(self._keys.read(_NOTICE)))
                    return
            except RuntimeError:
                pass  # the Store is gone, perhaps with its rank: the exchange finds out
            if self._stop.wait(BEAT_S):
                return

    def close(self) -> None:
        """Stop the heartbeat."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)
        self._lifelines.close()

    def look(self, now_s: float) -> None:
        """Look at all the others; `PeerLostError` if one is gone, or if somebody said so."""
        ended = self.ended()
        if ended is not None:  # before the Store is asked, which may have been in that process
            self.declare_dead(str(ended))
        if self._keys.ready(_NOTICE):
            raise PeerLostError(self._keys.read(_NOTICE))
        for worker, rank in enumerate(self.first_ranks):
            if worker == self._worker:
                continue
            text = self._keys.read(f"beat/{worker}") if self._keys.ready(f"beat/{worker}") else ""
            before, since_s = self._seen.get(worker, ("none", now_s))
            if text != before:
                since_s = now_s
            self._seen[worker] = (text, since_s)
            if text:
                self.submitted[worker] = int(json.loads(text)[1])
            if now_s - since_s > DEAD_S:
                self.declare_dead(f"rank {rank} is gone: no sign of life for {now_s - since_s:.0f} s")

    def ended(self) -> PeerLostError | None:
        """The error for a worker whose connection has broken, if there is one; the Store is not asked."""
        ended = self._lifelines.ended()
        if not ended:
            return None
        return PeerLostError(
            f"rank {self.first_ranks[min(ended)]} is gone: its process has ended, or its host"
        )

    def forget_looks(self) -> None:
        """Nothing was waited for: heartbeats seen long ago prove nothing."""
        self._seen.clear()

    def all_submitted(self, count: int) -> bool:
        """Whether, as far as was seen, every other worker has submitted so many reductions."""
        others = (w for w in range(len(self.first_ranks)) if w != self._worker)
        return all(self.submitted.get(worker, 0) >= count for worker in others)

    def declare_dead(self, reason: str) -> NoReturn:
        """Tell everyone that a rank is gone, and raise."""
        tell_everyone(self._keys, reason)
        # The Store may live in this process, and end with it: let the others hear first.
        time.sleep(1.5 * BEAT_S)
        raise PeerLostError(reason)


def tell_everyone(keys: StorePrefix, reason: str) -> None:
    """The group cannot go on; the first reason stays."""
    with suppress(RuntimeError):
        if not keys.ready(_NOTICE):
            keys.set(_NOTICE, reason)


def failure_notice(keys: StorePrefix, wait_s: float) -> str | None:
    """Why the group cannot go on, if somebody says so within `wait_s`."""
    end = time.monotonic() + wait_s
    while True:
        with suppress(RuntimeError):
            if keys.ready(_NOTICE):
                return keys.read(_NOTICE)
        if time.monotonic() > end:
            return None
        time.sleep(0.05)


class AgentWatch:
    """Watches over agents at work; the caller tells it what is under way, and when something came."""

    def __init__(self, worker: int, now_s: float) -> None:
        self._worker = worker
        self._moved_s = now_s  # when something came last
        self._results_seen = -1  # the agent's count at the last look

    def moved(self, now_s: float) -> None:
        """A reduction ended, or a path begins."""
        self._moved_s = now_s

    def look(
        self, entries: list[PendingReduction], peers: Peers, agent: Agent | SpreadAgent, now_s: float
    ) -> str:
        """Why the agents have failed, or nothing; a reduction that is late or a rank that is gone is raised."""
        if not entries or now_s - max(entries[0].begun_s, self._moved_s) < SLOW_S:
            peers.forget_looks()
            return ""
        peers.look(now_s)
        oldest = entries[0]
        if now_s - oldest.begun_s > oldest.timeout_s:
            raise DistBackendError(_late(oldest, self._worker, peers))
        if not peers.all_submitted(oldest.seq + 1) or self._agent_moved(agent):
            self._moved_s = max(self._moved_s, now_s - SLOW_S)
        elif now_s - self._moved_s > STALL_S:
            return f"nothing came through the agents for {STALL_S:g} s"
        return ""

    def _agent_moved(self, agent: Agent | SpreadAgent) -> bool:
        """Whether the agent got results since the last look."""
        results = int(agent.status()["counters"]["results"])
        moved, self._results_seen = results != self._results_seen, results
        return moved


def waits_long(entries: list[PendingReduction], now_s: float) -> bool:
    """Whether somebody has waited longer than a reduction should take."""
    return bool(entries) and now_s - entries[0].begun_s > SLOW_S


def _late(entry: PendingReduction, worker: int, peers: Peers) -> str:
    late = [
        str(rank)
        for other, rank in enumerate(peers.first_ranks)
        if other != worker and peers.submitted.get(other, 0) <= entry.seq
    ]
    who = f"rank {', '.join(late)} did not take part" if late else "all ranks took part"
    return f"all_reduce did not end within {entry.timeout_s:g} s: {who}"
