"""A PyTorch profiler (Kineto) trace as a profile: passes and gradients of the steps that it holds.

A step is an annotation `ProfilerStep#N` (`torch.profiler.schedule`). Its backward pass begins with the first node that
the autograd engine evaluates; a gradient is released where its `AccumulateGrad` ends, or, with a GPU, where the last
kernel ends that was launched before. What comes before the backward pass and from the optimizer on counts as forward:
nothing is sent meanwhile. Sizes come from the recorded shapes, else from the all-reduces, a bucket each. A trace knows
neither the names of parameters nor the samples of a step; whatever could not be read is named.
"""

import bisect
import collections
import gzip
import io
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline import json_text
from paceline.errors import UserError
from paceline.models.profile import Measured
from paceline.whole_files import BYTES_MAX, read_bytes

_BYTES = {
    "float": 4, "double": 8, "c10::half": 2, "c10::bfloat16": 2, "half": 2, "bfloat16": 2, "float16": 2,
    "float32": 4, "float64": 8,
}  # fmt: skip
_NODE = "autograd::engine::evaluate_function"
_GRADIENT = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True)
class _Event:
    """A span of the trace; seconds."""

    name: str
    kind: str
    start_s: float
    end_s: float
    args: dict[str, Any]


@dataclass
class _Step:
    """What one step shows."""

    forward_s: float
    released_s: list[float]
    names: list[str]
    sizes: list[int]
    unread: list[str] = field(default_factory=list)


def read_kineto(path: Path) -> Measured:
    """The profile of a trace, or one line that says why there is none."""
    data = _json(path)
    place = str(path)
    if not isinstance(data, dict) or not isinstance(data.get("traceEvents"), list):
        raise UserError("is no PyTorch profiler trace: it has no list traceEvents", place=place)
    events = _events(data["traceEvents"], place)
    finished = _FinishedAt(events)
    spans = [(event.start_s, event.end_s) for event in events if event.name.startswith("ProfilerStep#")]
    unread = ["names of parameters (a trace has none), gradients are numbered",
              "samples of a step (a trace has none), 1 is taken"]  # fmt: skip
    if not spans:
        spans = [(min(event.start_s for event in events), max(event.end_s for event in events))]
        unread.append("steps (no ProfilerStep in it), the whole trace is taken for one")
    starts = [event.start_s for event in events]
    found = []
    for begin_s, end_s in spans:
        inside = events[bisect.bisect_left(starts, begin_s) : bisect.bisect_left(starts, end_s)]
        step = _step(inside, begin_s, end_s, finished)
        if step is not None:
            found.append(step)
    if not found:
        raise UserError(
            f"none of its {len(spans)} steps has a backward pass with gradients: record shapes "
            "(record_shapes=True), or a run with all-reduces",
            place=place,
        )
    steps = _alike(found)
    if len(steps) < len(found):
        unread.append(f"{len(found) - len(steps)} steps whose gradients differ from the others'")
    if len(steps) == 1:
        unread.append("jitter (one step), 0 is taken")
    workers, told = _workers(data)
    return Measured(
        "the PyTorch profiler",
        workers,
        1,
        [(step.forward_s, step.released_s) for step in steps],
        steps[0].names,
        steps[0].sizes,
        unread=(*unread, *told, *steps[0].unread),
    )


