"""A profile of a training loop, measured inside it: how long its passes take, and when which gradient is ready.

    from paceline.torch.profile import profile
    profile("resnet.toml")          # before the loop

or, without a change to the script, `paceline profile -- torchrun ... train.py`. Hooks of PyTorch see the outermost
module's forward pass (DDP's or a plain one's), the start of the backward pass, each parameter's gradient, and the
optimizer's step. After `steps` steps, the first two left out, rank 0 writes a job entry and the hooks go.

From the optimizer's step to the start of the next backward pass nothing is sent: all of that counts as forward, with
the loss and what the loop does between steps. How long the backward pass waits for sums does not count. Jitter is that
of the passes alone, since between steps a loop may wait for its other ranks; and without a GPU that of the processor
time, since ranks that were put on one machine to be measured wait for its processors.

What is taken: of each time the tenth percentile over the steps, as the time on an undisturbed machine; what steps take
more than that is the jitter.

Where all ranks are on this machine, no link limits the exchange of gradients: then the whole step's mean time is
written too, by the exchange that was used. It is more than its passes by what the exchange costs the machine.
"""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch.nn.modules import module as torch_module
from torch.optim.optimizer import register_optimizer_step_pre_hook

if TYPE_CHECKING:
    from paceline.models.profile import ProfileExchange

WARM_UP = 2
"""Steps that are not counted: memory is allocated, DDP builds its buckets anew."""


def profile(path: str | Path, steps: int = 20) -> None:
    """Watch the training loop that follows, and write its profile when so many steps have been seen."""
    if int(os.environ.get("RANK", "0")) == 0:
        _Recorder(Path(path), steps)


