"""Train twice under torchrun, with and without takeover, one rank slowed; compare iteration time and weights.

    torchrun --standalone --nproc-per-node 4 examples/train_takeover.py --slow-factor 2.5

Each layer's computation is stretched by a sleep, as on a device that the process waits for; on the slow rank it
sleeps `--slow-factor` times as long. `--backend paceline` sums over Paceline's own process group. Under
`paceline run` it tells its progress; `--train with` or `--train without` trains once only.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.torch.takeover import Report, Takeover

SAMPLES = 4096
FEATURES = 64


def sample(indices: list[int]) -> tuple[Tensor, Tensor]:
    """The data set: any rank can load any sample."""
    x = torch.stack([torch.sin(torch.arange(1, FEATURES + 1) * (0.37 * (i % 257) + 0.01)) for i in indices])
    return x, (x[:, :1] * x[:, 1:2] + 0.3 * x[:, 2:3]).float()


def build(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [
        nn.Linear(FEATURES, 128),
        nn.Tanh(),
        nn.Linear(128, 128),
        nn.Tanh(),
        nn.Linear(128, 1),
    ]
    return nn.Sequential(*layers)


def throttle(model: nn.Module, micro_batch_s: float) -> None:
    """Every layer takes its part of the time that a micro-batch is to take."""
    layers = list(model.children())
    for layer in layers:
        layer.register_forward_hook(lambda *_: time.sleep(micro_batch_s / len(layers)))


def tell(**progress: Any) -> None:
    """A line for `paceline run`, if it is there to read it."""
    path = os.environ.get("PACELINE_STATUS")
    if path and dist.get_rank() == 0:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(progress) + "\n")


def train(options: argparse.Namespace, help: bool) -> tuple[list[float], nn.Module, list[Report]]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = build(options.seed)
    slow = options.slow_factor if rank == options.slow_rank else 1.0
    throttle(model, options.micro_batch_ms / 1e3 * slow)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    order = torch.Generator().manual_seed(options.seed)

    def accumulate(indices: list[int]) -> None:
        x, y = sample(indices)
        nn.functional.mse_loss(model(x), y).backward()

    takeover = Takeover(model, help=help)
    seconds, reports = [], []
    for step in range(options.steps):
        batch = torch.randperm(SAMPLES, generator=order)[: ranks * options.micro_batches * options.size]
        mine = batch.view(ranks, options.micro_batches, options.size)[rank]
        began = time.monotonic()
        reports.append(takeover.run(list(mine), accumulate))
        takeover.reduce()
        optimizer.step()
        seconds.append(time.monotonic() - began)
        progress = {"iteration": step + 1, "rate": 1 / seconds[-1], **takeover.as_progress()}
        if options.backend == "gloo":
            progress["path"] = "ring"
        tell(**progress)
    x, y = sample(list(range(256)))
    with torch.no_grad():
        tell(**progress, loss=float(nn.functional.mse_loss(model(x), y)))
    dist.barrier()
    takeover.close()
    return seconds, model, reports


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--micro-batches", type=int, default=16, help="a rank and iteration")
    parser.add_argument("--size", type=int, default=8, help="samples a micro-batch")
    parser.add_argument(
        "--micro-batch-ms", type=float, default=40.0, help="what a micro-batch takes a healthy rank"
    )
    parser.add_argument("--slow-rank", type=int, default=-1, help="default: the last")
    parser.add_argument("--slow-factor", type=float, default=2.5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train", choices=("both", "with", "without"), default="both")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.backend == "paceline":
        import paceline.torch  # noqa: F401  (registers the backend)
    dist.init_process_group(options.backend)
    options.slow_rank %= dist.get_world_size()

    if options.train != "both":
        seconds, _, _ = train(options, help=options.train == "with")
        if dist.get_rank() == 0:
            print(f"iteration {options.train} takeover {1e3 * statistics.median(seconds[1:]):.1f} ms")
        dist.destroy_process_group()
        return
    without_s, reference, _ = train(options, help=False)
    with_s, model, reports = train(options, help=True)
    difference = max(
        float((a - b).abs().max() / b.abs().max())
        for a, b in zip(model.state_dict().values(), reference.state_dict().values(), strict=True)
    )
    # The first iteration learns how fast everybody is.
    before, after = statistics.median(without_s[1:]), statistics.median(with_s[1:])
    last = reports[-1]
    found = {
        "backend": options.backend,
        "iteration_without_ms": round(before * 1e3, 1),
        "iteration_with_ms": round(after * 1e3, 1),
        "cut": round(1.0 - after / before, 3),
        "weights_differ_relative": difference,
        "taken_over": last.taken_over,
        "computed_by_rank": [len(last.computed_by(rank)) for rank in range(dist.get_world_size())],
    }
    if dist.get_rank() == 0:
        if options.json:
            print(json.dumps({**found, "reasons": last.reasons}))
        else:
            print(
                f"iteration without takeover {found['iteration_without_ms']} ms, with {found['iteration_with_ms']} ms:"
            )
            print(
                f"{100 * found['cut']:.0f} % less; weights differ by {difference:.1e} of the largest weight"
            )
            print(
                f"last iteration: micro-batches by rank {found['computed_by_rank']}, {last.taken_over} taken over"
            )
            for entry in last.reasons:
                print(f"  {entry['reason']}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
