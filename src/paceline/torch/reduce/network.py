"""Groups of several workers: each rank a worker, or the ranks of a host one worker together.

`DirectReducer`: this rank is a worker; its tensors go to the exchange as they are.

`TwoLevelReducer`: the ranks of this host first reduce to the first of them (*up*), that one exchanges the sum
with the other hosts, and hands the result to all (*down*). A tensor goes in segments, so that the three
overlap. Sums are of float32 also for 16-bit tensors, and are rounded once, at the end.

16-bit tensors travel in the 16-bit form of the wire (`core/numbers/halves.py`), unless `PACELINE_WIRE` is 32; with 16
float32 does too, and what rounding takes from a worker's contribution is added to the next one of the same tensor
(`feedback`).

Agents compare what workers bring, but not of integers, and see of a tensor in segments neither its size nor its
operation. There a *signature* goes ahead: one integer made of size, format and operation, whose sum tells whether all
have the same."""

import os
import threading
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import DistBackendError

from paceline.core.numbers import residual
from paceline.errors import UserError
from paceline.live.hostmem.group import HostGroup, HostReduceError, HostTensorMismatchError, RankLeftError
from paceline.live.net.sockets import elements_for
from paceline.torch.failover.agent_path import AgentPath
from paceline.torch.failover.exchange import WorkerExchange
from paceline.torch.failover.gloo_replay import GlooCarrier
from paceline.torch.failover.heartbeat import Lifelines, PeerLostError, failure_notice, tell_everyone
from paceline.torch.failover.offer import drop_offer, make_offer, numbered_racks, routes, switches_of
from paceline.torch.feedback import FeedbackStore
from paceline.torch.journal import Journal
from paceline.torch.rendezvous import RankPlace, StorePrefix
from paceline.torch.serial_thread import SerialThread
from paceline.torch.settings import GroupRequest, Settings
from paceline.torch.work import DRAIN_S, Reducer, Reduction

SEGMENT = 1 << 20
"""Elements of a segment."""
MEET_S = 10.0
"""So long the workers wait for each other's connection; all have told their addresses before."""


def make_network_reducer(
    request: GroupRequest, keys: StorePrefix, place: RankPlace, host: HostGroup | None, journal: Journal
) -> Reducer:
    """`host` is there where several ranks of this host are one worker."""
    wire = agreed_wire(keys.part("wire/"), place.rank, place.ranks, request.settings.wire)
    if wire == 16 and place.local_rank == 0:
        residual.warm_up()
    exchange = make_exchange(request, keys, place, journal) if place.local_rank == 0 else None
    if host is None:
        assert exchange is not None
        return DirectReducer(exchange, wire)
    return TwoLevelReducer(host, exchange, place, keys, journal, wire)


def agreed_wire(keys: StorePrefix, rank: int, ranks: int, wire: int | None) -> int | None:
    """The bits of a number on the wire that every rank asks for, None where none does; unlike wishes are a mistake."""
    keys.set(str(rank), str(wire or ""))
    wishes = [keys.get(str(other)) for other in range(ranks)]
    other = next((other for other in range(ranks) if wishes[other] != wishes[0]), None)
    if other is not None:
        told = [
            f"{wish or 'unset'} on rank {number}" for number, wish in ((0, wishes[0]), (other, wishes[other]))
        ]
        raise UserError(f"must be the same on all ranks: it is {' and '.join(told)}", place="PACELINE_WIRE")
    return wire


def wire_of(kind: str, asked: int | None) -> int:
    """Bits of a number of this format on the wire: 16-bit formats use 16 unless 32 are asked for."""
    return asked or (16 if kind in ("bfloat16", "float16") else 32)


