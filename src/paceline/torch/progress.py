"""Progress without a line in the script: steps are counted where the program takes them, and written to a file.

`PACELINE_PROGRESS` names the file (`paceline run` sets it); rank 0 writes one object there, at most twice a second:

    {"iteration": 120, "rate": 3.4, "path": "switch", "counted": "optimizer steps", "trains_since": 1790000000.5}

Every rank tells `pace_s` in the file of its own, how long it computes by itself: from the end of an optimizer's step to
the first gradient of the next backward pass, the forward pass in between. No wait for another rank is in that, so ranks
of a job compare, and so do their servers. Gradients on devices say nothing of that: passes are only launched there.

A step is one call of an optimizer's `step`: of several optimizers, that of the one which steps most. A program that
has none of torch's optimizers is counted by its all-reduces: an iteration is one period of their sizes, if they have
any (`StepsByReductions`). All-reduces that DDP makes over Gloo or NCCL cannot be seen from Python, but then there is an
optimizer. The path is that of the largest group of the backend `paceline`, or the name of another backend. Training
began with the first step, or the first of those all-reduces; what was before is start-up.

What cannot be written is not written: nothing here may make a training fail.
"""

import atexit
import contextlib
import functools
import importlib
import json
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch.distributed as dist

from paceline.torch import journal
from paceline.torch.work import untraced

VARIABLE = "PACELINE_PROGRESS"
EVERY_S = 0.5
"""Between two writes."""
RATE_OVER_S = 10.0
"""The rate is that of so many last seconds."""
PACES = 16
"""The pace is the median of so many last steps."""
HISTORY = 768
"""So many of the last reductions are looked at for a period."""
REPEATS = 3
"""A period counts once it has been seen so often,"""
COVERED = 0.75
"""and holds in such a part of the history."""


class StepsByReductions:
    """Counts iterations by the period of what is reduced: the shortest one that most of the late history has."""

    def __init__(self) -> None:
        self._history: deque[Hashable] = deque(maxlen=HISTORY)
        self._pending = 0
        """Reductions that no iteration has been made of yet."""
        self._period: int | None = None
        self._steps = 0.0

    def add(self, signature: Hashable) -> None:
        """A reduction begins; the signature is its size and format."""
        self._history.append(signature)
        self._pending += 1

    def steps(self) -> int | None:
        """Iterations until now; None before a period is known."""
        self._period = period_of(list(self._history)) or self._period
        if self._period is None:
            return None
        self._steps += self._pending / self._period
        self._pending = 0
        return int(self._steps + 1e-9)


