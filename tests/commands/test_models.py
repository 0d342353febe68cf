import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.cli import app, main
from paceline.models.catalogue import NAMES, profile


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["models", *arguments], env={"COLUMNS": "80"}, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_table_names_every_model_with_its_figures() -> None:
    lines = run().splitlines()
    for name in NAMES:
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        assert f"{profile(name).parameters:,}" in line
        assert f" {len(profile(name).layers)} " in line
    assert "50 TFLOP/s" in lines[-1]
    assert not any("…" in line for line in lines)


def test_one_model_shows_its_layers_and_totals() -> None:
    text = run("VGG-16")
    assert all(layer.name in text for layer in profile("vgg16").layers)
    (total,) = [line for line in text.splitlines() if line.startswith("total")]
    assert "138,357,544" in total
    assert "553 MB" in total


def test_json_of_all_models_on_standard_output_is_nothing_but_json() -> None:
    listing = json.loads(run("--json", "-"))["models"]
    assert [model["name"] for model in listing] == list(NAMES)
    for model in listing:
        expected = profile(model["name"])
        assert model["parameters"] == expected.parameters
        assert model["gradient_bytes"] == 4 * expected.parameters
        assert model["compute_ns"] == expected.compute_ns()
        assert "layers" not in model


def test_json_of_one_model_in_a_file_beside_the_table(tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    assert "fc8" in run("alexnet", "--json", str(file))
    model = json.loads(file.read_text())
    assert model["layer_count"] == len(model["layers"]) == 8
    assert sum(layer["parameters"] for layer in model["layers"]) == 61_100_840
    assert sum(layer["forward_ns"] + layer["backward_ns"] for layer in model["layers"]) == model["compute_ns"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bert-bass"], "paceline: unknown model 'bert-bass'; did you mean 'bert-base'?"),
        (["vgg16", "--json", "/dev/null/x.json"], "paceline: /dev/null/x.json: cannot be written"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["paceline", "models", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert len(error.splitlines()) == 1


def test_importing_the_command_loads_no_engine() -> None:
    probe = (
        "import sys, paceline.commands.models;"
        "heavy = {'numpy', 'numba', 'pydantic', 'paceline.models.catalogue'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", probe], check=True)
