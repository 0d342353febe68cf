"""Tensors on devices: brought to host memory segment by segment, reduced there, and brought back.

A segment is copied into pinned memory on a stream of its own while those before it are already on their way, and its
result is copied back on another stream. The Work ends when the last of it is there, so a caller that waits may use the
tensor on any stream. Everything goes through torch's `Stream` and `torch.accelerator`: one code for all kinds of
devices. No GPU has run it yet; the tests have a device that they emulate, whose copies are never late.

Ranks must begin reductions in one order, and segments are begun by a thread. So as long as that has something to do,
reductions of CPU tensors go through it too (`behind`).
"""

import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.distributed import DistBackendError

from paceline.torch.feedback import memory_of
from paceline.torch.serial_thread import CallbackThreads, SerialThread
from paceline.torch.work import PacelineWork, copy_back, dense_of

_torch: Any = torch
SEGMENT_BYTES = 16 << 20
BUFFERS = 4
"""Segments that are on the host at a time."""

Reduce = Callable[..., PacelineWork]
"""Begins the reduction of a CPU tensor: tensor, operation, priority, time limit, `memory`: whose part it is."""


@dataclass(eq=False)
class _Staged:
    """One device tensor on its way."""

    flat: torch.Tensor
    tensor: torch.Tensor
    """Where the result belongs, if that is not `flat`'s own memory."""
    dense: torch.Tensor
    op: str
    priority: int
    timeout_s: float
    work: PacelineWork
    ready: Any
    """Recorded on the caller's stream: what it has computed so far is in the tensor."""
    left: int
    """Elements whose result is not there yet."""


class DeviceStaging:
    """The device tensors of one group."""

    def __init__(self, reduce: Reduce, ranks: int, callbacks: CallbackThreads) -> None:
        self._reduce, self._ranks, self._callbacks = reduce, ranks, callbacks
        self._in, self._out = SerialThread("paceline-stage-in"), SerialThread("paceline-stage-out")
        self._streams: dict[torch.device, tuple[Any, Any]] = {}
        self._buffers = _Buffers()
        self._open: set[PacelineWork] = set()

    # --- all-reduce ----------------------------------------------------------------------------------------

    def all_reduce(self, tensor: torch.Tensor, op: str, priority: int, timeout_s: float) -> PacelineWork:
        """Begin; returns at once."""
        dense = dense_of(tensor)
        work = PacelineWork([tensor], timeout_s, self._callbacks)
        if tensor.numel() == 0:
            work.end()
            return work
        self._open.add(work)
        work.when_ended(lambda _error: self._open.discard(work))
        flat = dense.detach().view(-1)
        ready = _torch.accelerator.current_stream(tensor.device).record_event()
        staged = _Staged(flat, tensor, dense, op, priority, timeout_s, work, ready, flat.numel())
        self._in.put(partial(self._bring, staged))
        return work

    def behind(self, action: Callable[[], None]) -> None:
        """Do this now, or after the segments that are still to be begun."""
        if not self._in.run_if_idle(action):
            self._in.put(action)

    def is_idle(self) -> bool:
        """Has everything been begun?"""
        return self._in.run_if_idle(lambda: None)

    def _bring(self, staged: _Staged) -> None:
        """Copy in and begin, segment by segment."""
        try:
            stream, _ = self._streams_of(staged.flat.device)
            stream.wait_event(staged.ready)
            size, step = staged.flat.numel(), SEGMENT_BYTES // staged.flat.element_size()
            if size > step:
                self._compare(staged)
            memory = memory_of(staged.tensor)
            for begin in range(0, size, step):
                if staged.work.is_completed():  # a segment before has failed
                    return
                part = staged.flat[begin : begin + step]
                buffer = self._buffers.take(staged.timeout_s)
                host = buffer[: part.numel() * part.element_size()].view(part.dtype)
                try:
                    with stream:
                        host.copy_(part, non_blocking=True)
                    stream.synchronize()
                    whose = None if memory is None else memory.part(begin)
                    reduced = self._reduce(host, staged.op, staged.priority, staged.timeout_s, memory=whose)
                except BaseException:
                    self._buffers.give(buffer)
                    raise
                reduced.when_ended(partial(self._reduced, staged, part, host, buffer))
        except Exception as error:
            staged.work.end(error)

    def _compare(self, staged: _Staged) -> None:
        """Ahead of a tensor in segments: ranks with different ones must not take each other's."""
        what = f"{staged.flat.numel()} {staged.flat.dtype} with {staged.op}"
        own = zlib.crc32(what.encode()) % 1_000_003
        total = torch.tensor([own], dtype=torch.int32)
        self._reduce(total, "sum", staged.priority, staged.timeout_s).wait()
        if int(total) != own * self._ranks:
            raise DistBackendError(
                f"the ranks reduce different tensors: this one has {what}, another one has not"
            )

    def _reduced(
        self,
        staged: _Staged,
        part: torch.Tensor,
        host: torch.Tensor,
        buffer: torch.Tensor,
        error: Exception | None,
    ) -> None:
        self._out.put(partial(self._give_back, staged, part, host, buffer, error))

    def _give_back(
        self,
        staged: _Staged,
        part: torch.Tensor,
        host: torch.Tensor,
        buffer: torch.Tensor,
        error: Exception | None,
    ) -> None:
        try:
            if error is None and not staged.work.is_completed():
                _, stream = self._streams_of(part.device)
                with stream:
                    copy_back(part, host)
                    staged.left -= part.numel()
                    if staged.left == 0 and staged.dense is not staged.tensor:
                        copy_back(staged.tensor, staged.dense)
                stream.synchronize()
        except Exception as problem:
            error = problem
        finally:
            self._buffers.give(buffer)
        if error is not None or staged.left == 0:
            staged.work.end(error)

    def _streams_of(self, device: torch.device) -> tuple[Any, Any]:
        """In and out."""
        if device not in self._streams:
            self._streams[device] = (_torch.Stream(device=device), _torch.Stream(device=device))
        return self._streams[device]

    # --- everything else -----------------------------------------------------------------------------------

    def call(self, collective: Callable[..., Any], timeout_s: float, args: Any, more: Any) -> PacelineWork:
        """A collective of Gloo with copies of its device tensors; what it writes is its first argument."""
        copies: dict[int, torch.Tensor] = {}
        outputs = [tensor for tensor in _tensors(args[:1]) if tensor.device.type != "cpu"]
        theirs = collective(*_on_host(args, copies), **more)
        work = PacelineWork(list(_tensors(args[:1])), timeout_s, self._callbacks)

        def finish() -> None:
            try:
                theirs.wait()
                for tensor in outputs:
                    copy_back(tensor, copies[id(tensor)])
                for device in {tensor.device for tensor in outputs}:
                    _torch.accelerator.current_stream(device).synchronize()
            except Exception as error:
                work.end(error)
            else:
                work.end()

        # One of its own: a receive may wait for long, and others behind it must not.
        threading.Thread(target=finish, name="paceline-stage-call", daemon=True).start()
        return work

    # --- the end -------------------------------------------------------------------------------------------

    def drain(self, timeout_s: float) -> None:
        """Wait until everything is begun."""
        self._in.drain(timeout_s)

    def close(self) -> None:
        """After the reducer: what is under way has ended, or never will."""
        for work in list(self._open):
            work.end(DistBackendError("the group is closed"))
        self._in.close()
        self._out.close()


