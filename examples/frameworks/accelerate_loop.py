"""Accelerate over Paceline: the group is made before Accelerate looks for one.

    pip install accelerate
    torchrun --standalone --nproc-per-node 2 examples/frameworks/accelerate_loop.py

Without the marked line, `PACELINE_BACKEND=auto` does the same: Accelerate asks for Gloo and gets Paceline.
"""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from spirals import build, dataset, loss_of
from torch.utils.data import DataLoader

if __name__ == "__main__":
    dist.init_process_group("paceline")  # the one change
    accelerator = Accelerator(cpu=True)
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(dataset(), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(4):
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    mean = accelerator.reduce(loss.detach(), "mean")
    if accelerator.is_main_process:
        ranks = accelerator.num_processes
        print(f"backend {dist.get_backend()}, ranks {ranks}, loss {float(mean):.4f}", flush=True)
    dist.destroy_process_group()
