"""Steps are counted where a program takes them: by optimizers, else by the period of its all-reduces."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from paceline.torch.progress import ProgressWriter, StepsByReductions, period_of
from tests.torch.ranks import ROOT

SCRIPT = """
import os, sys
import paceline.torch_autoload as entry
import torch, torch.distributed as dist
entry.autoload()
backend, how = sys.argv[1:3]
dist.init_process_group(backend, init_method="file://" + sys.argv[3], rank=0, world_size=1)
layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
for _ in range(int(sys.argv[4])):
    layers.zero_grad()
    layers(torch.ones(4, 8)).sum().backward()
    for parameter in layers.parameters():
        dist.all_reduce(parameter.grad)
    if how == "optimizer":
        optimizer.step()
    else:
        for parameter in layers.parameters():
            parameter.data -= 0.1 * parameter.grad
from paceline.torch.progress import path_of_groups
print(path_of_groups()["path"])
if how == "optimizer":
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("backend", ["gloo", "paceline"])
@pytest.mark.parametrize(("how", "counted"), [("optimizer", "optimizer steps"), ("by hand", "all-reduces")])
def test_a_script_that_tells_nothing_is_counted(tmp_path: Path, backend: str, how: str, counted: str) -> None:
    path = tmp_path / "progress-0"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PACELINE_PROGRESS": str(path), "RANK": "0"}
    command = [sys.executable, "-c", SCRIPT, backend, how, str(tmp_path / "store"), "12"]
    began = time.time()
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(path.read_text())
    assert (told["iteration"], told["counted"]) == (12, counted)
    assert told["path"] == done.stdout.strip() != "paceline", "also of a group that was left at the end"
    assert began < told["trains_since"] < time.time(), "what was before is start-up"
    assert sorted(tmp_path.glob(".progress*")) == [], "nothing half written is left"


def test_other_ranks_tell_how_long_they_compute_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "progress-1"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PACELINE_PROGRESS": str(path), "RANK": "1"}
    command = [sys.executable, "-c", SCRIPT, "gloo", "optimizer", str(tmp_path / "store"), "4"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(path.read_text())
    assert list(told) == ["pace_s"]
    assert 0.0 < told["pace_s"] < 60.0


@pytest.mark.parametrize("iteration", [[5], [5, 5, 7], [1] * 40 + [9], [3, 4, 3, 4, 8]])
@pytest.mark.parametrize("cut", [0, 1])
def test_an_iteration_is_a_period_of_the_reductions(iteration: list[int], cut: int) -> None:
    steps = StepsByReductions()
    for size in [77, *iteration * 10, *iteration[:cut]]:
        steps.add((size, "float32", "sum"))
    found = steps.steps()
    assert found is not None
    assert found == (1 + 10 * len(iteration) + cut) // len(iteration), (
        "what comes before the first counts too"
    )


def test_the_first_iterations_of_ddp_have_other_buckets() -> None:
    steps = StepsByReductions()
    for size in [9, 9, 9, 9] + [4, 5] * 30:
        steps.add(size)
    assert steps.steps() == 32, "four buckets count as two iterations of two"


def test_a_short_odd_time_does_not_change_the_count() -> None:
    steps = StepsByReductions()
    for size in [4, 5] * 30:
        steps.add(size)
    assert steps.steps() == 30
    for size in [1, 4, 5, 4, 5]:
        steps.add(size)
    assert steps.steps() == 32


def test_reductions_without_a_period_are_not_counted() -> None:
    assert period_of(list(range(100))) is None
    assert period_of([]) is None
    assert StepsByReductions().steps() is None


def test_of_several_optimizers_that_which_steps_most_counts(tmp_path: Path) -> None:
    writer = ProgressWriter(tmp_path / "progress-0")
    optimizer, other = object(), object()
    for i in range(100):
        writer.optimizer_stepped(optimizer, (), {})
        if i % 2:
            writer.optimizer_stepped(other, (), {})
    writer.flush()
    assert json.loads((tmp_path / "progress-0").read_text())["iteration"] == 100


def test_the_rate_is_that_of_the_last_seconds(tmp_path: Path) -> None:
    now = 0.0
    writer = ProgressWriter(tmp_path / "progress-0", clock=lambda: now)
    optimizer = object()
    for _ in range(20):
        now += 1.0
        writer.optimizer_stepped(optimizer, (), {})
    for _ in range(80):
        now += 0.25
        writer.optimizer_stepped(optimizer, (), {})
    told = json.loads((tmp_path / "progress-0").read_text())
    assert told["rate"] == pytest.approx(4.0, rel=0.05), "what was slow long ago is forgotten"


def test_a_folder_that_is_gone_is_no_error(tmp_path: Path) -> None:
    writer = ProgressWriter(tmp_path / "gone" / "progress-0")
    writer.optimizer_stepped(object(), (), {})
    writer.flush()
