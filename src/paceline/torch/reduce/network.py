"""Several workers: each rank a worker, or the ranks of a host one worker together.

`DirectReducer`: this rank is a worker; its tensors go to the exchange as they are.

`TwoLevelReducer`: the ranks of this host first reduce to the first of them (*up*), that one exchanges the sum
with the other hosts, and hands the result to all (*down*). A tensor goes in segments, so that the three
overlap. Sums travel in float32 also for 16-bit tensors (an integer of the wire has 32 bits anyway) and are
rounded once, at the end.

Agents compare what workers bring, but not of integers, and see of a tensor in segments neither its size nor its
operation. There a *signature* goes ahead: one integer made of size, format and operation, whose sum tells whether all
have the same."""

import threading
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from torch.distributed import DistBackendError

from paceline.live.hostmem.group import HostGroup, HostReduceError, RankLeftError, TensorMismatchError
from paceline.torch.failover.exchange import Exchange
from paceline.torch.failover.heartbeat import PeerLostError, last_word, tell_everyone
from paceline.torch.journal import Journal
from paceline.torch.reduce.reduction import DRAIN_S, Reduction
from paceline.torch.rendezvous import Keys
from paceline.torch.serial_thread import Line

SEGMENT = 1 << 20
"""Elements of a segment."""


class DirectReducer:
    """Every rank is a worker."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def submit(self, reduction: Reduction) -> None:
        r = reduction
        if r.kind != "int32":
            self._exchange.submit(r.array, r.kind, r.op, r.priority, r.timeout_s, r.work.end)
            return
        both = _Both(r.work.end)
        send_signature(r, self._exchange, both.one_ended)
        self._exchange.submit(r.array, r.kind, r.op, r.priority, r.timeout_s, both.one_ended)

    def try_now(self, _reduction: Reduction) -> bool:
        return False

    def status(self) -> dict[str, Any]:
        return self._exchange.status()

    def close(self, drain_s: float = DRAIN_S) -> None:
        self._exchange.drain(drain_s)
        self._exchange.close(at_once=drain_s <= 0)


class TwoLevelReducer:
    """The ranks of a host are one worker; `exchange` is there on the first of them only."""

    def __init__(
        self,
        host: HostGroup,
        exchange: Exchange | None,
        ranks: int,
        workers: int,
        keys: Keys,
        journal: Journal,
    ) -> None:
        self._host, self._exchange, self._ranks, self._workers = host, exchange, ranks, workers
        self._keys, self._journal = keys.part("peers/"), journal
        self._up, self._down = Line("paceline-up"), Line("paceline-down")

    def submit(self, reduction: Reduction) -> None:
        size = reduction.array.shape[0]
        for begin in range(0, size, SEGMENT):
            end = min(begin + SEGMENT, size)
            segment = _Segment(reduction, begin, end)
            self._up.put(partial(self._go_up, segment))

    def try_now(self, _reduction: Reduction) -> bool:
        return False

    def _go_up(self, segment: "_Segment") -> None:
        r = segment.reduction
        if r.work.is_completed():  # an earlier segment failed
            return
        dtype = np.int32 if r.kind == "int32" else np.float32
        try:
            segment.total = np.empty(segment.values.shape[0] if self._exchange else 0, dtype)
            whole = (r.array.shape[0], r.divisor(self._ranks))
            self._host.reduce_to_first(segment.values, r.kind, segment.total, r.timeout_s, whole)
        except Exception as error:
            self._fail(segment, error)
            return
        if self._exchange is not None:
            if segment.is_first:
                send_signature(r, self._exchange, segment.exchanged)
            kind = "int32" if r.kind == "int32" else "float32"
            self._exchange.submit(segment.total, kind, "sum", r.priority, r.timeout_s, segment.exchanged)
        self._down.put(partial(self._go_down, segment))

    def _go_down(self, segment: "_Segment") -> None:
        r = segment.reduction
        if self._exchange is not None:
            error = segment.wait()
            if error is not None:
                tell_everyone(self._keys, str(error))
                self._host.leave()
                r.work.end(error)
                return
        try:
            self._host.give(segment.total, r.kind, segment.values, r.divisor(self._ranks), r.timeout_s)
        except Exception as error:
            self._fail(segment, error)
            return
        if segment.is_last:
            self._journal.count("reductions_host")
            r.work.end()

    def _fail(self, segment: "_Segment", error: Exception) -> None:
        """A rank of this host is gone, or its first rank was told that another host's is; or this one cannot go on."""
        reason = str(error) or repr(error)
        self._host.leave()
        if isinstance(error, RankLeftError):
            reason = last_word(self._keys, 2.0) or reason
        tell_everyone(self._keys, reason)
        gone = isinstance(error, HostReduceError) and not isinstance(error, TensorMismatchError)
        lost = PeerLostError(reason) if gone else DistBackendError(reason)
        if self._exchange is not None:
            self._exchange.end(lost)
        elif not self._journal.counters["failed"]:
            self._journal.change("failed", reason, bad=True)
        segment.reduction.work.end(lost)

    def status(self) -> dict[str, Any]:
        if self._exchange is not None:
            return {**self._exchange.status(), "host_ranks": self._host.ranks}
        return {"path": "first rank of the host", "workers": self._workers, "host_ranks": self._host.ranks}

    def close(self, drain_s: float = DRAIN_S) -> None:
        self._up.drain(drain_s)
        self._down.drain(drain_s)
        if self._exchange is not None:
            self._exchange.close(at_once=drain_s <= 0)
        self._host.close()
        self._up.close()
        self._down.close()


class _Segment:
    """A part of a tensor on its way up, across and down; ahead of the first part goes the signature."""

    def __init__(self, reduction: Reduction, begin: int, end: int) -> None:
        self.reduction = reduction
        self.is_first, self.is_last = begin == 0, end == reduction.array.shape[0]
        self.values = reduction.array[begin:end]
        self.total: Any = None
        self._event = threading.Event()
        self._error: Exception | None = None
        self.exchanged: Callable[[Exception | None], None] = self._over
        if self.is_first:
            self.exchanged = _Both(self._over).one_ended

    def _over(self, error: Exception | None) -> None:
        self._error = error
        self._event.set()

    def wait(self) -> Exception | None:
        """Until the other hosts' part is in; the exchange keeps the time."""
        self._event.wait()
        return self._error


class _Both:
    """Tells when two exchanges have ended, with the first error."""

    def __init__(self, tell: Callable[[Exception | None], None]) -> None:
        self._tell = tell
        self._ended: list[Exception | None] = []
        self._lock = threading.Lock()

    def one_ended(self, error: Exception | None) -> None:
        with self._lock:
            self._ended.append(error)
            if len(self._ended) < 2:
                return
        self._tell(self._ended[0] or self._ended[1])


def send_signature(
    reduction: Reduction, exchange: Exchange, tell: Callable[[Exception | None], None]
) -> None:
    """Compare what all workers must have in common; a difference ends the exchange."""
    r = reduction
    own = zlib.crc32(f"{r.array.shape[0]} {r.kind} {r.op}".encode()) % 1_000_003
    total = np.array([own], np.int32)

    def exchanged(error: Exception | None) -> None:
        if error is None and int(total[0]) != own * exchange.workers:
            what = f"rank {exchange.rank} has {r.array.shape[0]} {r.kind} with {r.op}, another one has not"
            error = DistBackendError(f"the workers reduce different tensors: {what}")
            exchange.end(error)
        tell(error)

    exchange.submit(total, "int32", "sum", r.priority, r.timeout_s, exchanged)