def make_exchange(
    request: GroupRequest, keys: StorePrefix, place: RankPlace, journal: Journal
) -> WorkerExchange:
    """The network side of the first rank of each worker."""
    settings, timeout_s = request.settings, request.timeout.total_seconds()
    worker, workers = place.worker, place.workers
    ways = routes(settings, os.environ.get("MASTER_ADDR", ""))
    addresses = [address for address, _ in ways]
    keys.set(f"mtu/{worker}", str(min(mtu for _, mtu in ways)))
    elements = elements_for(min(int(keys.get(f"mtu/{other}")) for other in range(workers)))
    check_switches(keys.part("switches/"), worker, place.first_ranks, settings)
    lifelines = Lifelines(keys.part("lifelines/"), worker, workers, addresses[0], min(timeout_s, MEET_S))
    carrier = GlooCarrier(PrefixStore("paceline-gloo/", request.store), worker, workers, elements, timeout_s)
    job = f"{settings.job}/{request.name}"

    keys.set(f"rack/{worker}", settings.rack)
    racks = numbered_racks([keys.get(f"rack/{other}") for other in range(workers)])

    def make_path(generation: int, attempt: int) -> AgentPath:
        part = keys.part(f"generation/{generation}/{attempt}/")
        return AgentPath(part, worker, workers, settings, addresses, timeout_s, job, racks)

    offer = partial(make_offer, settings, job, workers, elements, len(set(racks)))
    drop = partial(drop_offer, settings)
    return WorkerExchange(keys, place, carrier, make_path, offer, drop, journal, timeout_s, lifelines)


def check_switches(keys: StorePrefix, worker: int, first_ranks: Sequence[int], settings: Settings) -> None:
    """Where one worker names several switches, all name as many: they are told apart by their order."""
    keys.set(str(worker), str(len(switches_of(settings))))
    counts = [int(keys.get(str(other))) for other in range(len(first_ranks))]
    other = next((other for other, count in enumerate(counts) if count != counts[0]), None)
    if other is not None and max(counts) > 1:
        told = f"{counts[0]} on rank {first_ranks[0]} and {counts[other]} on rank {first_ranks[other]}"
        raise UserError(f"must name as many switches on all ranks: {told}", place="PACELINE_SWITCH")


class DirectReducer:
    """Every rank is a worker."""

    def __init__(self, exchange: WorkerExchange, wire: int | None = None) -> None:
        self._exchange, self._wire = exchange, wire
        self._feedbacks = FeedbackStore()

    def submit(self, reduction: Reduction) -> None:
        r = reduction
        if r.kind != "int32":
            wire = wire_of(r.kind, self._wire)
            feedback = self._feedbacks.of(r.memory) if r.memory is not None else None
            entry = self._exchange.submit(
                r.array, r.kind, r.op, r.priority, r.timeout_s, r.work.end, wire, feedback
            )
            if entry is not None:
                r.work.wait_by(partial(self._exchange.wait_here, entry))
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
        exchange: WorkerExchange | None,
        place: RankPlace,
        keys: StorePrefix,
        journal: Journal,
        wire: int | None = None,
    ) -> None:
        self._wire, self._feedbacks = wire, FeedbackStore()
        self._host, self._exchange, self._ranks, self._workers = host, exchange, place.ranks, place.workers
        self._keys, self._journal = keys.part("peers/"), journal
        self._up, self._down = SerialThread("paceline-up"), SerialThread("paceline-down")

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
            ended, wire = segment.exchanged, wire_of(r.kind, self._wire)
            feedback = self._feedbacks.of(r.memory.part(segment.begin)) if r.memory is not None else None
            self._exchange.submit(segment.total, kind, "sum", r.priority, r.timeout_s, ended, wire, feedback)
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
            reason = failure_notice(self._keys, 2.0) or reason
        tell_everyone(self._keys, reason)
        gone = isinstance(error, HostReduceError) and not isinstance(error, HostTensorMismatchError)
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
        self.reduction, self.begin = reduction, begin
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
    reduction: Reduction, exchange: WorkerExchange, tell: Callable[[Exception | None], None]
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
