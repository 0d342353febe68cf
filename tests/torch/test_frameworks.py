"""The examples for frameworks run, under torchrun, over Paceline; each where its package is installed."""

import importlib.util
import os
import re
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.torch.ranks import ROOT


def run_example(name: str, *options: str, **env: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(ROOT / "examples" / "frameworks" / name), *options],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **env},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("lightning_fit.py", "lightning"),
        ("accelerate_loop.py", "accelerate"),
        ("trainer_loop.py", "torch"),
    ],
)
def test_an_example_trains_over_paceline(name: str, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    found: Any = re.search(r"backend (\w+), ranks (\d), loss ([\d.]+)", run_example(name))
    assert found, "the example says what it used"
    assert found.groups()[:2] == ("paceline", "2")
    assert float(found[3]) < 0.9, "less than the 1.1 of a guess"


def test_takeover_in_a_whole_loop_gives_the_weights_of_the_plain_one() -> None:
    ends = []
    for options in ([], ["--plain"]):
        found: Any = re.search(r"weights (\S+) (\S+)", run_example("takeover_loop.py", *options))
        ends.append((float(found[1]), float(found[2])))
    assert ends[0] == pytest.approx(ends[1], rel=1e-3)
