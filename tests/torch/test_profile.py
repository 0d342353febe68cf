"""`paceline profile`: an unchanged script becomes a job entry; a script that does not train is told so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.models.kineto import read_kineto
from paceline.models.profile import load_profile
from tests.commands.command_line import paceline

SCRIPT = """\
import torch
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(STEPS):
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
"""


def run(folder: Path, patch: pytest.MonkeyPatch, steps_done: int) -> tuple[int, Path]:
    script, out = folder / "train.py", folder / "out" / "mlp.toml"
    script.write_text(SCRIPT.replace("STEPS", str(steps_done)), encoding="utf-8")
    code = paceline(patch, "profile", "--steps", "5", "--out", str(out), "--", sys.executable, str(script))
    return code, out


def test_an_unchanged_script_becomes_a_job_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out = run(tmp_path, monkeypatch, 12)
    assert code == 0
    profile = load_profile(out)
    assert profile.samples == 8
    assert profile.steps == 5
    assert profile.gradient == 4 * (16 * 64 + 64 + 64 * 4 + 4)
    # The last layer's gradients are ready first.
    assert {layer.name for layer in profile.layers[:2]} == {"2.weight", "2.bias"}
    assert profile.layers[-1].released == profile.backward
    # It computes on the processor, and waits for nobody.
    assert 0.5 < profile.processor_share <= 1.0


def test_a_script_with_too_few_steps_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = run(tmp_path, monkeypatch, 2)
    assert code == 2
    assert not out.exists()
    assert "no PyTorch training loop of 5 steps was seen" in capsys.readouterr().err


def test_a_command_that_is_not_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = paceline(
        monkeypatch, "profile", "--out", str(tmp_path / "p.toml"), "--", str(tmp_path / "nothing")
    )
    assert code == 2
    assert "could not be run" in capsys.readouterr().err


TRACED = """\
import sys
import torch
from torch.profiler import ProfilerActivity, profile, schedule
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=0, warmup=1, active=3),
    record_shapes=True,
    on_trace_ready=lambda each: each.export_chrome_trace(sys.argv[1]),
) as profiler:
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        profiler.step()
"""


def test_a_trace_of_the_same_loop_has_the_same_gradients(tmp_path: Path) -> None:
    """The profiler's own trace, and what is read from it."""
    trace = tmp_path / "trace.json"
    subprocess.run([sys.executable, "-c", TRACED, str(trace)], check=True, timeout=120)
    seen = read_kineto(trace)
    assert len(seen.steps) == 3
    assert sorted(seen.sizes) == sorted(4 * count for count in (16 * 64, 64, 64 * 4, 4))
    # The last layer's gradients are ready first.
    assert set(seen.sizes[:2]) == {4 * 64 * 4, 4 * 4}
    assert all(released_s > 0 for _, row in seen.steps for released_s in row)


RANKS = """\
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(16):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_ranks_of_one_machine_tell_whole_steps_over_gloo_and_over_a_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, out = tmp_path / "train.py", tmp_path / "p.toml"
    script.write_text(RANKS, encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["--steps", "10", "--switch", "--out", str(out)]
    assert paceline(monkeypatch, "profile", *options, "--", *torchrun, str(script)) == 0
    profile = load_profile(out)
    for name in ("gloo", "switch"):
        seen = profile.exchange_by(name)
        assert seen is not None
        assert (seen.workers, seen.cores) == (2, len(os.sched_getaffinity(0)))
        # A step has its passes, and more.
        assert seen.step > profile.backward
    assert not list(tmp_path.glob("*.switch"))


def test_a_script_that_uses_no_ranks_cannot_be_run_over_a_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("STEPS", "12"), encoding="utf-8")
    command = ["--", sys.executable, str(script)]
    code = paceline(
        monkeypatch, "profile", "--switch", "--steps", "5", "--out", str(tmp_path / "p.toml"), *command
    )
    assert code == 2
    assert "did not go over the switch" in capsys.readouterr().err
