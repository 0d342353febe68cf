"""One rank of a measurement, a process of its own: `python -m paceline.bench.rank MEASUREMENT`, started by `bench.run`.

Rank and rendezvous come in torchrun's variables, the switch in the backend's. All ranks go through the sizes in
step; rank 0 prints one line of JSON a row. A repetition is a batch of all-reduces back to back, as in nccl-tests,
preceded by a barrier; its time is the slowest rank's. The backends take turns within each repetition, so that
whatever else happens on the machine meets both.
"""

import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from paceline.bench.measurement import FLOAT_PATHS, ONE, OURS, SPINNING, MeasuredRow, Measurement
from paceline.bench.reference import ITEM_BYTES, TILE, Reference, digest, tile

BATCH_BYTES_MAX = 32_000_000
BATCH_MAX = 100
BATCH_S = 0.1
"""A batch should take as long, so that the barrier's skew is small beside it."""
WARM_UP_S = 0.3
WARM_UP_LONG_S = 2.0
"""Where one all-reduce takes as long, one is enough, but for the bytes."""
WARM_UP_BYTES = 160_000_000
"""Enough that a backend which keeps inputs for a while (128 MiB of ours) has all its buffers: fresh memory is slow."""
WARM_UPS_MAX = 50
WARM_UP_MAX_S = 30.0
REPEAT_MIN = 3
REPEAT_MAX = 15
SPINS = 2_000
SWITCH_TIMEOUT_S = 300.0
"""A switch that compiles for the first time takes most of a minute, on a busy machine longer."""

SWITCH_PROCESSES = [
    int(number) for number in os.environ.get("PACELINE_BENCH_SWITCH", "").split(",") if number
]
"""The switches' processes, whose processor time belongs to our sums."""

Group = Any
"""torch's ProcessGroup; its own annotations do not agree on what `new_group` returns."""


