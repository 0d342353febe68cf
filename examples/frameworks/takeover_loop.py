"""Takeover in a whole loop: a `DataLoader`'s sampler, autocast, gradient clipping, a schedule for the learning rate.

    torchrun --standalone --nproc-per-node 2 examples/frameworks/takeover_loop.py [--plain]

`--plain` is the loop as it was. Both end with the same weights, up to the order of the sums; docs/takeover.md has the
lines that differ.
"""

import argparse
from itertools import islice

import torch
import torch.distributed as dist
from spirals import build, dataset, loss_of
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, default_collate

from paceline.torch.takeover import Takeover

EPOCHS, ACCUMULATED, BATCH = 3, 4, 8


def plain(model: torch.nn.Module, sampler: BatchSampler) -> None:
    """One micro-batch after another, then an average over the ranks."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(dataset(), batch_sampler=sampler)
    schedule = OneCycleLR(optimizer, max_lr=0.02, total_steps=EPOCHS * len(loader) // ACCUMULATED)
    for epoch in range(EPOCHS):
        sampler.sampler.set_epoch(epoch)
        batches = iter(loader)
        for _ in range(len(loader) // ACCUMULATED):
            optimizer.zero_grad()
            for batch in islice(batches, ACCUMULATED):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = loss_of(model, batch)
                (loss / ACCUMULATED).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()


def with_takeover(model: torch.nn.Module, sampler: BatchSampler) -> None:
    """The same, but the micro-batches go to `Takeover` as indices, and any rank can load them."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = OneCycleLR(optimizer, max_lr=0.02, total_steps=EPOCHS * len(sampler) // ACCUMULATED)
    samples = dataset()
    takeover = Takeover(model)

    def accumulate(indices: list[int]) -> None:
        batch = default_collate([samples[index] for index in indices])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, batch)
        loss.backward()

    for epoch in range(EPOCHS):
        sampler.sampler.set_epoch(epoch)
        batches = iter(sampler)
        for _ in range(len(sampler) // ACCUMULATED):
            takeover.run(list(islice(batches, ACCUMULATED)), accumulate)
            takeover.reduce()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    takeover.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plain", action="store_true", help="the loop as it was")
    options = parser.parse_args()
    dist.init_process_group("paceline")
    model = build()
    sampler = BatchSampler(DistributedSampler(dataset(), seed=3), BATCH, drop_last=True)
    (plain if options.plain else with_takeover)(model, sampler)
    if dist.get_rank() == 0:
        weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        print(f"weights {float(weights.sum()):.4f} {float(weights.abs().sum()):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
