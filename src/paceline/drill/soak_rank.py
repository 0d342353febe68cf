"""One rank of a soak: a small DDP training that goes on until its file of steps says where it ends.

    python -m paceline.drill.soak_rank STEPS_FILE NAME PACE_S

All ranks must end at one step: every few steps rank 0 reads the file, writes how far they are beside it, and tells the
others.
"""

import contextlib
import sys
import time
import zlib
from pathlib import Path
from typing import Any

FAR = 1 << 30


def main(file: Path, name: str, pace_s: float) -> None:
    """Train, and wait so long in every step."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import paceline.torch  # noqa: F401 (the backend)

    torch.set_num_threads(1)
    dist.init_process_group("paceline")
    rank = dist.get_rank()
    seed = zlib.crc32(name.encode())
    torch.manual_seed(seed)
    layers: Any = [torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step, last = 0, torch.full((1,), FAR, dtype=torch.int32)
    while step < int(last.item()):
        generator = torch.Generator().manual_seed(seed + 1000 * step + rank)
        loss = model(torch.randn(16, 64, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(pace_s)
        step += 1
        if step % 50 == 0:
            last = torch.zeros(1, dtype=torch.float64)
            if rank == 0:
                last[0] = _wanted(file)
                file.with_name(file.name + ".done").write_text(str(step), encoding="ascii")
            dist.broadcast(last, 0)  # over Gloo: it has no place in the passport
    dist.barrier()
    dist.destroy_process_group()


def _wanted(file: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(file.read_text(encoding="ascii"))
    return FAR


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
