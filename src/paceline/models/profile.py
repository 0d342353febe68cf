"""Profiles of jobs, as `paceline profile` writes them: times of the passes, and when which gradient is released.

`Measured` is what was seen (by hooks, or in a trace), `entry_text` the TOML file of it, `Profile` that file read back.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from paceline import toml
from paceline.models.catalogue import BYTES_PER_PARAMETER, DEFAULT_FLOP_PER_S, Layer, ModelProfile
from paceline.names import shown
from paceline.toml import Name, Section
from paceline.units import Seconds, Size


class ProfileLayer(Section):
    """A gradient, by the time of its release."""

    name: Name
    size: Annotated[Size, Field(gt=0)]
    released: Seconds
    """From the start of the backward pass."""


class ProfileExchange(Section):
    """A step with one exchange of gradients, all workers on one machine: no link limits it, and its processors do."""

    name: Literal["gloo", "switch"]
    step: Annotated[Seconds, Field(gt=0)]
    """From one forward pass to the next: the mean."""
    spread: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Its standard deviation, as a share of it; by the deciles, so that rare long steps do not make it."""
    workers: Annotated[int, Field(gt=1, le=4096)]
    cores: Annotated[int, Field(gt=0, le=4096)]
    """Of that machine."""


class Profile(Section):
    """The whole TOML file; times of one step of one worker."""

    workers: Annotated[int, Field(gt=0)] = 1
    samples: Annotated[int, Field(gt=0)] = 1
    """Of a step and worker."""
    steps: Annotated[int, Field(gt=0)] = 1
    """Measured."""
    forward: Seconds
    backward: Annotated[Seconds, Field(gt=0)]
    processor: Seconds = 0.0
    """Processor time of forward and backward together; 0 where a device computes, or where nobody has looked."""
    jitter: Annotated[float, Field(ge=0, le=10)] = 0.0
    gradient: Annotated[Size, Field(gt=0)]
    """Of all layers together."""
    bucket: Annotated[Size, Field(gt=0)] | None = None
    """Bytes of gradient that are exchanged together, as DistributedDataParallel was told; by default what it does."""
    layers: Annotated[list[ProfileLayer], Field(min_length=1)]
    """In the order of release."""
    exchange: list[ProfileExchange] = []
    """Those that were tried; what they cost beyond the passes is their overhead."""

    @field_validator("layers", mode="after")
    @classmethod
    def _are_whole(cls, layers: list[ProfileLayer], before: ValidationInfo) -> list[ProfileLayer]:
        total, gradient = sum(layer.size for layer in layers), before.data.get("gradient")
        if gradient is not None and total != gradient:
            raise ValueError(
                f"they have {total} bytes together, not gradient = {gradient}: one is missing or changed"
            )
        times = [layer.released for layer in layers]
        if times != sorted(times):
            raise ValueError("they are not in the order of their release")
        return layers

    @field_validator("exchange", mode="after")
    @classmethod
    def _differ(cls, exchanges: list[ProfileExchange]) -> list[ProfileExchange]:
        names = [each.name for each in exchanges]
        if len(set(names)) < len(names):
            raise ValueError(f"{max(names, key=names.count)!r} is there twice")
        return exchanges

    def exchange_by(self, name: str) -> ProfileExchange | None:
        """The step with one exchange, if it was measured."""
        return next((each for each in self.exchange if each.name == name), None)

    def overhead_s(self, name: str) -> float:
        """Processor time of a worker that a step with this exchange takes beside the passes; 0: not measured."""
        seen = self.exchange_by(name)
        if seen is None:
            return 0.0
        return max(0.0, seen.step - self.forward - self.backward) * min(1.0, seen.cores / seen.workers)

    @property
    def releases(self) -> tuple[tuple[float, int], ...]:
        return tuple((layer.released, layer.size) for layer in self.layers)

    @property
    def processor_share(self) -> float:
        """How much of the passes' time a processor works."""
        return min(1.0, self.processor / (self.forward + self.backward))

    def as_model(self, name: str) -> ModelProfile:
        """The same as layers in forward order, for the simulator, at the default speed of a device.

        A gradient's backward time is that since the release before it. Nothing tells how the forward pass is split
        between layers: by their backward times.
        """
        layers: list[Layer] = []
        before_s = 0.0
        for layer in self.layers:
            backward_s = layer.released - before_s
            before_s = layer.released
            forward_s = self.forward * backward_s / self.backward
            flops = [round(time_s * DEFAULT_FLOP_PER_S) for time_s in (forward_s, backward_s)]
            layers.insert(0, Layer(layer.name, max(1, round(layer.size / BYTES_PER_PARAMETER)), *flops))
        model = ModelProfile(name, tuple(layers), 1, f"measured over {_count(self.steps)}")
        return model.fused(self.bucket // BYTES_PER_PARAMETER) if self.bucket else model


@dataclass(frozen=True)
class Measured:
    """What was seen of a training loop."""

    source: str
    """By whom, in a few words."""
    workers: int
    samples: int
    steps: list[tuple[float, list[float]]]
    """Of each step: forward seconds, and when each gradient was ready after the backward pass began."""
    names: list[str]
    """Of the gradients."""
    sizes: list[int]
    """Their bytes."""
    bucket: int | None = None
    """Bytes that are exchanged together, if known."""
    own_s: tuple[float, ...] = ()
    """Of each step what varies by itself, with no wait for others in it; empty: all of it does."""
    processor_s: tuple[float, ...] = ()
    """Of each step the processor time of the passes; empty: a device computes, or nobody has looked."""
    unread: tuple[str, ...] = ()
    """What could not be read, and what was taken instead."""
    exchange: tuple[ProfileExchange, ...] = ()
    """Steps with an exchange, where no link limits them."""


def entry_text(seen: Measured) -> str:
    """The TOML file. Of each time the tenth percentile, as if nothing disturbed; what steps take more is jitter.

    Jitter is taken as even, and its width from the quartiles: a step that waited for a busy machine is not the rule.
    """
    forward_s = _low([forward for forward, _ in seen.steps])
    ready = [_low([row[i] for _, row in seen.steps]) for i in range(len(seen.names))]
    totals = [forward + max(row) for forward, row in seen.steps]
    own = seen.own_s or totals
    spread = (_quantile(own, 0.75) - _quantile(own, 0.25)) / 0.5 / _low(totals)
    lines = [
        f"# Measured over {_count(len(seen.steps))} by {seen.source}; layers in the order of release.",
        *(f"# Not read: {each}." for each in seen.unread),
        f"workers = {seen.workers}",
        f"samples = {seen.samples}",
        f"steps = {len(seen.steps)}",
        f'forward = "{forward_s * 1e6:.3f} us"',
        f'backward = "{max(ready) * 1e6:.3f} us"',
        *([f'processor = "{_low(seen.processor_s) * 1e6:.3f} us"'] if seen.processor_s else []),
        f"jitter = {min(max(spread, 0.0), 10.0):.4f}",
        f"gradient = {sum(seen.sizes)}",
    ]
    if seen.bucket:
        lines.append(f"bucket = {seen.bucket}")
    for number in sorted(range(len(seen.names)), key=lambda i: ready[i]):
        name = _plain(seen.names[number])
        lines += [
            "",
            "[[layers]]",
            f'name = "{name}"',
            f"size = {seen.sizes[number]}",
            f'released = "{ready[number] * 1e6:.3f} us"',
        ]
    return "\n".join(lines) + "\n" + "".join(exchange_text(each) for each in seen.exchange)


def exchange_of(
    name: Literal["gloo", "switch"], steps_s: Sequence[float], workers: int, cores: int
) -> ProfileExchange:
    """The table of steps that took so long."""
    step_s = sum(steps_s) / len(steps_s)
    # Taken as even, as jitter is.
    width_s = (_quantile(steps_s, 0.9) - _quantile(steps_s, 0.1)) / 0.8
    spread = min(10.0, width_s / math.sqrt(12.0) / step_s)
    return ProfileExchange(name=name, step=step_s, spread=spread, workers=workers, cores=cores)


def exchange_text(seen: ProfileExchange) -> str:
    """Its table, the last of the file."""
    step_us = f"{seen.step * 1e6:.3f} us"
    return (
        f'\n[[exchange]]\nname = "{seen.name}"\nstep = "{step_us}"\nspread = {seen.spread:.4f}\n'
        f"workers = {seen.workers}\ncores = {seen.cores}\n"
    )


def _plain(name: str) -> str:
    """A name as a text of TOML takes it as it is."""
    return shown(name).replace("\\", "/").replace('"', "'")


def _count(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[round(share * (len(values) - 1))]


def _low(values: Sequence[float]) -> float:
    return _quantile(values, 0.1)


def load_profile(path: Path) -> Profile:
    """A profile, or one line that names the file, the line and the key."""
    return toml.load(path, Profile)
