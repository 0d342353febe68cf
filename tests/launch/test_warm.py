import subprocess
import sys

import pytest

from paceline.errors import UserError
from paceline.launch import warm


def test_a_part_is_compiled_or_loaded_by_a_process_of_its_own() -> None:
    warming = warm.Warming(("planner",))
    warming.wait()
    assert [process.returncode for process in warming._processes.values()] == [0]


def test_what_does_not_compile_is_named_and_the_rest_is_ended() -> None:
    warming = warm.Warming(("nonsense", "planner"))
    with pytest.raises(UserError, match="the nonsense could not be compiled"):
        warming.wait()
    assert all(process.returncode is not None for process in warming._processes.values())


def test_what_takes_long_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(warm, "TELL_S", 0.2)
    warming = warm.Warming(())
    slow = [sys.executable, "-c", "import time; time.sleep(60)"]
    warming._processes = {"worker": subprocess.Popen(slow)}
    with pytest.raises(UserError, match="not compiled within 1 s"):
        warming.wait(1.0)
    assert warming._processes["worker"].poll() is not None
    assert "paceline: compiling the worker: 0 s\n" in capsys.readouterr().err


def test_an_unknown_part_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert warm.main(["agent", "nonsense"]) == 2
    assert "no 'nonsense' to compile; known: agent, switch, worker, planner" in capsys.readouterr().err
