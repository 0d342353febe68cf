"""One rank of a live drill that trains, as `live_worker` sums: `python -m paceline.drill.ddp_worker SPEC`.

The same lines go between it and its driver, but the rank finds the switch and the others by itself, as any training job
does. A step is a backward pass of DDP; its gradients follow from the seed alone and come around every few steps, so
their hash must be that of the first round. How long a step takes is what a user's training waits.
"""

import json
import os
import sys
import threading
import time
from typing import Any

import numpy as np

from paceline.drill.live_worker import ROUND, Allowance, WorkerSpec, inputs, tell
from paceline.live.net.sockets import interfaces
from paceline.passport.xxh64 import xxh64

PORT = 29_517
"""Of the Store, at the first rank."""
NEAR = 1e-3
"""A gradient is right if it is that of NumPy but for so much of the largest."""


def main(argument: str) -> None:
    """Train until there is nothing more on standard input."""
    spec = WorkerSpec(**json.loads(argument))
    os.environ |= {
        "RANK": str(spec.worker),
        "WORLD_SIZE": str(spec.workers),
        "MASTER_PORT": str(PORT),
        "PACELINE_SWITCH": spec.control,
        "PACELINE_TOKEN": spec.token,
        "PACELINE_ADDRESS": spec.host,
        "PACELINE_HOST_REDUCE": "0",
        "PACELINE_JOB": "drill",
        "OMP_NUM_THREADS": "1",
    }
    tell(address=[spec.host, 0])
    told = json.loads(sys.stdin.readline())
    os.environ["MASTER_ADDR"] = str(told["peers"][0][0])
    os.environ["GLOO_SOCKET_IFNAME"] = interfaces()[spec.host]
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import paceline.torch

    torch.set_num_threads(1)
    # Turns with even numbers are fractions.
    turns = [
        [inputs(spec.seed, 2 * turn, worker, spec.elements) for worker in range(spec.workers)]
        for turn in range(ROUND)
    ]
    means = [np.mean(turn, axis=0, dtype=np.float64) for turn in turns]
    dist.init_process_group("paceline")
    model = DistributedDataParallel(_product(torch, spec.elements))
    allowance = Allowance()
    threading.Thread(target=allowance.listen, name="allowance", daemon=True).start()
    step = 0
    while allowance.wait_beyond(step):
        time.sleep(spec.pace_s)
        turn = step % ROUND
        model.zero_grad()
        model(torch.from_numpy(turns[turn][spec.worker])).backward()
        gradient = model.module.factors.grad.numpy()
        error = np.abs(gradient - means[turn]).max() / np.abs(means[turn]).max()
        path = str(paceline.torch.status()[0]["path"])
        way = "custodians" if path.startswith("custodian") else path
        tell(step=step, time=time.monotonic(), digest=xxh64(gradient), right=bool(error < NEAR), path=way)
        step += 1
    dist.destroy_process_group()


def _product(torch: Any, elements: int) -> Any:
    """A model of so many factors."""

    class Product(torch.nn.Module):  # type: ignore[misc]
        """Its gradient is its input."""

        def __init__(self) -> None:
            super().__init__()
            self.factors = torch.nn.Parameter(torch.zeros(elements))

        def forward(self, values: Any) -> Any:
            return (self.factors * values).sum()

    return Product()


if __name__ == "__main__":
    main(sys.argv[1])
