"""The data set and the model of the examples beside this file: arms of a spiral, to be told apart."""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

CLASSES = 3


def dataset(size: int = 512) -> TensorDataset:
    """Points on the arms, and the arm of each; the same on every rank."""
    generator = torch.Generator().manual_seed(7)
    labels = torch.randint(CLASSES, (size,), generator=generator)
    radius = torch.rand(size, generator=generator) * 2 + 0.1
    angle = radius * 2 + labels * (6.2832 / CLASSES) + torch.randn(size, generator=generator) * 0.05
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], 1), labels)


def build() -> nn.Module:
    """The same first weights on every rank."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, CLASSES))


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)
