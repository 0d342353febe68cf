"""How an agent is set up, and what is said while it is compiled."""

import fcntl
import threading
import time
from pathlib import Path

import pytest

from paceline.live.agent import setup
from paceline.live.agent.setup import told


def test_long_work_is_told_again_and_again_and_no_longer(capsys: pytest.CaptureFixture[str]) -> None:
    with told("compiling", every_s=0.05):
        until = time.monotonic() + 20
        seen = ""
        while seen.count("compiling:") < 2 and time.monotonic() < until:
            time.sleep(0.01)
            seen += capsys.readouterr().err
    assert seen.startswith("paceline: compiling ...\n")
    assert seen.count("paceline: compiling: ") >= 2
    capsys.readouterr()
    time.sleep(0.2)
    assert capsys.readouterr().err == ""


def test_whoever_has_compiled_code_does_not_wait_for_others_that_load_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []
    monkeypatch.setattr(setup, "_done", False)
    monkeypatch.setattr(setup, "interpreted", lambda: False)
    monkeypatch.setattr(setup, "folder_of", lambda _: tmp_path)
    monkeypatch.setattr(setup, "is_on_disk", lambda _: True)
    monkeypatch.setattr(setup, "_compile", lambda: loaded.append(1))
    with (tmp_path / "agent.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waits = threading.Thread(target=setup.warm_up, daemon=True)
        waits.start()
        waits.join(20.0)
        assert loaded == [1]
        assert not waits.is_alive()