class Rank:
    """This process's groups and numbers."""

    def __init__(self, measurement: Measurement) -> None:
        self.measurement = measurement
        self.rank = int(os.environ["RANK"])
        timeout = timedelta(seconds=measurement.timeout_s)
        default = OURS if OURS in measurement.backends else measurement.backends[0]
        if default == OURS:
            import paceline.torch  # noqa: F401 (registers the backend)
        dist.init_process_group(default, timeout=timeout)
        self.control: Group = dist.new_group(backend="gloo", timeout=timeout)
        self.groups: dict[str, Group] = {default: dist.group.WORLD}
        for name in measurement.backends:
            if name not in self.groups:
                self.groups[name] = dist.new_group(backend=name, timeout=timeout)
        if ONE in measurement.variants():
            self.groups[ONE] = dist.new_group(backend=OURS, timeout=timeout, pg_options=over_one_switch())
        self.dtype: torch.dtype = getattr(torch, measurement.dtype)
        length = min(TILE, max(1, max(measurement.sizes) // ITEM_BYTES[measurement.dtype]))
        self.tile = torch.from_numpy(tile(self.rank, measurement.dtype, length)).to(self.dtype)
        self.reference = Reference(measurement.workers, measurement.dtype, length, measurement.wire)

    def rows(self) -> Iterator[MeasuredRow]:
        """Every size with every backend, in turns."""
        for size in self.measurement.sizes:
            yield from self._measure(size)

    def _measure(self, size_bytes: int) -> Iterator[MeasuredRow]:
        count = size_bytes // ITEM_BYTES[self.measurement.dtype]
        one = torch.empty((1, count), dtype=self.dtype)
        seconds = {name: self._warm_up(name, one) for name in self.measurement.variants()}
        batch = max(1, int(min(BATCH_MAX, BATCH_BYTES_MAX // one.nbytes, BATCH_S / max(seconds.values()))))
        buffers = torch.empty((batch, count), dtype=self.dtype) if batch > 1 else one
        longest = max(seconds.values()) * len(buffers)
        repeat = self.measurement.repeat or int(
            min(REPEAT_MAX, max(REPEAT_MIN, self.measurement.budget_s / longest))
        )
        times: dict[str, list[float]] = {name: [] for name in self.measurement.variants()}
        wrong = dict.fromkeys(times, 0)
        cpu = dict.fromkeys(times, 0.0)
        seen: dict[str, list[bytes]] = {}
        for i in range(repeat):
            turn = list(times) if i % 2 == 0 else list(reversed(times))
            for name in turn:
                elapsed, used = self._batch(name, buffers)
                times[name].append(elapsed * 1e6)
                cpu[name] += used / repeat
                if i in (0, repeat - 1):
                    more, seen[name] = self._wrong(name, buffers)
                    wrong[name] += more
        if ONE in seen:
            wrong[ONE] += sum(a != b for a, b in zip(seen[ONE], seen[OURS], strict=True))
        for name in times:
            yield MeasuredRow(
                *(name, size_bytes, count, self.measurement.dtype, self.measurement.workers),
                *(tuple(times[name]), wrong[name], cpu[name]),
            )

    def _warm_up(self, name: str, buffers: torch.Tensor) -> float:
        """Seconds of one all-reduce, once connections, windows and caches are warm."""
        started = time.perf_counter()
        fastest = float("inf")
        enough = min(WARM_UP_BYTES, 8 * buffers.nbytes)
        for i in range(WARM_UPS_MAX):
            fastest = min(fastest, self._batch(name, buffers)[0])
            elapsed = self._slowest(time.perf_counter() - started)
            warm = elapsed > (WARM_UP_S if i else WARM_UP_LONG_S)
            if (warm and (i + 1) * buffers.nbytes >= enough) or elapsed > WARM_UP_MAX_S:
                break
        return fastest

    def _batch(self, name: str, buffers: torch.Tensor) -> tuple[float, float]:
        """Seconds of one all-reduce by the slowest rank, and processor seconds of all ranks and our switch."""
        self._fill(buffers)
        reduce = self._spinning if name.endswith(SPINNING) else self._waiting
        group = self.groups[name.removesuffix(SPINNING)]
        dist.barrier(group=self.control)
        switches = SWITCH_PROCESSES if self.rank == 0 and name.startswith(OURS) else []
        used = time.process_time() + sum(map(processor_s, switches))
        started = time.perf_counter()
        for buffer in buffers:
            reduce(buffer, group)
        elapsed = time.perf_counter() - started
        used = time.process_time() + sum(map(processor_s, switches)) - used
        return self._slowest(elapsed) / len(buffers), self._total(used) / len(buffers)

    def _waiting(self, buffer: torch.Tensor, group: Group) -> None:
        dist.all_reduce(buffer, group=group)

    def _spinning(self, buffer: torch.Tensor, group: Group) -> None:
        work = dist.all_reduce(buffer, group=group, async_op=True)
        assert work is not None
        while not work.is_completed():
            for _ in range(SPINS):  # pure Python: it gives the interpreter's lock up only when told to
                pass
        work.wait()

    def _fill(self, buffers: torch.Tensor) -> None:
        for buffer in buffers:
            for start in range(0, len(buffer), len(self.tile)):
                part = buffer[start : start + len(self.tile)]
                part.copy_(self.tile[: len(part)])

    def _wrong(self, name: str, buffers: torch.Tensor) -> tuple[int, list[bytes]]:
        """Elements of all ranks that are too far from the exact sum, at least one where ranks differ; our digests."""
        ours = name.removesuffix(SPINNING) in (OURS, ONE)
        fixed_point = ours and self.status().get("path") not in FLOAT_PATHS
        wrong = 0
        digests = []
        for buffer in buffers:
            values = (buffer.float() if self.dtype in (torch.bfloat16, torch.float16) else buffer).numpy()
            wrong += self.reference.wrong(values, fixed_point=fixed_point)
            digests.append(digest(values))
        every: list[Any] = [None] * self.measurement.workers
        dist.all_gather_object(every, (wrong, digests), group=self.control)
        differing = sum(len({other[1][i] for other in every}) - 1 for i in range(len(buffers)))
        return int(sum(other[0] for other in every) + differing), digests

    def status(self) -> dict[str, Any]:
        """What our backend says of itself; nothing where it is not measured."""
        if OURS not in self.measurement.backends:
            return {}
        backend: Any = importlib.import_module("paceline.torch")
        return dict(backend.status()[0])

    def _slowest(self, seconds: float) -> float:
        return self._over_all(seconds, dist.ReduceOp.MAX)

    def _total(self, seconds: float) -> float:
        return self._over_all(seconds, dist.ReduceOp.SUM)

    def _over_all(self, value: float, op: Any) -> float:
        number = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(number, op, group=self.control)
        return float(number.item())


def processor_s(process: int) -> float:
    """Processor seconds of all threads of a process so far; 0: of none."""
    total_ns = 0
    for path in Path(f"/proc/{process}/task").glob("*/schedstat") if process else ():
        with contextlib.suppress(OSError):
            total_ns += int(path.read_text(encoding="ascii").split()[0])
    return total_ns / 1e9


def over_one_switch() -> Any:
    """Options of a group that knows the first switch only."""
    settings: Any = importlib.import_module("paceline.torch.settings")
    here = settings.read_settings()
    return replace(here, switch=here.switch.partition(",")[0])


def wait_for_switches(addresses: str, timeout_s: float) -> None:
    """Return when the switches are healthy; a backend that does not find them would go on without."""
    from paceline.live.switch_client import ControlError, parse_switches

    until = time.monotonic() + timeout_s
    for named in parse_switches(addresses):
        while True:
            try:
                named.control.text("/healthz")
                break
            except ControlError as error:
                if time.monotonic() > until:
                    raise SystemExit(f"the switch is not up: {error}") from None
            time.sleep(0.2)


def main(arguments: list[str], write: Callable[[str], object] = sys.stdout.write) -> None:
    """Take part in the measurement; rank 0 writes the rows."""
    torch.set_num_threads(1)
    measurement = Measurement.from_json(arguments[0])
    if OURS in measurement.backends:
        wait_for_switches(os.environ["PACELINE_SWITCH"], SWITCH_TIMEOUT_S)
    rank = Rank(measurement)
    for row in rank.rows():
        if rank.rank == 0:
            write(json.dumps({"row": asdict(row)}) + "\n")
            sys.stdout.flush()
    if rank.rank == 0:
        write(json.dumps({"status": rank.status()}, default=str) + "\n")
        sys.stdout.flush()
    dist.barrier(group=rank.control)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
