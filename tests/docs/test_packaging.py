"""What lies in `packaging/`: the switch as a service and in a container, as far as that can be seen without either."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.main import get_command

from paceline import cli
from tests.docs.pages import ROOT

PACKAGING = ROOT / "packaging"


def understood(words: list[str]) -> None:
    """The command line takes these words."""
    switch = get_command(cli.app).commands["switch"]  # type: ignore[attr-defined]
    assert words[0] == "switch"
    switch.make_context("switch", words[1:])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_service_is_one_that_systemd_takes(tmp_path: Path) -> None:
    text = (PACKAGING / "paceline-switch.service").read_text()
    # Neither the program nor its manual page is installed where this is tested.
    text = text.replace("/opt/paceline/bin/paceline", "/bin/true").replace("Documentation=", "# ")
    unit = tmp_path / "paceline-switch.service"
    unit.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_service_starts_a_switch() -> None:
    text = (PACKAGING / "paceline-switch.service").read_text()
    (command,) = re.findall(r"ExecStart=/opt/paceline/bin/paceline (.*)", text)
    (options,) = re.findall(r"#   OPTIONS=(.*)", text)
    understood(command.replace("$OPTIONS", options).split())


def test_the_image_is_made_of_files_that_are_here_and_starts_a_switch() -> None:
    lines = (PACKAGING / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    assert [name for names in copied for name in names if not (ROOT / name).exists()] == []
    assert {"pyproject.toml", "README.md", "src"} <= {name for names in copied for name in names}
    entry, command = (
        json.loads(line.partition(" ")[2]) for line in lines if line.startswith(("ENTRYPOINT", "CMD"))
    )
    assert entry[0] == "paceline"
    understood([*entry[1:], *command])
