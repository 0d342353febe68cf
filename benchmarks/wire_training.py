"""The loss of a training whose float32 gradients travel in 16 bits: `python -m benchmarks.wire_training`.

A small transformer is trained on a made-up language (`benchmarks.wire_error`), by ranks that are processes of this
machine, four times from the same weights, with the same texts: over Gloo, over our backend in 32 bits, in 16 bits with
error feedback (`PACELINE_WIRE=16`), and in 16 bits without (each step's gradients are a tensor of their own, so none
has one before). Shown is the loss on texts that nobody trains on, in the course of the training.
"""

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn

from benchmarks.wire_error import Model, batches
from paceline.ports import free_port

WAYS = {"Gloo": "gloo", "32 bits": "32", "16 bits": "16", "16 bits, no feedback": "16"}
TEXTS = 16
"""Batches of the texts that nobody trains on."""


def loss_of(model: nn.Module, words: torch.Tensor) -> torch.Tensor:
    """Of the next word's guesses."""
    guesses = model(words[:, :-1])
    return nn.functional.cross_entropy(guesses.flatten(0, 1), words[:, 1:].flatten())


def train(rank: int, ranks: int, port: int, way: str, options: Any, answer: Any) -> None:
    """One rank; the first one answers with the losses."""
    import paceline.torch  # noqa: F401 (registers the backend)

    torch.set_num_threads(1)
    os.environ |= {"PACELINE_HOST_REDUCE": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if WAYS[way] != "gloo":
        os.environ["PACELINE_WIRE"] = WAYS[way]
    dist.init_process_group("gloo" if way == "Gloo" else "paceline", rank=rank, world_size=ranks)
    torch.manual_seed(1)
    model = Model()
    optimizer = getattr(torch.optim, options.optimizer)(model.parameters(), options.rate)
    texts, unseen = batches(rank), batches(ranks)
    judged = [next(unseen) for _ in range(TEXTS)]
    bucket = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    losses = []
    for step in range(options.steps + 1):
        if rank == 0 and step % options.every == 0:
            with torch.no_grad():
                losses.append(sum(float(loss_of(model, words)) for words in judged) / TEXTS)
        optimizer.zero_grad()
        loss_of(model, next(texts)).backward()  # type: ignore[no-untyped-call]
        torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None], out=bucket)
        summed = bucket.clone() if way.endswith("no feedback") else bucket
        dist.all_reduce(summed)
        at = 0
        for parameter in model.parameters():
            parameter.grad = (summed[at : at + parameter.numel()] / ranks).view_as(parameter)
            at += parameter.numel()
        optimizer.step()
    if rank == 0:
        answer.put(losses)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=100, help="steps from one look at the loss to the next")
    parser.add_argument("--optimizer", default="Adam", help="a name of torch.optim")
    parser.add_argument("--rate", type=float, default=1e-3, help="of learning")
    parser.add_argument("--way", action="append", choices=list(WAYS), help="only this one; repeat")
    options = parser.parse_args()
    processes: Any = multiprocessing
    print(f"{'loss after':22}" + "".join(f"{step:>9}" for step in range(0, options.steps + 1, options.every)))
    for way in options.way or WAYS:
        answer: Any = processes.get_context("spawn").SimpleQueue()
        processes.spawn(train, (options.workers, free_port(), way, options, answer), options.workers)
        print(f"{way:22}" + "".join(f"{loss:9.4f}" for loss in answer.get()), flush=True)


if __name__ == "__main__":
    main()
