"""A training loop as the trainers of large models have it, over Paceline: one word of `init_process_group`.

    torchrun --standalone --nproc-per-node 2 examples/frameworks/trainer_loop.py

A sampler a rank, gradient accumulation under `no_sync`, autocast to bfloat16, gradient clipping, a schedule for the
learning rate, and a checkpoint that rank 0 writes and all load.
"""

import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from spirals import build, dataset, loss_of
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, DistributedSampler

EPOCHS, ACCUMULATED = 6, 2


def main() -> None:
    dist.init_process_group("paceline")  # the one change
    model = DistributedDataParallel(build())
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(dataset(), seed=3)
    loader = DataLoader(dataset(), batch_size=16, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = OneCycleLR(optimizer, max_lr=0.02, total_steps=EPOCHS * len(loader) // ACCUMULATED)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for number, batch in enumerate(loader, start=1):
            last = number % ACCUMULATED == 0
            with nullcontext() if last else model.no_sync():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = loss_of(model, batch)
                (loss / ACCUMULATED).backward()
            if last:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    path = Path(folder[0]) / "model.pt"
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), path)
    dist.barrier()
    model.module.load_state_dict(torch.load(path))
    mean = loss.detach().float()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    if dist.get_rank() == 0:
        print(
            f"backend {dist.get_backend()}, ranks {dist.get_world_size()}, loss {float(mean):.4f}", flush=True
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
