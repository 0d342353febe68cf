"""Points that leave a mark each time they run, for the tests of the harness; importable by spawned processes."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Counted:
    """A number to square; each run leaves a file in the folder."""

    number: int
    folder: str
    factor: float = 1.0
    dies: bool = False
    waits_s: float = 0.0


def square(point: Counted) -> dict[str, Any]:
    if point.dies and not (Path(point.folder) / "healed").exists():
        if point.waits_s:
            # Somebody else's result is to be on disk first.
            time.sleep(point.waits_s)
        os._exit(9)
    time.sleep(point.waits_s)
    runs = Path(point.folder) / f"{point.number}-{point.factor}"
    with runs.open("a") as file:
        file.write("run\n")
    return {
        "number": point.number,
        "square": np.float64(point.factor * point.number**2 / 3.0),
        "odd": np.bool_(point.number % 2),
        "list": (1, 2),
        "none": None,
    }


def runs(folder: Path) -> dict[str, int]:
    return {path.name: len(path.read_text().splitlines()) for path in folder.glob("*-*")}
