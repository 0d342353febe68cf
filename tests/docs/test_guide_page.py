"""The guide's commands for torch: a switch in one terminal, torchrun in another; and a slow rank that is helped."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from paceline.ports import free_port
from tests.docs.pages import ROOT

pytest.importorskip("torch")
LIMIT_S = 600.0
GUIDE = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8").splitlines()


def _command(part: str) -> str:
    (found,) = [line for line in GUIDE if part in line]
    return found


def _environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}


def _run(command: str) -> str:
    """Run to the end; what it leaves is ended with it."""
    with subprocess.Popen(
        command, shell=True, cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, _ = process.communicate(timeout=LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, out[-3000:]
    return out


def test_the_backend() -> None:
    port = free_port(after=1)
    command = f"exec {_command('paceline switch --memory')} --listen 127.0.0.1:{port}"
    with subprocess.Popen(command, shell=True, cwd=ROOT, env=_environment()) as switch:
        try:
            deadline = time.monotonic() + LIMIT_S
            while True:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5).close()
                    break
                assert switch.poll() is None, "the switch ended"
                assert time.monotonic() < deadline, "the switch did not start"
                time.sleep(0.2)
            here = _command("PACELINE_SWITCH=127.0.0.1 ").replace("127.0.0.1 ", f"127.0.0.1:{port} ", 1)
            _run(here.replace("torchrun", "torchrun --standalone"))
        finally:
            switch.send_signal(signal.SIGTERM)
            switch.wait(60)


def test_a_slow_rank() -> None:
    _run(_command("examples/train_takeover.py"))
