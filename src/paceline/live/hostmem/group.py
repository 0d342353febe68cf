"""Ranks of one host reduce among themselves in shared memory, before anything goes to the network.

The memory is an anonymous file (memfd) of the first rank; the others open it through /proc. It has no name,
so nothing is left behind however the ranks end. Two channels with their own barriers: *up* reduces to every
rank or to the first one, *down* hands the first rank's values to all; one thread may use one while another
uses the other. Every rank makes the same calls on a channel, in the same order, with tensors of one size and
format; ranks whose tensors differ are all told so before any of them has a number (`HostTensorMismatchError`).

A rank that ends or leaves while others wait for it gives them a `HostReduceError` with its number, within a
fraction of a second; one that does not come at all gives it when the time is over. A group is of no use after
an error.

Knows nothing of torch: arrays are NumPy's, and ranks meet through a `Rendezvous` (a key-value store).
"""

import functools
import mmap
import os
import select
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from paceline.live.hostmem import barrier as sync
from paceline.live.hostmem.kernels import KINDS
from paceline.live.hostmem.reduce import (
    STATE,
    Channel,
    give_16,
    give_same,
    meet,
    reduce_16,
    reduce_same,
    reduce_small,
)

Array = npt.NDArray[Any]

PIECE = 64 * 1024
"""Elements of a piece: two sets of four ranks' pieces are 2 MB, and stay in a server's shared cache."""
SMALL = 2048
"""Up to so many elements every rank adds everything itself: one barrier is cheaper than two."""
_SPINS = 4000
_UP, _DOWN = 0, 1
_BARRIER = -1
"""The form of a reduction that has no tensor."""
_NO_FLOATS = np.zeros(0, np.float32)


class Rendezvous(Protocol):
    """A store that all ranks of the group see."""

    def set(self, key: str, value: str) -> None:
        """Publish a value."""

    def get(self, key: str) -> str:
        """The value, once there is one; raises when the wait is over."""


