"""`paceline` in this process, as a user calls it."""

import sys

import pytest

from paceline import cli


def paceline(patch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code."""
    patch.setattr(sys, "argv", ["paceline", *arguments])
    try:
        cli.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0