class _Recorder:
    """Hooks, and the times that they see; one step is a forward and a backward pass of the outermost module."""

    def __init__(self, path: Path, steps: int) -> None:
        self._path, self._steps = path, steps
        self._root: torch.nn.Module | None = None
        self._names: list[str] = []
        self._sizes: list[int] = []
        self._samples = 1
        self._bucket: int | None = None
        self._seen = 0
        self._began = self._forward_s = self._backward_from = self._optimized = 0.0
        self._clock = time.thread_time
        """For jitter."""
        self._pass_from = self._pass_s = 0.0
        self._passes: list[float] = []
        self._busy_from = self._busy_optimized = self._busy_s = 0.0
        """As `_processor_s`, counted as `_began`, `_optimized` and all of the step."""
        self._busy: list[float] = []
        self._released: list[float] = []
        self._step_from = self._step_s = 0.0
        self._steps_s: list[float] = []
        """From one forward pass to the next."""
        self._rows: list[tuple[float, list[float]]] = []
        """Of each counted step: forward seconds, and when each gradient was ready."""
        self._handles: list[Any] = [
            torch_module.register_module_forward_pre_hook(self._before_forward),
            torch_module.register_module_forward_hook(self._after_forward),
            register_optimizer_step_pre_hook(self._before_optimizer),
        ]

    def _before_forward(self, module: torch.nn.Module, inputs: Any) -> None:
        if self._root is None and torch.is_grad_enabled() and module.training:
            self._take_root(module)
        if module is not self._root or not torch.is_grad_enabled():
            return
        now = time.perf_counter()
        self._step_s, self._step_from = now - self._step_from, now
        self._end_step()
        first = next((each for each in inputs if isinstance(each, torch.Tensor) and each.dim() > 0), None)
        if first is not None:
            self._samples = int(first.shape[0])
        self._released = [0.0] * len(self._names)
        # Without an optimizer that is seen, the pass itself is all there is.
        self._began = self._optimized or time.perf_counter()
        self._pass_from = self._clock()
        self._busy_from = self._busy_optimized if self._optimized else _processor_s()
        self._optimized = 0.0

    def _before_optimizer(self, *_: Any) -> None:
        # A step may have several optimizers.
        if not self._optimized:
            self._optimized, self._busy_optimized = time.perf_counter(), _processor_s()

    def _take_root(self, module: torch.nn.Module) -> None:
        named = [(name, each) for name, each in module.named_parameters() if each.requires_grad]
        if not named:
            return
        self._root = module
        cap = getattr(module, "bucket_bytes_cap", None)  # DistributedDataParallel's
        self._bucket = cap if isinstance(cap, int) and cap > 0 else None
        if (device := named[0][1].device.type) != "cpu":
            self._clock = time.perf_counter
            text = f"paceline: gradients are on {device}, hooks see when work is launched; a trace tells more: --kineto"
            print(text, file=sys.stderr, flush=True)
        for number, (name, parameter) in enumerate(named):
            self._names.append(name)
            self._sizes.append(parameter.numel() * parameter.element_size())
            untyped: Any = parameter
            self._handles.append(untyped.register_post_accumulate_grad_hook(self._released_hook(number)))

    def _released_hook(self, number: int) -> Any:
        def hook(_: torch.Tensor) -> None:
            if self._backward_from and number < len(self._released):
                self._released[number] = time.perf_counter() - self._backward_from
                self._pass_s = self._clock() - self._pass_from
                self._busy_s = _processor_s() - self._busy_from

        return hook

    def _after_forward(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if module is not self._root or not torch.is_grad_enabled() or not self._began:
            return
        self._backward_from = 0.0
        for each in output if isinstance(output, tuple | list) else [output]:
            if isinstance(each, torch.Tensor) and each.requires_grad:
                untyped: Any = each
                untyped.register_hook(self._backward_begins)
                return

    def _backward_begins(self, _: torch.Tensor) -> None:
        if not self._backward_from:
            self._backward_from = time.perf_counter()
            self._forward_s = self._backward_from - self._began

    def _end_step(self) -> None:
        if any(self._released):
            self._seen += 1
            if self._seen > WARM_UP:
                self._rows.append((self._forward_s, self._released))
                self._steps_s.append(self._step_s)
                self._passes.append(self._pass_s)
                self._busy.append(self._busy_s)
        self._backward_from = 0.0
        if len(self._rows) >= self._steps:
            self._write()

    def _write(self) -> None:
        for handle in self._handles:
            handle.remove()
        # An object that nothing calls any more: its hooks are gone, `_root` matches no module.
        self._root = None
        self._began = 0.0
        self._handles = []
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part")
        part.write_text(self._entry(), encoding="utf-8")
        part.rename(self._path)

    def _entry(self) -> str:
        # Not before the loop: what reads TOML is no business of a training script.
        from paceline.models.profile import Measured, entry_text

        workers = int(os.environ.get("WORLD_SIZE", "1"))
        seen = Measured(
            '"paceline profile"', workers, self._samples, self._rows, self._names, self._sizes, self._bucket,
            tuple(self._passes), tuple(self._busy) if self._clock is time.thread_time else (),
            exchange=self._exchange(),
        )  # fmt: skip
        return entry_text(seen)

    def _exchange(self) -> "tuple[ProfileExchange, ...]":
        from paceline.models.profile import exchange_of

        name, workers = exchange_used(), int(os.environ.get("WORLD_SIZE", "1"))
        if name is None or workers < 2 or not _on_one_machine(workers):
            return ()
        return (exchange_of(name, self._steps_s, workers, len(os.sched_getaffinity(0))),)


def _processor_s() -> float:
    """For how long this thread has worked, or was ready to: a wait for a busy processor is work that came late.

    Linux adds up such waits at each switch of threads; elsewhere they count as waiting.
    """
    try:
        _, waited_ns, _ = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        waited_ns = "0"
    return time.thread_time() + int(waited_ns) / 1e9


def exchange_used() -> "Literal['gloo', 'switch'] | None":
    """How gradients go between ranks; None for other ways, and where there is one rank."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    backend = str(dist.get_backend())
    if backend == "paceline":
        from paceline.torch import status

        return "switch" if status()[0]["path"] == "switch" else None
    return "gloo" if backend == "gloo" else None


def _on_one_machine(workers: int) -> bool:
    address = os.environ.get("MASTER_ADDR", "")
    nearby = workers if address == "localhost" or address.startswith("127.") else 1
    return int(os.environ.get("LOCAL_WORLD_SIZE", nearby)) == workers
