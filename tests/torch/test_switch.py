"""Training beside a real switch: killed and restarted in the middle, shared by two jobs, freed by a dead job.

The switch and the ranks run interpreted, but for two jobs that must compete: nothing waits for a compiler.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("uvicorn")

from paceline.ports import free_port
from tests.torch.ranks import ROOT, Ranks

HERE = "tests.torch.test_switch"


class Switch:
    """`paceline switch` on loopback; `kill` and `start` again on the same ports."""

    def __init__(self, folder: Path, *options: str, compiled: bool = False) -> None:
        self.port, self._folder, self._options = free_port(after=1), folder, options
        self._env = {**os.environ, "NUMBA_DISABLE_JIT": "0" if compiled else "1"}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [
            sys.executable,
            "-c",
            "from paceline.cli import main; main()",
            "switch",
            "--listen",
            self.address,
        ]
        with (self._folder / "switch.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *self._options], cwd=ROOT, env=self._env, stdout=log, stderr=log
            )
        end = time.monotonic() + 60
        while True:
            try:
                self.get("/healthz")
                return
            except OSError:
                assert self._process.poll() is None, (self._folder / "switch.log").read_text()[-2000:]
                assert time.monotonic() < end, "the switch does not come up"
                time.sleep(0.1)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=5) as answer:
            return answer.read().decode()

    def jobs(self) -> list[Any]:
        shown = json.loads(self.get("/v1/jobs"))
        return list(shown["jobs"] if isinstance(shown, dict) and "jobs" in shown else shown)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> "Switch":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def apart(switch: Switch) -> dict[str, str]:
    return {"PACELINE_HOST_REDUCE": "0", "NUMBA_DISABLE_JIT": "1", "PACELINE_SWITCH": switch.address}


def train(rank: int, notes: str, seed: int = 1, until: str = "") -> dict[str, Any]:
    """Steps with checkable sums until the file `until` is there (all ranks agree), at least 20."""
    import logging

    import torch
    import torch.distributed as dist

    import paceline.torch

    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("paceline")
    generator = torch.Generator().manual_seed(100 * seed + rank)
    sums: list[float] = []
    gaps: list[float] = []
    end = time.monotonic() + 80
    before = time.monotonic()
    while True:
        tensors = [torch.randn(count, generator=generator) for count in (5, 600)]
        # Which job goes first changes from step to step: each takes aggregators from the other.
        group: Any = dist.group.WORLD
        number = 100 + 50 * ((len(sums) + seed) % 2)
        for work in [group.reduce_tensor(tensor, "sum", priority=number) for tensor in tensors]:
            work.wait()
        sums.append(sum(tensor.double().sum().item() for tensor in tensors))
        gaps.append(time.monotonic() - before)
        before = time.monotonic()
        path = paceline.torch.status()[0]["path"]
        Path(notes, f"at-{rank}").write_text(f"{len(sums)} {path}")
        enough = len(sums) >= 20 and (not until or Path(notes, until).exists())
        last = torch.tensor([float(enough or time.monotonic() > end)], dtype=torch.float64)
        dist.all_reduce(last, op=dist.ReduceOp.MIN)
        if last.item():
            break
        time.sleep(0.01)
    status = paceline.torch.status()[0]
    dist.destroy_process_group()
    return {
        "sums": sums,
        "longest_s": max(gaps[1:]),
        "path": status["path"],
        "events": [event["event"] for event in status["events"]],
    }


def _wait_for(folder: Path, ranks: int, steps: int, path: str) -> int:
    """Until every rank is at that step on that path; the step."""
    end = time.monotonic() + 100
    while True:
        texts = [(folder / f"at-{rank}") for rank in range(ranks)]
        at = [text.read_text().split() for text in texts if text.exists()]
        at = [line for line in at if len(line) == 2]
        if len(at) == ranks and all(int(step) >= steps and shown == path for step, shown in at):
            return max(int(step) for step, _ in at)
        assert time.monotonic() < end, f"not at step {steps} on {path}: {at}"
        time.sleep(0.05)


def _check(results: list[Any], ranks: int, seed: int = 1) -> None:
    import torch

    generators = [torch.Generator().manual_seed(100 * seed + rank) for rank in range(ranks)]
    assert len({len(result["sums"]) for result in results}) == 1, "a rank lost or repeated a step"
    for step, sum_ in enumerate(results[0]["sums"]):
        want = sum(
            torch.randn(count, generator=g).double().sum().item() for g in generators for count in (5, 600)
        )
        assert sum_ == pytest.approx(want, abs=1e-2), step
    for result in results:
        assert result["sums"] == results[0]["sums"], "the ranks have other bits"


def test_a_killed_switch_costs_no_step_and_is_used_again(tmp_path: Path) -> None:
    with (
        Switch(tmp_path) as switch,
        Ranks(2, f"{HERE}:train", tmp_path, apart(switch), notes=str(tmp_path), until="enough") as ranks,
    ):
        _wait_for(tmp_path, 2, 5, "switch")
        switch.kill()
        step = _wait_for(tmp_path, 2, 6, "custodian")
        _wait_for(tmp_path, 2, step + 5, "custodian")
        switch.start()
        step = _wait_for(tmp_path, 2, step + 5, "switch")
        _wait_for(tmp_path, 2, step + 5, "switch")
        (tmp_path / "enough").touch()
        results = ranks.results()
        logs = [ranks.log(rank) for rank in range(2)]
    _check(results, 2)
    for result, log in zip(results, logs, strict=True):
        assert result["events"] == ["switch", "custodian", "switch"]
        assert len(re.findall("contributions now go by the custodian", log)) == 1
        # Two seconds are the promise on a machine that is not loaded; here it must not be a time-out.
        assert result["longest_s"] < 20


def test_a_switch_that_comes_late_is_joined(tmp_path: Path) -> None:
    switch = Switch(tmp_path)
    try:
        with Ranks(2, f"{HERE}:train", tmp_path, apart(switch), notes=str(tmp_path), until="enough") as ranks:
            _wait_for(tmp_path, 2, 5, "custodian")
            switch.start()
            step = _wait_for(tmp_path, 2, 6, "switch")
            _wait_for(tmp_path, 2, step + 5, "switch")
            assert len(switch.jobs()) == 1
            (tmp_path / "enough").touch()
            results = ranks.results()
            logs = [ranks.log(rank) for rank in range(2)]
    finally:
        switch.kill()
    _check(results, 2)
    for result, log in zip(results, logs, strict=True):
        assert result["events"] == ["custodian", "gloo", "switch"]
        assert log.count("does not answer") == 1
        assert log.count("the switch answers now") == 1


def _preempting(switch: Switch, jobs: int) -> bool:
    """Whether so many jobs have lost or taken aggregators."""
    found = re.findall(r"^paceline_preemptions_total\{.*\} ([0-9.]+)$", switch.get("/metrics"), re.M)
    return len([count for count in found if float(count) > 0]) >= jobs


def test_two_jobs_preempt_each_other_in_a_small_switch(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    with Switch(tmp_path, "--memory", "20KiB") as switch:
        env = apart(switch)
        with (
            Ranks(2, f"{HERE}:train", folders[0], env, notes=str(folders[0]), seed=1, until="enough") as one,
            Ranks(2, f"{HERE}:train", folders[1], env, notes=str(folders[1]), seed=2, until="enough") as two,
        ):
            for folder in folders:
                _wait_for(folder, 2, 20, "switch")
            assert len(switch.jobs()) == 2
            end = time.monotonic() + 60
            while not _preempting(switch, 2):
                assert time.monotonic() < end, "neither job takes anything from the other"
                time.sleep(0.5)
            for folder in folders:
                (folder / "enough").touch()
            results = [one.results(), two.results()]
        end = time.monotonic() + 20
        while switch.jobs() and time.monotonic() < end:
            time.sleep(0.2)
        assert switch.jobs() == [], "jobs that ended have left"
    for seed, result in enumerate(results, 1):
        _check(result, 2, seed)


def _train_ddp(folder: Path, seed: int, backend: str, env: dict[str, str]) -> "subprocess.Popen[bytes]":
    """The example under torchrun; its losses come into `folder`."""
    options = ["--steps", "25", "--hidden", "24", "--batch", "16", "--bucket-mb", "0.002", "--json"]
    # The second job has less time left, so its buckets go before those of the first, and take their aggregators.
    options += ["--seed", str(seed), "--remaining", str(10 ** (5 - seed)), "--backend", backend]
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    with (
        (folder / f"{backend}-{seed}").open("wb") as out,
        (folder / f"{backend}-{seed}.err").open("wb") as err,
    ):
        return subprocess.Popen(
            [sys.executable, *command, "tests/torch/gated_train_ddp.py", *options],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GATE": str(folder), **env},
            stdout=out,
            stderr=err,
        )


def test_two_ddp_jobs_share_a_small_switch_with_the_losses_of_gloo(tmp_path: Path) -> None:
    preempted = False
    with Switch(tmp_path, "--memory", "20KiB") as switch:
        started = [
            _train_ddp(tmp_path, seed, backend, env)
            for backend, env in (("paceline", apart(switch)), ("gloo", {}))
            for seed in (1, 2)
        ]
        try:
            end = time.monotonic() + 400
            while any(process.poll() is None for process in started):
                assert time.monotonic() < end, "a job hangs"
                if len(list(tmp_path.glob("ready-*"))) == 8:
                    (tmp_path / "go").touch()
                preempted = preempted or _preempting(switch, 1)
                time.sleep(0.2)
        finally:
            for process in started:
                process.kill()
                process.wait()
    logs = {path.name: path.read_text()[-2000:] for path in tmp_path.glob("*.err")}
    assert [process.returncode for process in started] == [0] * 4, logs
    for seed in (1, 2):
        ours, theirs = (
            json.loads((tmp_path / f"{backend}-{seed}").read_text().splitlines()[-1])
            for backend in ("paceline", "gloo")
        )
        assert [event["event"] for event in ours["status"][0]["events"]] == ["switch"]
        assert len(ours["losses"]) == 25
        assert ours["losses"] == pytest.approx(theirs["losses"], abs=1e-5)
        assert ours["losses"][-1] < ours["losses"][0], "it learns"
    assert preempted, "neither job took anything from the other"


def die_or_wait(rank: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    import paceline.torch  # noqa: F401

    dist.init_process_group("paceline")
    dist.all_reduce(torch.ones(5))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        dist.all_reduce(torch.ones(5))
    except dist.DistBackendError as error:
        return {"error": str(error), "took_s": time.monotonic() - begin}
    return {"error": "none"}


def test_a_killed_worker_is_named_and_its_job_is_freed(tmp_path: Path) -> None:
    with Switch(tmp_path, "--lease", "6") as switch:
        with Ranks(3, f"{HERE}:die_or_wait", tmp_path, apart(switch)) as ranks:
            assert ranks.processes[1].wait(100) == -9
            assert len(switch.jobs()) == 1
            ranks.processes[1].returncode = 0
            (tmp_path / "result-1").write_text("{}")
            results = ranks.results()
        for rank in (0, 2):
            assert "rank 1 is gone" in results[rank]["error"]
            assert results[rank]["took_s"] < 60
        end = time.monotonic() + 60
        while switch.jobs() and time.monotonic() < end:
            time.sleep(0.2)
        assert switch.jobs() == []
