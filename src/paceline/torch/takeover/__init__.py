"""Ranks that are done compute micro-batches of a slow one; the sum is exact synchronous SGD (`docs/takeover.md`)."""

from paceline.torch.takeover.api import Report, TakenOverError, Takeover
from paceline.torch.takeover.client import TakeoverError

__all__ = ["Report", "TakenOverError", "Takeover", "TakeoverError"]
