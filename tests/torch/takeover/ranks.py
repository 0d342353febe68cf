"""One rank of a takeover test: `python ranks.py SCENE RANK RANKS FOLDER`; leaves RANK.json in FOLDER."""

import datetime
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from paceline.torch.takeover import Takeover, TakeoverError, keeper

COUNTS = (6, 5, 7)
"""Micro-batches by rank; not the same for all."""


def build() -> nn.Module:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    model.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    return model


def loss_of(model: nn.Module, indices: list[int]) -> torch.Tensor:
    x = torch.tensor([[i, i * i % 7, 1.0, i % 3] for i in indices], dtype=torch.float64) / 10
    return model(x).square().mean()


def micro_batches(owner: int, step: int, counts: tuple[int, ...] = COUNTS) -> list[list[int]]:
    return [[100 * owner + 10 * step + m, m] for m in range(counts[owner])]


def reference(ranks: int, steps: int) -> nn.Module:
    """Synchronous SGD in one process."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for step in range(steps):
        listed = [indices for owner in range(ranks) for indices in micro_batches(owner, step)]
        optimizer.zero_grad()
        for indices in listed:
            (loss_of(model, indices) / len(listed)).backward()
        optimizer.step()
    return model


def train(rank: int, ddp: bool, slow_layer: bool, turns_slow: bool = False) -> dict[str, Any]:
    """Five iterations at random speeds, with a rank that is stuck in a layer, or with one that turns slow in the third.

    The weights and who did what.
    """
    model = build()
    bare = model
    if ddp:
        model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    speeds = random.Random(rank)
    layers = []

    def stuck(*_: Any) -> None:
        layers.append(1)
        time.sleep(0.5)

    if slow_layer and rank == 1:
        bare[0].register_forward_hook(stuck)
    takeover = Takeover(model, timeout_s=150, lease_s=5, keeper=1)
    computed, reports = [], []
    for step in range(5):

        def accumulate(indices: list[int]) -> None:
            if turns_slow:
                time.sleep(0.4 if rank == 2 and step >= 2 else 0.02)  # noqa: B023
            elif not slow_layer:
                time.sleep(speeds.choice([0.0, 0.001, 0.01, 0.05 * rank]))
            loss_of(model, indices).backward()

        report = takeover.run(micro_batches(rank, step), accumulate)
        takeover.reduce()
        optimizer.step()
        computed.append(report.computed_by(rank))
        reports.append(
            {"shares": report.shares, "reasons": report.reasons, "thrown_away": report.thrown_away}
        )
    dist.barrier()
    takeover.close()
    unused = bare.get_parameter("unused").grad is None
    weights = [p.tolist() for p in bare.parameters()]
    return {
        "weights": weights,
        "computed": computed,
        "reports": reports,
        "unused": unused,
        "layers": len(layers),
    }


def wait_for_file(path: Path) -> None:
    until = time.monotonic() + 150
    while not path.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{path.name} did not come")
        time.sleep(0.01)


def lose(rank: int, dying: int, folder: Path) -> dict[str, Any]:
    """One iteration in which a rank ends in the middle of its third micro-batch.

    The others stay in their first until it has ended: however slow it is, nobody takes over its work before.
    """
    model = build()
    takeover = Takeover(model, timeout_s=150, lease_s=5)
    started = []
    began = time.monotonic()

    def accumulate(indices: list[int]) -> None:
        nonlocal began
        started.append(indices)
        if rank == dying and len(started) == 3:
            os._exit(7)
        if rank != dying:
            wait_for_file(folder / "ended")
            began = time.monotonic() if len(started) == 1 else began
        loss_of(model, indices).backward()

    try:
        report = takeover.run(micro_batches(rank, 0), accumulate)
    except TakeoverError as error:
        return {"error": str(error), "seconds": time.monotonic() - began}
    gradient = [None if p.grad is None else p.grad.tolist() for p in model.parameters()]
    return {"shares": report.shares, "gone": report.gone, "reasons": report.reasons, "gradient": gradient}


def main() -> None:
    scene, rank, ranks, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    if scene == "turns slow":
        # Whatever else this machine does, they begin without claims.
        keeper.Keeper._alike = lambda *_: True  # type: ignore[method-assign]
    limit = datetime.timedelta(seconds=150)
    dist.init_process_group("gloo", f"file://{folder / 'store'}", limit, rank=rank, world_size=ranks)
    scenes: dict[str, Any] = {
        "speeds": lambda: train(rank, ddp=False, slow_layer=False),
        "stuck": lambda: train(rank, ddp=True, slow_layer=True),
        "turns slow": lambda: train(rank, ddp=False, slow_layer=False, turns_slow=True),
        "helper": lambda: lose(rank, 2, folder),
        "keeper": lambda: lose(rank, 0, folder),
    }
    (folder / f"{rank}.json").write_text(json.dumps(scenes[scene]()), encoding="utf-8")
    if scene == "helper":
        # The keeper must not end before the other has heard that the iteration is over.
        wait_for_file(folder / f"{1 - rank}.json")
    # The group may have lost a member: no farewell.
    os._exit(0)


if __name__ == "__main__":
    main()
