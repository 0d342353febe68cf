"""`paceline verify`: its verdicts and exit codes."""

import json
from pathlib import Path

import pytest

from paceline.passport.records import Owner, PassportWriter
from tests.commands.command_line import paceline


def _passport(folder: Path, digest: int) -> str:
    writer = PassportWriter(folder, Owner("a", "0", 0, 1))
    writer.note(0, 5, "float32", "sum", digest)
    writer.close()
    return str(folder)


def test_verdicts_and_exit_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y, z = (_passport(tmp_path / name, digest) for name, digest in (("x", 1), ("y", 1), ("z", 2)))
    assert paceline(monkeypatch, "verify", x, y) == 0
    assert "the same bits: 1 results of 1 ranks" in capsys.readouterr().out
    assert paceline(monkeypatch, "verify", x, z) == 1
    assert (
        "different: job a: the bits differ: group 0, reduction 0 (5 x float32, sum" in capsys.readouterr().out
    )
    assert paceline(monkeypatch, "verify", x, z, "--json") == 1
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["same"], verdict["differences"][0]["reduction"]) == (False, 0)
    assert paceline(monkeypatch, "verify", x) == 0
    assert paceline(monkeypatch, "verify", x, str(tmp_path / "none")) == 2
    assert paceline(monkeypatch, "verify", x, y, z) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2, told


def test_runs_without_a_result_are_not_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("x", "y"):
        PassportWriter(tmp_path / name, Owner("a", "0", 0, 1)).close()
    assert paceline(monkeypatch, "verify", str(tmp_path / "x"), str(tmp_path / "y")) == 2
    assert "no result" in capsys.readouterr().err