def period_of(history: list[Hashable]) -> int | None:
    """The shortest period of the end of the history, repeated often enough and covering most of it."""
    size = len(history)
    for period in range(1, size // REPEATS + 1):
        at = size - 1
        while at >= period and history[at] == history[at - period]:
            at -= 1
        covered = size if at < period else size - 1 - at + period
        if covered >= max(REPEATS * period, COVERED * size):
            return period
    return None


class ProgressWriter:
    """Counts the steps of this process and writes them down."""

    def __init__(
        self,
        path: Path,
        steps_wanted: int = 0,
        clock: Callable[[], float] = time.monotonic,
        speaks: bool = True,
    ) -> None:
        """`speaks`: for the job, as rank 0 does; others tell their pace alone."""
        self._path, self._wanted, self._clock, self._speaks = path, steps_wanted, clock, speaks
        self._optimizers: Counter[int] = Counter()
        self._reductions = StepsByReductions()
        self._lock = threading.Lock()
        self._seen: deque[tuple[float, int]] = deque()
        """When how many steps were done, over the last seconds."""
        self._written_at = float("-inf")
        self._began = 0.0
        """When the first step or reduction was, by the clock that everybody has; 0: there was none."""
        self._way: dict[str, Any] = {"path": "alone"}
        self._paces_s: deque[float] = deque(maxlen=PACES)
        self._stepped_at: float | None = None
        """When the optimizer that is watched for the pace stepped; None: a gradient has come since."""
        self._paced: int | None = None
        """That optimizer."""
        self.process = os.getpid()

    @untraced
    def optimizer_stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """What torch calls after every step of every optimizer."""
        self._began = self._began or time.time()
        if self._paced is None:
            self._paced = id(optimizer)
            _on_gradient(optimizer, self._gradient_came)
        if self._paced == id(optimizer):
            self._stepped_at = self._clock()
        self._optimizers[id(optimizer)] += 1
        steps = self._optimizers[id(optimizer)]
        self._maybe_write(last=steps == self._wanted)

    @untraced
    def _gradient_came(self, _: Any) -> None:
        if self._stepped_at is not None:
            self._paces_s.append(self._clock() - self._stepped_at)
            self._stepped_at = None

    def reduction_begins(self, elements: int, dtype: str, op: str) -> None:
        """What the backend calls, and `all_reduce` of others."""
        if not self._optimizers:
            self._began = self._began or time.time()
            with self._lock:
                self._reductions.add((elements, dtype, op))
            self._maybe_write()

    def _maybe_write(self, last: bool = False) -> None:
        now = self._clock()
        if (last or now - self._written_at >= EVERY_S) and self._lock.acquire(blocking=False):
            try:
                self._write(now)
            finally:
                self._lock.release()

    def flush(self) -> None:
        """The last word, at the end of the program."""
        if self.process == os.getpid() and self._lock.acquire(timeout=1.0):
            try:
                self._write(self._clock())
            finally:
                self._lock.release()

    def _write(self, now: float) -> None:
        self._written_at = now
        # A program at its end may have left its groups: what counts is the way that its gradients took.
        self._way = path_of_groups() or self._way
        told = self.told(now)
        if told is None:
            return
        if self._speaks:
            told |= {"trains_since": round(self._began, 3), **self._way}
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with contextlib.suppress(OSError, ValueError):
            temporary.write_text(json.dumps(told) + "\n", encoding="utf-8")
            temporary.replace(self._path)

    def told(self, now: float) -> dict[str, Any] | None:
        """Iteration, rate and pace as they are now; None before anything could be counted."""
        pace = {"pace_s": round(median(self._paces_s), 6)} if self._paces_s else {}
        if not self._speaks:
            return pace or None
        steps = max(self._optimizers.values()) if self._optimizers else self._reductions.steps()
        if steps is None:
            return None
        counted = "optimizer steps" if self._optimizers else "all-reduces"
        if not self._seen or self._seen[-1][1] != steps:
            self._seen.append((now, steps))
        while len(self._seen) > 2 and self._seen[1][0] < now - RATE_OVER_S:
            self._seen.popleft()
        (then, before), (latest, after) = self._seen[0], self._seen[-1]
        told: dict[str, Any] = {"iteration": steps, "counted": counted, **pace}
        if latest > then:
            told["rate"] = round((after - before) / (latest - then), 4)
        return told


def path_of_groups() -> dict[str, Any]:
    """The way that gradients take: of our largest group, with the reason of its last change; else another backend's.

    Nothing where there is no group, or none any more.
    """
    module = sys.modules.get("paceline.torch.process_group")
    groups = sorted(module.GROUPS, key=lambda group: -group.size()) if module is not None else []
    if groups:
        shown = groups[0].status()
        last = shown["events"][-1:] or [{}]
        return {"path": shown["path"], **({"reason": last[0]["reason"]} if last[0] else {})}
    if dist.is_available() and dist.is_initialized() and (backend := str(dist.get_backend())) != "paceline":
        return {"path": backend}
    return {}


_installed: list[ProgressWriter] = []


def install(env: Mapping[str, str] = os.environ) -> None:
    """Count in this process, if the environment asks for it; a second time does nothing."""
    path = env.get(VARIABLE, "")
    if not path or (_installed and _installed[0].process == os.getpid()):
        return
    wanted, speaks = env.get("PACELINE_ITERATIONS", ""), env.get("RANK", "0") == "0"
    writer = ProgressWriter(Path(path), int(wanted) if wanted.isdigit() else 0, speaks=speaks)
    _installed[:] = [writer]
    after_steps: Any = importlib.import_module("torch.optim.optimizer")
    after_steps.register_optimizer_step_post_hook(writer.optimizer_stepped)
    if speaks:
        journal.ON_BEGIN.append(writer.reduction_begins)
        if dist.is_available():
            _watch_others(writer)
    atexit.register(writer.flush)


def _on_gradient(optimizer: Any, call: Callable[[Any], None]) -> None:
    """Call when the gradient is there of the parameter that comes last in the model, so first in the backward pass."""
    groups = getattr(optimizer, "param_groups", [])
    parameters = [each for group in groups for each in group["params"] if each.requires_grad]
    if parameters and parameters[-1].device.type == "cpu" and parameters[-1].is_leaf:
        parameters[-1].register_post_accumulate_grad_hook(call)


def _watch_others(writer: ProgressWriter) -> None:
    """Stand before `all_reduce`, for groups whose reductions are not ours to count."""
    original: Any = dist.all_reduce

    @functools.wraps(original)
    def all_reduce(
        tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        if dist.is_initialized() and dist.get_backend(group) != "paceline":
            writer.reduction_begins(tensor.numel(), str(tensor.dtype), "")
        return original(tensor, op, group, async_op)

    # torch's own modules have taken the name from one another.
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.") and getattr(module, "all_reduce", None) is original:
            module.all_reduce = all_reduce  # type: ignore[attr-defined]
