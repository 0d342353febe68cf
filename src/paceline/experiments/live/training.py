"""One training job of the demonstration and of `paceline reproduce live`: the script that every rank runs.

    python training.py --steps 20 --stragglers help

Beside a switch (`PACELINE_SWITCH` is set) gradients are summed by it, else it is plain synchronous SGD over Gloo. With
help, ranks that are done take over micro-batches of a slow one. Real gradients of a real model; a sleep in each layer
stands for the device that computes, so that many ranks can share two cores. On a slow server (`PACELINE_SLOW`) it
takes longer.
"""

import argparse
import contextlib
import ctypes
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.torch.takeover import Takeover

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
SAMPLES = 4096
FEATURES = 64
LOOK_EVERY = 4
"""Steps between two looks at the loss."""


def sample(indices: list[int]) -> tuple[Tensor, Tensor]:
    """The data set: any rank can make any sample."""
    phase = torch.tensor(indices, dtype=torch.float32).remainder(257).mul(0.37).add(0.01)
    x = torch.sin(phase[:, None] * torch.arange(1, FEATURES + 1))
    return x, x[:, :1] * x[:, 1:2] + 0.3 * x[:, 2:3]


def build(seed: int, width: int, micro_batch_s: float) -> nn.Module:
    """A network of about width * width parameters whose layers take their share of a micro-batch's time."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
    )

    def compute(*_: object) -> None:
        time.sleep(micro_batch_s / len(model))

    for layer in model:
        layer.register_forward_hook(compute)
    return model


def gradient_bytes(width: int) -> int:
    """Of a network of this width."""
    return 4 * (FEATURES * width + width + width * width + width + width + 1)


def sgd(model: nn.Module, rate: float, momentum: float) -> Callable[[], None]:
    """Stochastic gradient descent with momentum; torch.optim does the same, but takes seconds to load."""
    moments = [torch.zeros_like(parameter) for parameter in model.parameters()]

    @torch.no_grad()
    def step() -> None:
        for parameter, moment in zip(model.parameters(), moments, strict=True):
            assert parameter.grad is not None
            moment.mul_(momentum).add_(parameter.grad)
            parameter.sub_(moment, alpha=rate)

    return step


class PlainSum:
    """What a job does without help: every rank computes its own micro-batches, then one all-reduce."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = list(model.parameters())
        self._total = 0
        self.exchange_s = 0.0
        """In all-reduces so far."""

    def run(self, micro_batches: list[Tensor], accumulate: Callable[[list[int]], None]) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        for indices in micro_batches:
            accumulate(indices.tolist())
        self._total = len(micro_batches) * dist.get_world_size()

    def reduce(self) -> None:
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        began = time.monotonic()
        dist.all_reduce(flat)
        self.exchange_s += time.monotonic() - began
        parts = torch.split(flat.div_(self._total), [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def as_progress(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Nothing is held."""


class Stopwatch:
    """Seconds of the micro-batches that this rank has computed to their end."""

    def __init__(self) -> None:
        self.total_s, self.count = 0.0, 0

    def around(self, compute: Callable[[list[int]], None]) -> Callable[[list[int]], None]:
        def timed(indices: list[int]) -> None:
            began = time.monotonic()
            compute(indices)
            self.total_s += time.monotonic() - began
            self.count += 1

        return timed

    @property
    def pace_s(self) -> float:
        """Seconds a micro-batch; 0 if none was computed."""
        return self.total_s / self.count if self.count else 0.0

    def of_all_ranks(self) -> list[float]:
        """Seconds a micro-batch by rank; a rank that has computed none has 0."""
        found = [torch.zeros(1, dtype=torch.float64) for _ in range(dist.get_world_size())]
        dist.all_gather(found, torch.tensor([self.pace_s], dtype=torch.float64))
        return [float(each) for each in found]


def sums_of(backend: str) -> dict[str, Any]:
    """Where sums are made, why if it changed, and how urgent they are, for the run's table and report."""
    if backend == "gloo":
        return {"path": "ring"}
    import paceline.torch

    group = paceline.torch.status()[0]
    last = group["events"][-1]["reason"] if group["events"] else ""
    return {"path": group["path"], "reason": last, "priority": group["priority"]}


def tell(told: dict[str, Any]) -> None:
    """One line for `paceline run`."""
    print("PACELINE_STATUS", json.dumps(told))


def tell_pace(pace_s: float) -> None:
    """What every rank says of itself, in a file of its own: how long a micro-batch takes it."""
    if path := os.environ.get("PACELINE_STATUS"):
        with contextlib.suppress(OSError):
            Path(path).write_text(json.dumps({"pace_s": pace_s}) + "\n", encoding="utf-8")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--micro-batches", type=int, default=4, help="a rank and iteration")
    parser.add_argument("--micro-batch-ms", type=float, default=60.0, help="what one takes a healthy rank")
    parser.add_argument("--size", type=int, default=4, help="samples a micro-batch")
    parser.add_argument("--width", type=int, default=1200, help="of the network; 1200: a gradient of 6 MB")
    parser.add_argument(
        "--stragglers", choices=("auto", "help", "wait"), default="auto", help="auto: help beside a switch"
    )
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def keep_memory() -> None:
    """Gradients of several MB come and go with every micro-batch: their memory is kept, not given back each time."""
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
    libc.mallopt(M_TRIM_THRESHOLD, 1 << 30)


def main() -> None:
    options = parsed()
    torch.set_num_threads(1)
    keep_memory()
    backend = "paceline" if os.environ.get("PACELINE_SWITCH") else "gloo"
    dist.init_process_group(backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    slow = float(os.environ.get("PACELINE_SLOW") or 1.0)
    model = build(options.seed, options.width, options.micro_batch_ms / 1e3 * slow)
    judge = build(options.seed, options.width, 0.0)
    take_step = sgd(model, rate=0.05, momentum=0.9)
    order = torch.Generator().manual_seed(options.seed)
    watched = sample(list(range(0, SAMPLES, 64)))
    stopwatch = Stopwatch()

    @stopwatch.around
    def accumulate(indices: list[int]) -> None:
        x, y = sample(indices)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]

    helps = options.stragglers == "help" or (options.stragglers == "auto" and backend == "paceline")
    gradients: Takeover | PlainSum = Takeover(model) if helps else PlainSum(model)
    dist.barrier()
    began, clock = time.monotonic(), time.time()
    if rank == 0:
        # Loading Python and torch ends here: what comes now is training.
        tell({"iteration": 0, "trains_since": clock, **sums_of(backend)})
    loss = 0.0
    ended = []
    for step in range(1, options.steps + 1):
        batch = torch.randperm(SAMPLES, generator=order)[: ranks * options.micro_batches * options.size]
        mine = batch.view(ranks, options.micro_batches, options.size)[rank]
        gradients.run(list(mine), accumulate)
        gradients.reduce()
        take_step()
        if rank == 0 and step % LOOK_EVERY == 0:
            judge.load_state_dict(model.state_dict())
            with torch.no_grad():
                loss = float(nn.functional.mse_loss(judge(watched[0]), watched[1]))
        ended.append(time.monotonic() - began)
        status: dict[str, Any] = {
            "iteration": step,
            "rate": step / ended[-1],
            "loss": loss,
            "trains_since": clock,
            **sums_of(backend),
            **gradients.as_progress(),
        }
        if rank == 0:
            tell({**status, "pace_s": stopwatch.pace_s})
        else:
            tell_pace(stopwatch.pace_s)
    paces_s = stopwatch.of_all_ranks()
    if rank == 0:
        if isinstance(gradients, PlainSum):
            sent_s = gradients.exchange_s / options.steps
            rest_s = ended[-1] / options.steps - options.micro_batches * paces_s[0] - sent_s
            status |= {"exchange_s": sent_s, "rest_s": rest_s}
        tell({**status, "ended_s": [round(each, 4) for each in ended], "paces_s": paces_s})
    dist.barrier()
    gradients.close()
    dist.destroy_process_group()
    if rank == 0:
        print(f"{options.steps} steps over {backend}, loss {loss:.6f}")


if __name__ == "__main__":
    main()
