"""`examples/train_ddp.py`, but every rank waits before its first step until the file `GATE/go` is there.

So two jobs train at the same time, however long each took to start. `GATE` is a variable of the environment."""

import importlib.util
import os
import time
from pathlib import Path
from typing import Any


def main() -> None:
    spec = importlib.util.spec_from_file_location(
        "train_ddp", Path(__file__).parents[2] / "examples/train_ddp.py"
    )
    assert spec is not None
    assert spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    train = example.train
    gate = Path(os.environ["GATE"])

    def gated(options: Any) -> Any:
        (gate / f"ready-{os.getpid()}").touch()
        end = time.monotonic() + 150
        while not (gate / "go").exists() and time.monotonic() < end:
            time.sleep(0.01)
        return train(options)

    example.train = gated
    example.main()


if __name__ == "__main__":
    main()
