"""The backend's variables: read, checked, and named in mistakes."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from paceline.errors import UserError
from paceline.torch.settings import read_settings


def test_variables(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("PACELINE_HOST_REDUCE", "maybe"),
        ("PACELINE_REMAINING_S", "-1"),
        ("PACELINE_SLOTS_MAX", "1.5"),
        ("PACELINE_STRAGGLER", "both"),
        ("PACELINE_TOKEN_FILE", "/no"),
    ],
)
def test_a_mistake_names_its_variable(name: str, text: str) -> None:
    with pytest.raises(UserError, match=name):
        read_settings({name: text})