def _json(path: Path) -> Any:
    try:
        raw = read_bytes(path)
        text = _unpacked(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot be read: {error}", place=str(path)) from None
    if len(text) > BYTES_MAX:
        raise UserError(f"holds more than {BYTES_MAX >> 20} MiB", place=str(path))
    return json_text.parse(text, str(path), "is no PyTorch profiler trace, not JSON")


def _unpacked(raw: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
        return file.read(BYTES_MAX + 1)


def _events(rows: Sequence[Any], place: str) -> list[_Event]:
    """All spans, in the order of their starts."""
    found = []
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or row.get("ph") != "X":
            continue
        try:
            start_s, took_s = 1e-6 * float(row["ts"]), 1e-6 * float(row.get("dur", 0.0))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise UserError(f"traceEvents[{number}] has no time (ts, dur)", place=place) from None
        if not math.isfinite(start_s) or not 0.0 <= took_s < math.inf:
            raise UserError(f"traceEvents[{number}] has no finite time (ts, dur)", place=place)
        args = row.get("args")
        found.append(
            _Event(str(row.get("name", "")), str(row.get("cat", "")), start_s, start_s + took_s,
                   args if isinstance(args, dict) else {})
        )  # fmt: skip
    if not found:
        raise UserError("is no PyTorch profiler trace: it holds no spans", place=place)
    return sorted(found, key=lambda event: event.start_s)


class _FinishedAt:
    """When the device has done what was launched up to a moment; without a device, at that moment."""

    def __init__(self, events: Sequence[_Event]) -> None:
        launched = {
            event.args["correlation"]: event.start_s
            for event in events
            if event.kind in ("cuda_runtime", "cuda_driver") and "correlation" in event.args
        }
        kernels = sorted(
            (launched[event.args["correlation"]], event.end_s)
            for event in events
            if event.kind == "kernel"
            and event.args.get("correlation") in launched
            and "nccl" not in event.name.lower()
        )
        self._launched = [launch_s for launch_s, _ in kernels]
        self._ended: list[float] = []
        for _, end_s in kernels:
            self._ended.append(max(end_s, self._ended[-1] if self._ended else end_s))

    def __call__(self, when_s: float) -> float:
        count = bisect.bisect_right(self._launched, when_s)
        return max(when_s, self._ended[count - 1]) if count else when_s


def _step(events: Sequence[_Event], begin_s: float, end_s: float, finished: _FinishedAt) -> _Step | None:
    nodes = [event for event in events if event.name.startswith(_NODE)]
    if not nodes:
        return None
    backward_s = finished(nodes[0].start_s)
    last_s = max(event.end_s for event in nodes)
    after = [event.start_s for event in events if event.name.startswith("Optimizer.step")]
    rest_s = max(0.0, end_s - min((start_s for start_s in after if start_s >= last_s), default=last_s))
    step = _Step(max(0.0, backward_s - finished(begin_s)) + rest_s, [], [], [])
    gradients = [event for event in events if event.name == _GRADIENT]
    sized = [(event.end_s, size) for event in gradients if (size := _size(event)) is not None]
    what = "gradient"
    if not gradients or len(sized) < len(gradients):
        sized, what = (
            [(event.start_s, size) for event in events if (size := _reduced(event)) is not None],
            "bucket",
        )
        step.unread.append(
            "shapes of gradients (record_shapes=True), the all-reduces are taken, a bucket each"
        )
    for number, (ready_s, size) in enumerate(sized):
        step.released_s.append(max(1e-9, finished(ready_s) - backward_s))
        step.names.append(f"{what} {number}")
        step.sizes.append(size)
    return step if sized else None


def _size(event: _Event) -> int | None:
    """Bytes of the gradient that an `AccumulateGrad` got, if its shape was recorded."""
    shapes, types = event.args.get("Input Dims"), event.args.get("Input type")
    if not isinstance(shapes, list) or not shapes or not isinstance(types, list) or not types:
        return None
    width = _BYTES.get(str(types[0]).lower())
    if width is None or not isinstance(shapes[0], list):
        return None
    if not all(isinstance(side, int) and side > 0 for side in shapes[0]):
        return None
    return width * math.prod(shapes[0])


def _reduced(event: _Event) -> int | None:
    """Bytes of an all-reduce, as c10d records it."""
    if "allreduce" not in str(event.args.get("Collective name", "")).lower():
        return None
    count, width = event.args.get("In msg nelems"), _BYTES.get(str(event.args.get("dtype", "")).lower())
    return count * width if isinstance(count, int) and count > 0 and width else None


def _alike(steps: Sequence[_Step]) -> list[_Step]:
    """The steps with the most frequent gradients."""
    kinds = collections.Counter(tuple(step.sizes) for step in steps)
    sizes = list(kinds.most_common(1)[0][0])
    return [step for step in steps if step.sizes == sizes]


def _workers(data: dict[str, Any]) -> tuple[int, list[str]]:
    known = data.get("distributedInfo")
    size = known.get("world_size") if isinstance(known, dict) else None
    if isinstance(size, int) and size > 0:
        return size, []
    return 1, ["workers (no distributedInfo in it), 1 is taken"]
