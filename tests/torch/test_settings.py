"""The backend's variables: read, checked, and named in mistakes; and the time that a job has left."""

import os
from pathlib import Path

import pytest

pytest.importorskip("torch")

from paceline.errors import UserError
from paceline.torch.settings import LEAST_S, LOOK_S, RemainingTime, Settings, read_settings


def test_variables(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    token.chmod(0o600)
    settings = read_settings(
        {
            "PACELINE_SWITCH": "h:1",
            "PACELINE_TOKEN_FILE": str(token),
            "PACELINE_HOST_REDUCE": "0",
            "TORCHELASTIC_RUN_ID": "r",
        }
    )
    assert (settings.switch, settings.token, settings.host_reduce, settings.job) == (
        "h:1",
        "secret",
        False,
        "r",
    )
    assert read_settings({}).host_reduce
    assert read_settings({}).wire is None
    assert read_settings({"PACELINE_WIRE": "32"}).wire == 32


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("PACELINE_HOST_REDUCE", "maybe"),
        ("PACELINE_REMAINING_S", "-1"),
        ("PACELINE_SLOTS_MAX", "1.5"),
        ("PACELINE_SLOTS_MAX", "inf"),
        ("PACELINE_PRIORITY_MAX", "1e400"),
        ("PACELINE_REMAINING_S", "inf"),
        ("PACELINE_REMAINING_S", "nan"),
        ("PACELINE_STRAGGLER", "both"),
        ("PACELINE_WIRE", "8"),
        ("PACELINE_TOKEN_FILE", "/no"),
    ],
)
def test_a_mistake_names_its_variable(name: str, text: str) -> None:
    with pytest.raises(UserError, match=name):
        read_settings({name: text})


def test_a_token_that_others_may_read_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    for mode in (0o604, 0o644, 0o620, 0o602):
        token.chmod(mode)
        with pytest.raises(UserError, match=r"PACELINE_TOKEN_FILE: others may read or change .*chmod 600"):
            read_settings({"PACELINE_TOKEN_FILE": str(token)})
    token.chmod(0o640)
    assert read_settings({"PACELINE_TOKEN_FILE": str(token)}).token == "secret"


def test_how_the_switch_is_known(tmp_path: Path) -> None:
    pinned = ":".join(["AB"] * 32)
    trust = read_settings({"PACELINE_SWITCH_FINGERPRINT": f"sha256 Fingerprint={pinned}"}).trust
    assert trust is not None
    assert trust.fingerprint == "ab" * 32
    assert read_settings({}).trust is None
    for name, text in (
        ("PACELINE_SWITCH_FINGERPRINT", "ab"),
        ("PACELINE_SWITCH_CA", "/no/such/file"),
        ("PACELINE_SWITCH_CA", str(Path(__file__))),
    ):
        with pytest.raises(UserError, match=name):
            read_settings({name: text})


def _tell(file: Path, remaining_s: float, at: float) -> None:
    file.write_text(f"{remaining_s:.3f}\n")
    os.utime(file, (at, at))


def test_nobody_has_told() -> None:
    assert RemainingTime(Settings()).seconds() is None


def test_without_a_file_the_time_runs_down_from_the_start() -> None:
    now = [1000.0]
    remaining = RemainingTime(Settings(remaining_s=60), lambda: now[0])
    now[0] += 20
    assert remaining.seconds() == 40
    now[0] += 1000
    assert remaining.seconds() == LEAST_S, "a late job is not infinitely urgent"


def test_the_planners_word_counts_from_when_it_was_given_and_is_read_again(tmp_path: Path) -> None:
    now, file = [1000.0], tmp_path / "remaining_s"
    _tell(file, 100, at=990)
    remaining = RemainingTime(Settings(remaining_s=60, remaining_file=str(file)), lambda: now[0])
    assert remaining.seconds() == 90, "written ten seconds ago"
    _tell(file, 30, at=1000)
    now[0] += LOOK_S
    assert remaining.seconds() == 30 - LOOK_S
    file.unlink()
    now[0] += 9
    assert remaining.seconds() == 30 - LOOK_S - 9, "what was known stays"
    file.write_text("nonsense")
    now[0] += 5
    assert remaining.seconds() == 30 - LOOK_S - 14
