"""Compiled code is cached under all sources of its driver, folders within folders included."""

from pathlib import Path

import pytest

from paceline.compile import decorators as compiled
from paceline.core.help import ledger
from paceline.sim.help import orders


def test_a_module_belongs_to_its_driver_however_deep_it_lies() -> None:
    assert compiled._driver_of(Path(ledger.__file__)) == "dataplane"
    assert compiled._driver_of(Path(orders.__file__)) == "sim"
    assert compiled._driver_of(Path("/somewhere/else/module.py")) == "else"


def test_a_change_in_an_inner_folder_gives_another_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "_PACKAGE", tmp_path)
    for folder in ("dataplane", "sim/help"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "module.py").write_text("x = 1\n")
    core, driver = compiled.cache_folder(), compiled.cache_folder("sim")
    (tmp_path / "sim/help/module.py").write_text("x = 2\n")
    assert compiled.cache_folder("sim") != driver
    assert compiled.cache_folder() == core
