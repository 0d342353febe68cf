"""A profile of a training loop, measured inside it: how long its passes take, and when which gradient is ready.

    from paceline.torch.profile import profile
    profile("resnet.toml")          # before the loop

or, without a change to the script, `paceline profile -- torchrun ... train.py`. Hooks of PyTorch see the outermost
module's forward pass (DDP's or a plain one's), the start of the backward pass, and each parameter's gradient. After
`steps` steps, the first two left out, rank 0 writes a job entry and the hooks go.

What is taken: of each time the tenth percentile over the steps, as the time on an undisturbed machine; what steps take
more than that is the jitter.
"""

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules import module as torch_module

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
        self._seen = 0
        self._began = self._forward_s = self._backward_from = 0.0
        self._released: list[float] = []
        self._rows: list[tuple[float, list[float]]] = []
        """Of each counted step: forward seconds, and when each gradient was ready."""
        self._handles: list[Any] = [
            torch_module.register_module_forward_pre_hook(self._before_forward),
            torch_module.register_module_forward_hook(self._after_forward),
        ]

    def _before_forward(self, module: torch.nn.Module, inputs: Any) -> None:
        if self._root is None and torch.is_grad_enabled() and module.training:
            self._take_root(module)
        if module is not self._root or not torch.is_grad_enabled():
            return
        self._end_step()
        first = next((each for each in inputs if isinstance(each, torch.Tensor) and each.dim() > 0), None)
        if first is not None:
            self._samples = int(first.shape[0])
        self._released = [0.0] * len(self._names)
        self._began = time.perf_counter()

    def _take_root(self, module: torch.nn.Module) -> None:
        named = [(name, each) for name, each in module.named_parameters() if each.requires_grad]
        if not named:
            return
        self._root = module
        for number, (name, parameter) in enumerate(named):
            self._names.append(name)
            self._sizes.append(parameter.numel() * parameter.element_size())
            untyped: Any = parameter
            self._handles.append(untyped.register_post_accumulate_grad_hook(self._released_hook(number)))

    def _released_hook(self, number: int) -> Any:
        def hook(_: torch.Tensor) -> None:
            if self._backward_from and number < len(self._released):
                self._released[number] = time.perf_counter() - self._backward_from

        return hook

    def _after_forward(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if module is not self._root or not torch.is_grad_enabled() or not self._began:
            return
        self._forward_s = time.perf_counter() - self._began
        self._backward_from = 0.0
        for each in output if isinstance(output, tuple | list) else [output]:
            if isinstance(each, torch.Tensor) and each.requires_grad:
                untyped: Any = each
                untyped.register_hook(self._backward_begins)
                return

    def _backward_begins(self, _: torch.Tensor) -> None:
        if not self._backward_from:
            self._backward_from = time.perf_counter()

    def _end_step(self) -> None:
        if any(self._released):
            self._seen += 1
            if self._seen > WARM_UP:
                self._rows.append((self._forward_s, self._released))
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
        forward_s = _low([forward for forward, _ in self._rows])
        ready = [_low([row[i] for _, row in self._rows]) for i in range(len(self._names))]
        totals = [forward + max(row) for forward, row in self._rows]
        spread = (_quantile(totals, 0.9) - _low(totals)) / 0.8 / _low(totals)
        lines = [
            f'# Measured over {len(self._rows)} steps by "paceline profile"; layers in the order of release.',
            f"workers = {os.environ.get('WORLD_SIZE', '1')}",
            f"samples = {self._samples}",
            f"steps = {len(self._rows)}",
            f'forward = "{forward_s * 1e6:.3f} us"',
            f'backward = "{max(ready) * 1e6:.3f} us"',
            f"jitter = {min(spread, 10.0):.4f}",
            f"gradient = {sum(self._sizes)}",
        ]
        for number in sorted(range(len(self._names)), key=lambda i: ready[i]):
            lines += [
                "",
                "[[layers]]",
                f'name = "{self._names[number]}"',
                f"size = {self._sizes[number]}",
                f'released = "{ready[number] * 1e6:.3f} us"',
            ]
        return "\n".join(lines) + "\n"


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[round(share * (len(values) - 1))]


def _low(values: list[float]) -> float:
    return _quantile(values, 0.1)