@dataclass
class _Buffers:
    """Pinned memory, made when it is needed and used again."""

    free: list[torch.Tensor] = field(default_factory=list)
    places: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(BUFFERS))

    def take(self, timeout_s: float) -> torch.Tensor:
        if not self.places.acquire(timeout=timeout_s):
            raise DistBackendError(f"no segment came back within {timeout_s:g} s")
        try:
            return self.free.pop()
        except IndexError:
            return _pinned(SEGMENT_BYTES)

    def give(self, buffer: torch.Tensor) -> None:
        self.free.append(buffer)
        self.places.release()


def _pinned(size_bytes: int) -> torch.Tensor:
    """Pinned where the device's runtime can pin."""
    try:
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
    except (RuntimeError, NotImplementedError):
        return torch.empty(size_bytes, dtype=torch.uint8)


def on_device(args: Any) -> bool:
    """Is one of these tensors, in lists of any depth, on a device?"""
    return any(tensor.device.type != "cpu" for tensor in _tensors(args))


def _tensors(args: Any) -> Iterator[torch.Tensor]:
    for each in args:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from _tensors(each)


def _on_host(args: Any, copies: dict[int, torch.Tensor]) -> list[Any]:
    """The same with copies of device tensors, each of them once."""
    found: list[Any] = []
    for each in args:
        if isinstance(each, torch.Tensor) and each.device.type != "cpu":
            if id(each) not in copies:
                copies[id(each)] = each.detach().to("cpu").contiguous()
            found.append(copies[id(each)])
        elif isinstance(each, list | tuple):
            found.append(_on_host(each, copies))
        else:
            found.append(each)
    return found