class HostReduceError(RuntimeError):
    """A reduction between ranks of this host failed; `rank` is the one that is missing."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(reason)
        self.rank = rank


class RankLeftError(HostReduceError):
    """A rank of this host has left the group while others wait for it."""


class HostTensorMismatchError(HostReduceError):
    """The ranks of this host have come to one reduction with different tensors; the text says which."""


class HostMemoryError(RuntimeError):
    """These ranks cannot share memory; every one of them is told so, with the reason."""


def host_identity() -> str:
    """Equal for two processes exactly if they can share memory and a network address.

    Containers and network namespaces count as hosts of their own.
    """
    parts = []
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
    for kind in ("net", "pid"):
        with suppress(OSError):
            parts.append(f"{kind}:{Path('/proc/self/ns', kind).stat().st_ino}")
    return "/".join([os.uname().nodename, *parts])


class HostGroup:
    """One rank's part in the reductions of its host."""

    def __init__(
        self,
        rank: int,
        ranks: int,
        rendezvous: Rendezvous,
        names: Sequence[int] | None = None,
        piece: int = PIECE,
    ) -> None:
        """`rank` of `ranks` on this host; `names` are the numbers to use in errors (ranks of the job)."""
        self.rank, self.ranks, self.piece = rank, ranks, piece
        self.names = list(names) if names is not None else list(range(ranks))
        self._pidfds: list[int] = []
        self._locks = (threading.Lock(), threading.Lock())
        self._broken = ""
        memory, self.pids = self._meet(rendezvous)
        self._pidfds = [os.pidfd_open(pid) for pid in self.pids]
        self._lay_out(memory)

    # --- meeting -------------------------------------------------------------------------------------------

    def _size(self) -> tuple[int, int]:
        """Bytes of a channel's words, and of everything."""
        words = -(-sync.words_of(self.ranks) * 4 // mmap.PAGESIZE) * mmap.PAGESIZE
        return words, 2 * words + 4 * self.piece * (2 * self.ranks + 2 + 2)

    def _meet(self, rendezvous: Rendezvous) -> tuple[mmap.mmap, list[int]]:
        """Share the first rank's memory; everyone learns whether all have it."""
        memory, fd, trouble = None, -1, "" if sync.supported() else "this machine's futex call is not known"
        try:
            if self.rank == 0:
                if self.ranks > 1:
                    warm_up()  # compiled code is saved before the others ask for it: one compiles, not all
                fd = os.memfd_create("paceline", os.MFD_CLOEXEC)
                os.ftruncate(fd, self._size()[1])
                rendezvous.set("memory", f"/proc/{os.getpid()}/fd/{fd}")
            else:
                fd = os.open(rendezvous.get("memory"), os.O_RDWR | os.O_CLOEXEC)
            memory = mmap.mmap(fd, self._size()[1])
        except OSError as error:
            trouble = str(error)
            if self.rank == 0:
                rendezvous.set("memory", "/nonexistent")
        rendezvous.set(f"rank/{self.rank}", trouble or str(os.getpid()))
        answers = [rendezvous.get(f"rank/{rank}") for rank in range(self.ranks)]
        if fd >= 0:
            os.close(fd)
        for rank, answer in enumerate(answers):
            if not answer.isdigit():
                raise HostMemoryError(f"rank {self.names[rank]} cannot share memory: {answer}")
        assert memory is not None
        return memory, [int(answer) for answer in answers]

    def _lay_out(self, memory: mmap.mmap) -> None:
        words_bytes, _ = self._size()
        everything = np.frombuffer(memory, np.uint8)
        at = 2 * words_bytes
        shared_bytes, out_bytes = 2 * self.ranks * self.piece * 4, 2 * self.piece * 4
        self._shared = everything[at : at + shared_bytes]
        at += shared_bytes
        self._out = [everything[at + i * out_bytes : at + (i + 1) * out_bytes] for i in (_UP, _DOWN)]
        self._channels = [
            self._channel(everything[i * words_bytes : (i + 1) * words_bytes].view(np.int32))
            for i in (_UP, _DOWN)
        ]

    def _channel(self, words: npt.NDArray[np.int32]) -> Channel:
        fds = np.zeros(2 * self.ranks, np.int32)
        for rank, fd in enumerate(self._pidfds):
            fds[2 * rank : 2 * rank + 2] = (fd if rank != self.rank else -1), 1  # pollfd: fd, events = POLLIN
        times = np.zeros(4, np.int64)
        state = np.zeros(1, STATE).view(np.recarray)
        cores = len(os.sched_getaffinity(0))
        # Where ranks outnumber cores, looking takes the core from the one that is waited for.
        state["spins"] = _SPINS if self.ranks <= cores else 0
        state["rank"], state["ranks"] = self.rank, self.ranks
        state["words_address"] = words.ctypes.data
        state["fds_address"] = fds.ctypes.data
        state["times_address"] = times.ctypes.data
        return Channel(words, fds, times, state)

    # --- reducing ------------------------------------------------------------------------------------------

    def all_reduce(self, values: Array, kind: str, divisor: int = 1, timeout_s: float = 1800.0) -> None:
        """Sum over the ranks of this host, in place, divided by `divisor`; `kind` is the elements' format."""
        code, shared, out = KINDS[kind], *self._views(_UP, values)
        with self._locks[_UP]:
            channel = self._ready(_UP, timeout_s, values.shape[0], _form(code, divisor))
            if values.dtype == np.uint16:
                done = reduce_16(
                    channel, values, values, _NO_FLOATS, shared, out, self.piece, divisor, code, -1
                )
            elif values.shape[0] <= min(SMALL, self.piece):
                done = reduce_small(channel, values, values, shared, self.piece, divisor, code)
            else:
                done = reduce_same(channel, values, values, shared, out, self.piece, divisor, code, -1)
            self._check(_UP, done, timeout_s)

    def reduce_to_first(
        self,
        values: Array,
        kind: str,
        target: Array,
        timeout_s: float = 1800.0,
        whole: tuple[int, int] | None = None,
    ) -> None:
        """Sum over the ranks of this host into the first rank's `target`: float32 for 16-bit values.

        Of a tensor that goes in segments, `whole` says its size and its divisor, so that ranks with different ones
        are told.
        """
        code, shared, out = KINDS[kind], *self._views(_UP, values)
        size, divisor = whole if whole is not None else (values.shape[0], 1)
        with self._locks[_UP]:
            channel = self._ready(_UP, timeout_s, size, _form(code, divisor))
            if values.dtype == np.uint16:
                done = reduce_16(channel, values, values, target, shared, out, self.piece, 1, code, 0)
            else:
                done = reduce_same(channel, values, target, shared, out, self.piece, 1, code, 0)
            self._check(_UP, done, timeout_s)

    def give(
        self, values: Array, kind: str, target: Array, divisor: int = 1, timeout_s: float = 1800.0
    ) -> None:
        """The first rank's `values` (float32 for 16-bit kinds), divided and rounded, into every `target`."""
        code, (_, out) = KINDS[kind], self._views(_DOWN, target)
        with self._locks[_DOWN]:
            channel = self._ready(_DOWN, timeout_s, target.shape[0], _form(code, divisor))
            step = give_16 if target.dtype == np.uint16 else give_same
            done = step(channel, values, target, out, self.piece, divisor, code, 0)
            self._check(_DOWN, done, timeout_s)

    def barrier(self, timeout_s: float = 1800.0) -> None:
        """Wait for every rank of this host."""
        with self._locks[_UP]:
            self._check(_UP, meet(self._ready(_UP, timeout_s, 0, _BARRIER)), timeout_s)

    def _views(self, which: int, values: Array) -> tuple[Array, Array]:
        element = np.int32 if values.dtype == np.int32 else np.float32
        return self._shared.view(element), self._out[which].view(element)

    def _ready(self, which: int, timeout_s: float, size: int, form: int) -> Channel:
        if self._broken:
            raise HostReduceError(self.rank, self._broken)
        channel = self._channels[which]
        channel.state["timeout_ns"] = int(min(timeout_s, 1e9) * 1e9)
        channel.state["elements"], channel.state["form"] = size, form
        return channel

    def _check(self, which: int, code: int, timeout_s: float) -> None:
        if code == sync.OK:
            return
        channel = self._channels[which]
        if code == sync.DIFFERENT:
            self._broken = self._differences(channel)
            self.leave()
            raise HostTensorMismatchError(self.names[self.rank], self._broken)
        if code == sync.TIMEOUT:
            rank, left = int(sync.missing(channel.words, self.ranks, int(channel.state["turn"][0]))), False
            what = f"did not come to the reduction within {timeout_s:g} s"
        else:
            rank = code - sync.GONE
            left = bool(channel.words[sync.RANKS + rank * sync.LINE + sync.LEFT])
            what = "has left the group" if left else "has ended"
        if rank == self.rank and code != sync.TIMEOUT:
            raise HostReduceError(self.names[rank], self._broken or "the group is closed")
        self._broken = f"rank {self.names[rank]} (process {self.pids[rank]} on this host) {what}"
        self.leave()
        error = RankLeftError if left else HostReduceError
        raise error(self.names[rank], self._broken)

    def _differences(self, channel: Channel) -> str:
        """What each rank has brought; equal ranks are told together."""
        tensors: dict[str, list[str]] = {}
        for rank, name in enumerate(self.names):
            brought = sync.description(channel.words, rank, int(channel.state["turn"][0]))
            tensors.setdefault(_described(*brought), []).append(str(name))
        told = [
            f"rank{'s' if len(names) > 1 else ''} {', '.join(names)}: {tensor}"
            for tensor, names in tensors.items()
        ]
        return f"the ranks of this host reduce different tensors: {'; '.join(told)}"

    def dead(self) -> int | None:
        """The number of a rank of this host whose process has ended, if there is one."""
        for rank, fd in enumerate(self._pidfds):
            if rank != self.rank and _ended(fd):
                return self.names[rank]
        return None

    # --- leaving -------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Tell the others that this rank makes no further call; ranks that wait for it get an error at once."""
        for channel in self._channels:
            sync.leave(channel.words, int(channel.state["words_address"][0]), self.rank)

    def close(self) -> None:
        """Leave, and give everything back; the memory goes with the last rank's last reference."""
        if not self._pidfds:
            return
        self._broken = self._broken or "the group is closed"
        self.leave()
        for lock in self._locks:
            lock.acquire()
        fds, self._pidfds = self._pidfds, []
        for fd in fds:
            os.close(fd)
        for lock in self._locks:
            lock.release()


def _form(code: int, divisor: int) -> int:
    """The format and the divisor of a reduction as one number."""
    return divisor << 2 | code


def _described(size: int, form: int) -> str:
    if form == _BARRIER:
        return "a barrier"
    name = next(kind for kind, code in KINDS.items() if code == form & 3)
    divisor = form >> 2
    return f"{size} {name} with {'sum' if divisor == 1 else f'average over {divisor}'}"


class _Alone(dict[str, str]):
    """A rendezvous of one."""

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def get(self, key: str) -> str:  # type: ignore[override]
        return self[key]


@functools.cache
def warm_up() -> None:
    """Compile, or load, what float32 reductions need."""
    group = HostGroup(0, 1, _Alone(), piece=16)
    group.all_reduce(np.zeros(1, np.float32), "float32")
    group.all_reduce(np.zeros(20, np.float32), "float32")
    group.close()


def _ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
