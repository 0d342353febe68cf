"""Decisions that a test can hold the code to."""

import importlib
import pkgutil

import numpy as np
import pytest

import paceline.core
import paceline.sim
from paceline.compile import decorators as compiled


def _records() -> list[tuple[str, np.dtype[np.void]]]:
    found = []
    for package in (paceline.core, paceline.sim):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(value, np.dtype) and value.names:
                    found.append((f"{module.name}.{name}", value))
    return found


@pytest.mark.parametrize(("where", "record"), _records(), ids=lambda case: str(case)[-40:])
def test_field_names_are_free_in_numpy(where: str, record: np.dtype[np.void]) -> None:
    """ADR 0009: interpreted, a field with the name of an attribute would not be the field."""
    for name in record.names or ():
        assert not hasattr(np.record, name), where
        assert not hasattr(np.recarray, name), where


def test_nothing_compiled_counts_references() -> None:
    """ADR 0004."""
    assert compiled._OPTIONS["_nrt"] is False
