"""Traces of the PyTorch profiler: what a profile takes from them, what is named as missing, and what is no trace."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.models.kineto import read_kineto
from paceline.models.profile import entry_text, load_profile
from tests.commands.command_line import paceline

NODE = "autograd::engine::evaluate_function: AddmmBackward0"
GRADIENT = "torch::autograd::AccumulateGrad"


def span(name: str, ts: float, dur: float, cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "pid": 1, "tid": 1, "args": args}


def gradient(ts: float, shape: list[int], kind: str = "float") -> dict[str, Any]:
    return span(GRADIENT, ts, 10, **{"Input Dims": [shape], "Input type": [kind]})


def step(at: float, number: int = 0, late: float = 0.0) -> list[dict[str, Any]]:
    """100 us of forward, 200 of backward with two gradients, 50 of waiting, 30 of the optimizer."""
    return [
        span(f"ProfilerStep#{number}", at, 380 + late, "user_annotation"),
        span("aten::linear", at + 5, 80),
        span(NODE, at + 100, 90 + late),
        gradient(at + 140 + late, [64, 4]),
        span(NODE, at + 200 + late, 100),
        gradient(at + 290 + late, [16, 64], "c10::BFloat16"),
        span("Optimizer.step#SGD.step", at + 350 + late, 30, "user_annotation"),
    ]


def write(folder: Path, events: list[Any], **more: Any) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, **more}))
    return path


def test_passes_and_gradients_of_the_steps(tmp_path: Path) -> None:
    events = [{"ph": "M", "name": "process_name"}, *step(1e9), *step(1e9 + 400, 1, 40.0), *step(1e9 + 900, 2)]
    seen = read_kineto(write(tmp_path, events, distributedInfo={"world_size": 4}))
    assert seen.workers == 4
    assert seen.sizes == [4 * 64 * 4, 2 * 16 * 64]
    assert [forward for forward, _ in seen.steps] == pytest.approx([130e-6] * 3, abs=1e-9)
    assert seen.steps[0][1] == pytest.approx([50e-6, 200e-6], abs=1e-9)
    (tmp_path / "p.toml").write_text(entry_text(seen))
    profile = load_profile(tmp_path / "p.toml")
    assert profile.backward == pytest.approx(200e-6, abs=1e-9)
    assert profile.gradient == 1024 + 2048
    assert profile.jitter > 0
    assert any("samples" in each for each in seen.unread)
    assert not any("workers" in each or "shapes" in each for each in seen.unread)


def test_on_a_device_kernels_tell_when_gradients_are_ready(tmp_path: Path) -> None:
    """Launched at 150, the kernel of the first gradient ends at 500; sums over all ranks do not count."""
    events = [
        *step(0.0),
        span("cudaLaunchKernel", 145, 2, "cuda_runtime", correlation=7),
        span("ampere_sgemm", 400, 100, "kernel", correlation=7),
        span("cudaLaunchKernel", 146, 2, "cuda_runtime", correlation=8),
        span("ncclDevKernel_AllReduce_Sum_f32", 500, 900, "kernel", correlation=8),
    ]
    seen = read_kineto(write(tmp_path, events))
    assert seen.steps[0][1] == pytest.approx([400e-6, 400e-6])


def test_without_shapes_the_all_reduces_are_taken(tmp_path: Path) -> None:
    events = [each for each in step(0.0) if each["name"] != GRADIENT]
    comms = {"Collective name": "allreduce", "In msg nelems": 500, "dtype": "Float"}
    events += [span(GRADIENT, 140, 10), span("record_param_comms", 180, 5, **comms)]
    seen = read_kineto(write(tmp_path, events))
    assert (seen.sizes, seen.names) == ([2000], ["bucket 0"])
    assert seen.steps[0][1] == pytest.approx([80e-6])
    assert any(each.startswith("shapes") for each in seen.unread)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    seen = read_kineto(write(tmp_path, step(0.0)[1:]))
    for what in ("steps (no ProfilerStep", "workers", "jitter", "names", "samples"):
        assert any(each.startswith(what) for each in seen.unread), what


def test_a_packed_trace_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(write(tmp_path, step(0.0)).read_bytes()))
    assert read_kineto(path).sizes == [1024, 2048]


def test_a_damaged_packed_trace_is_one_line(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(write(tmp_path, step(0.0)).read_bytes()))
    data[20] ^= 0xFF
    path = tmp_path / "trace.json.gz"
    path.write_bytes(data)
    with pytest.raises(UserError, match="cannot be read"):
        read_kineto(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not JSON"),
        ("hello", "not JSON"),
        ("[1, 2]", "no list traceEvents"),
        ('{"traceEvents": 3}', "no list traceEvents"),
        ('{"traceEvents": []}', "holds no spans"),
        ('{"traceEvents": [{"ph": "X", "name": "a"}]}', r"traceEvents\[0\] has no time"),
        ('{"traceEvents": [{"ph": "X", "ts": 1e999, "dur": 1}]}', r"traceEvents\[0\] has no finite time"),
        ('{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1, "args": []}]}', "none of its 1 steps has a backward pass"),
        ("[" * 100_000, "not JSON"),
        ('{"traceEvents": ' + "9" * 5000 + "}", "not JSON"),
        ('{"traceEvents": [{"ph": "X", "ts": 1' + "0" * 400 + "}]}", r"traceEvents\[0\] has no time"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_one_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(UserError, match=told) as error:
        read_kineto(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_the_command_says_what_it_could_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write(tmp_path, step(0.0)), tmp_path / "new" / "p.toml"
    assert paceline(monkeypatch, "profile", "--kineto", str(path), "--out", str(out)) == 0
    said = capsys.readouterr().out
    assert "2 gradients, 3.07 kB; forward 130 us, backward 200 us" in said
    assert "not read: samples of a step" in said
    assert "# Not read: samples of a step" in out.read_text()
    assert paceline(monkeypatch, "profile", "--kineto", str(tmp_path / "none.json"), "--out", str(out)) == 2
    assert f"paceline: {tmp_path}/none.json: no such file" in capsys.readouterr().err
    assert paceline(monkeypatch, "profile", "--kineto", str(path), "--chakra", str(path)) == 2
    assert paceline(monkeypatch, "profile") == 2
    assert "give a command after --" in capsys.readouterr().err
