"""One training job of the demonstration: the same command with and without Paceline.

Beside a switch (`PACELINE_SWITCH` is set) gradients are summed by it, and ranks that are done take over micro-batches
of a slow one. Without, it is plain synchronous SGD over Gloo. Real gradients of a real, small model; a sleep in each
layer stands for the device that computes, so that many ranks can share two cores.
"""

import argparse
import json
import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.torch.takeover import Takeover

SAMPLES = 4096
FEATURES = 64


def sample(indices: list[int]) -> tuple[Tensor, Tensor]:
    """The data set: any rank can make any sample."""
    phase = torch.tensor(indices, dtype=torch.float32).remainder(257).mul(0.37).add(0.01)
    x = torch.sin(phase[:, None] * torch.arange(1, FEATURES + 1))
    return x, x[:, :1] * x[:, 1:2] + 0.3 * x[:, 2:3]


def build(seed: int, micro_batch_s: float) -> nn.Module:
    """A small network whose layers take their share of the time that a micro-batch is to take."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(FEATURES, 256), nn.Tanh(), nn.Linear(256, 448), nn.Tanh(), nn.Linear(448, 1)
    )
    for layer in model:
        layer.register_forward_hook(lambda *_: time.sleep(micro_batch_s / len(model)))
    return model


def sgd(model: nn.Module, rate: float, momentum: float) -> Callable[[], None]:
    """Stochastic gradient descent with momentum; torch.optim does the same, but takes seconds to load."""
    moments = [torch.zeros_like(parameter) for parameter in model.parameters()]

    @torch.no_grad()
    def step() -> None:
        for parameter, moment in zip(model.parameters(), moments, strict=True):
            moment.mul_(momentum).add_(parameter.grad)
            parameter.sub_(moment, alpha=rate)

    return step


def sums_of(backend: str) -> dict[str, object]:
    """Where sums are made, why if it changed, and how urgent they are, for the run's table and report."""
    if backend == "gloo":
        return {"path": "ring"}
    import paceline.torch

    group = paceline.torch.status()[0]
    last = group["events"][-1]["reason"] if group["events"] else ""
    return {"path": group["path"], "reason": last, "priority": group["priority"]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--micro-batches", type=int, default=16, help="a rank and iteration")
    parser.add_argument("--micro-batch-ms", type=float, default=20.0, help="what one takes a healthy rank")
    parser.add_argument("--size", type=int, default=8, help="samples a micro-batch")
    parser.add_argument("--slow-rank", type=int, default=-1, help="default: nobody")
    parser.add_argument("--slow-factor", type=float, default=2.5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    backend = "paceline" if os.environ.get("PACELINE_SWITCH") else "gloo"
    dist.init_process_group(backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    slow = options.slow_factor if rank == options.slow_rank else 1.0
    model = build(options.seed, options.micro_batch_ms / 1e3 * slow)
    judge = build(options.seed, 0.0)
    take_step = sgd(model, rate=0.05, momentum=0.9)
    order = torch.Generator().manual_seed(options.seed)
    watched = sample(list(range(0, SAMPLES, 16)))

    def accumulate(indices: list[int]) -> None:
        x, y = sample(indices)
        nn.functional.mse_loss(model(x), y).backward()

    takeover = Takeover(model, help=backend == "paceline")
    began = time.monotonic()
    loss = 0.0
    for step in range(1, options.steps + 1):
        batch = torch.randperm(SAMPLES, generator=order)[: ranks * options.micro_batches * options.size]
        mine = batch.view(ranks, options.micro_batches, options.size)[rank]
        takeover.run(list(mine), accumulate)
        takeover.reduce()
        take_step()
        if rank == 0:
            judge.load_state_dict(model.state_dict())
            with torch.no_grad():
                loss = float(nn.functional.mse_loss(judge(watched[0]), watched[1]))
            status = {
                "iteration": step,
                "rate": step / (time.monotonic() - began),
                "loss": loss,
                **sums_of(backend),
                **takeover.as_progress(),
            }
            print("PACELINE_STATUS", json.dumps(status))
    dist.barrier()
    takeover.close()
    dist.destroy_process_group()
    if rank == 0:
        print(f"{options.steps} steps over {backend}, loss {loss:.6f}")


if __name__ == "__main__":
    main()
