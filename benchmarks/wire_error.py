"""How far 16-bit sums are from the true ones on real gradients, ours and Gloo's: `python -m benchmarks.wire_error`.

The ranks, processes of this machine, train a small transformer on a made-up language. In some of its steps every
rank's gradients, rounded to the type, are summed three times: by our backend over UDP (by custodians, whose bits are
a switch's), by Gloo's ring, and in float64, which is exact here. Shown is the largest error of all those steps: of the
whole vector (L2, over the true sum's), of a single number (over the largest), and of numbers over themselves (median,
99 %). The exit code is 1 if one of ours is larger than Gloo's.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn

from paceline.ports import free_port

WORDS, WIDTH, LAYERS, LENGTH, BATCH = 512, 128, 2, 64, 4
FIGURES = ("L2", "largest", "median", "99 %")


class Model(nn.Module):
    """A transformer that guesses the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        mask = torch.triu(torch.full((LENGTH, LENGTH), float("-inf")), 1)
        logits: torch.Tensor = self.head(self.body(self.embed(words), mask=mask))
        return logits


def batches(rank: int) -> Iterator[torch.Tensor]:
    """Texts whose words are as unequally frequent as in a language; every second word follows from the one before."""
    generator = torch.Generator().manual_seed(rank)
    frequency = 1.0 / torch.arange(1, WORDS + 1).expand(BATCH, -1)
    while True:
        words = torch.multinomial(frequency, LENGTH + 1, replacement=True, generator=generator)
        words[:, 1::2] = (words[:, 0:-1:2] * 7 + 3) % WORDS
        yield words


def errors(values: torch.Tensor, true: torch.Tensor) -> list[float]:
    """The figures of `FIGURES`."""
    error = (values.double() - true).abs()
    relative = (error / true.abs())[true != 0]
    return [
        float(error.norm() / true.norm()),
        float(error.max() / true.abs().max()),
        *(float(relative.quantile(share)) for share in (0.5, 0.99)),
    ]


def train(rank: int, ranks: int, port: int, dtype: str, steps: int, every: int, answer: Any) -> None:
    """One rank; the first one answers with the worst figures of our sums and of Gloo's."""
    import paceline.torch  # noqa: F401 (registers the backend)

    torch.set_num_threads(1)
    os.environ |= {"PACELINE_HOST_REDUCE": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("paceline", rank=rank, world_size=ranks)
    gloo = dist.new_group(backend="gloo")
    torch.manual_seed(1)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    texts = batches(rank)
    worst = torch.zeros(2, len(FIGURES))
    for step in range(steps):
        words = next(texts)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        ours = gradient.to(getattr(torch, dtype))
        theirs, true = ours.clone(), ours.double()
        dist.all_reduce(ours)
        if step % every == 0:
            dist.all_reduce(theirs, group=gloo)
            dist.all_reduce(true, group=gloo)
            worst = torch.maximum(worst, torch.tensor([errors(ours, true), errors(theirs, true)]))
        at = 0
        for parameter in model.parameters():
            part = ours[at : at + parameter.numel()].float() / ranks
            parameter.grad = part.view_as(parameter)
            at += parameter.numel()
        optimizer.step()
    if rank == 0:
        answer.put((gradient.numel(), float(loss), worst.tolist()))
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--steps", type=int, default=61)
    parser.add_argument("--every", type=int, default=10, help="steps from one comparison to the next")
    options = parser.parse_args()
    answer: Any = multiprocessing.get_context("spawn").SimpleQueue()
    arguments = (options.workers, free_port(), options.dtype, options.steps, options.every, answer)
    processes: Any = multiprocessing
    processes.spawn(train, arguments, options.workers)
    numbers, loss, (ours, theirs) = answer.get()
    print(
        f"{options.workers} workers, {numbers} gradients in {options.dtype}, {options.steps} steps, loss {loss:.2f}"
    )
    print(f"{'error':10} {'ours':>10} {'Gloo':>10} {'ratio':>6}")
    for name, mine, other in zip(FIGURES, ours, theirs, strict=True):
        print(f"{name:10} {mine:10.2e} {other:10.2e} {mine / other:6.2f}")
    return 1 if any(mine > other for mine, other in zip(ours, theirs, strict=True)) else 0


if __name__ == "__main__":
    sys.exit(main())
