"""Train a small real model with DistributedDataParallel, over the backend that you name; data is made here.

    torchrun --nproc-per-node 4 examples/train_ddp.py --backend paceline
    torchrun --nproc-per-node 4 examples/train_ddp.py --backend gloo

The task: tell apart the arms of a spiral, seen through a random projection. Everything is seeded: two runs over one
backend give the same losses, and runs over different backends differ by rounding alone. The loss that is shown is the
mean over the ranks.
"""

import argparse
import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

INPUTS, CLASSES = 32, 5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small model with DDP.")
    parser.add_argument("--backend", default="paceline", choices=["paceline", "gloo"])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64, help="examples a rank and step")
    parser.add_argument("--hidden", type=int, default=128, help="width of the two hidden layers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slow", metavar="RANK:FACTOR", help="this rank takes so many times as long a step")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds added to every step")
    parser.add_argument(
        "--remaining", type=float, help="seconds the job still needs: sets its priority in the switch"
    )
    parser.add_argument("--bucket-mb", type=float, default=0.05, help="size of DDP's buckets")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end instead of lines")
    return parser.parse_args()


def spiral(rank: int, batch: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Points on the arms of a spiral, projected into `INPUTS` dimensions."""
    labels = torch.randint(CLASSES, (batch,), generator=generator)
    radius = torch.rand(batch, generator=generator) * 2 + 0.1
    angle = radius * 2 + labels * (6.2832 / CLASSES) + torch.randn(batch, generator=generator) * 0.1
    plane = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    projection = torch.randn(2, INPUTS, generator=torch.Generator().manual_seed(7))
    return plane @ projection, labels


def slowness(text: str | None, rank: int) -> float:
    if not text:
        return 1.0
    who, _, factor = text.partition(":")
    try:
        return max(1.0, float(factor)) if int(who) == rank else 1.0
    except ValueError:
        sys.exit(f'--slow: "{text}" is not RANK:FACTOR')


def train(options: argparse.Namespace) -> dict[str, Any]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    width = options.hidden
    model = torch.nn.Sequential(
        torch.nn.Linear(INPUTS, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, CLASSES),
    )
    parallel = DistributedDataParallel(model, bucket_cap_mb=options.bucket_mb)
    if options.backend == "paceline" and options.remaining:
        from paceline.torch.ddp import PriorityHook

        parallel.register_comm_hook(None, PriorityHook(remaining_s=options.remaining))
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(1000 * options.seed + rank)
    factor = slowness(options.slow, rank)
    losses, ends = [], []
    for step in range(options.steps):
        begin = time.perf_counter()
        examples, labels = spiral(rank, options.batch, generator)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(parallel(examples), labels)
        time.sleep(options.pause + (factor - 1) * (time.perf_counter() - begin))
        loss.backward()
        optimizer.step()
        mean = torch.tensor([loss.item()], dtype=torch.float64)  # not a format of ours: it goes over Gloo
        dist.all_reduce(mean)
        losses.append(mean.item() / ranks)
        ends.append(time.time())
        if rank == 0 and not options.json and (step % 10 == 0 or step == options.steps - 1):
            print(f"step {step:4d}  loss {losses[-1]:.6f}", flush=True)
    checksum = sum(parameter.detach().double().sum().item() for parameter in model.parameters())
    return {"losses": losses, "ends": ends, "checksum": checksum}


def main() -> None:
    options = arguments()
    if options.backend == "paceline":
        import paceline.torch
    torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "1"))))
    torch.use_deterministic_algorithms(True)
    dist.init_process_group(options.backend)
    try:
        result = train(options)
        rank = dist.get_rank()
        if options.backend == "paceline":
            result["status"] = paceline.torch.status()
        if options.json and rank == 0:
            print(
                json.dumps({"backend": options.backend, "ranks": dist.get_world_size(), **result}), flush=True
            )
        elif rank == 0 and options.backend == "paceline":
            print("path", result["status"][0]["path"])
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
