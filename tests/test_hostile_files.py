"""Spoiled files of every kind are read or refused in one line."""

from pathlib import Path

import pytest

from paceline import units
from tests.hostile_files import KINDS, attack


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_spoiled_file_is_read_or_refused(kind: str, tmp_path: Path) -> None:
    refused, raised = attack(kind, 250, 2, tmp_path)
    assert not raised, raised[0]
    assert 0 < refused < 250, "some are still good, some are not"


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (units.parse_size_bytes, float("inf")),
        (units.parse_size_bytes, "1e400GB"),
        (units.parse_size_bytes, 1e308),
        (units.parse_rate_bps, "1e300 Tbit/s"),
        (units.parse_rate_bps, float("nan")),
        (units.parse_seconds, 1e308),
        (units.parse_time_ns, "1e300 d"),
    ],
)
def test_a_quantity_beyond_reckoning_is_refused(parse: object, text: object) -> None:
    assert callable(parse)
    with pytest.raises(ValueError, match="can be reckoned with"):
        parse(text)
