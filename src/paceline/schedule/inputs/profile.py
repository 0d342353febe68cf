"""Profiles of jobs, as `paceline profile` writes them: times of the passes, and when which gradient is released."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from paceline import toml
from paceline.toml import Section
from paceline.units import Seconds, Size


class ProfileLayer(Section):
    """A gradient, by the time of its release."""

    name: str
    size: Annotated[Size, Field(gt=0)]
    released: Seconds
    """From the start of the backward pass."""


class Profile(Section):
    """The whole TOML file; times of one step of one worker."""

    workers: Annotated[int, Field(gt=0)] = 1
    samples: Annotated[int, Field(gt=0)] = 1
    """Of a step and worker."""
    steps: Annotated[int, Field(gt=0)] = 1
    """Measured."""
    forward: Seconds
    backward: Annotated[Seconds, Field(gt=0)]
    jitter: Annotated[float, Field(ge=0, le=10)] = 0.0
    gradient: Annotated[Size, Field(gt=0)]
    """Of all layers together."""
    layers: Annotated[list[ProfileLayer], Field(min_length=1)]
    """In the order of release."""

    @model_validator(mode="after")
    def _is_whole(self) -> "Profile":
        total = sum(layer.size for layer in self.layers)
        if total != self.gradient:
            raise ValueError(
                f"the layers have {total} bytes together, not gradient = {self.gradient}: one is missing or changed"
            )
        times = [layer.released for layer in self.layers]
        if times != sorted(times):
            raise ValueError("the layers are not in the order of their release")
        return self

    @property
    def releases(self) -> tuple[tuple[float, int], ...]:
        return tuple((layer.released, layer.size) for layer in self.layers)


def load_profile(path: Path) -> Profile:
    """A profile, or one line that names the file, the line and the key."""
    return toml.load(path, Profile)
