"""How an agent is set up, and what is said while it is compiled."""

import time

import pytest

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
