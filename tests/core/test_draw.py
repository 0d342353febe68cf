"""Pictures from tables: each row is drawn, and what is written in one is text."""

import xml.etree.ElementTree as ET

import pytest

from paceline.core import describe, draw, wire

SVG = "{http://www.w3.org/2000/svg}"


def _lines(picture: str) -> list[ET.Element]:
    return [
        each for each in ET.fromstring(picture).iter(f"{SVG}path") if "line" in each.get("class", "").split()
    ]


def _texts(picture: str) -> list[str]:
    return [str(each.text) for each in ET.fromstring(picture).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", list(describe.pictures()))
def test_pictures_are_small_and_load_nothing(name: str) -> None:
    picture = describe.pictures()[name]
    assert ET.fromstring(picture).tag == f"{SVG}svg"
    assert len(picture) < 10_000
    assert "href" not in picture


def test_every_change_of_state_is_an_arc_with_the_number_of_its_row() -> None:
    changes = (("a", "b", "up"), ("b", "a", "down"), ("a", "c", "far"))
    picture = draw.states(("a", "b", "c"), changes, "x < y")
    assert len(_lines(picture)) == 3
    assert sorted(_texts(picture)) == ["1", "2", "3", "a", "b", "c"]


def test_every_message_that_a_switch_or_custodian_sees_has_its_lines() -> None:
    picture = draw.message_ways(wire.KIND_NAMES, describe.KIND_PATHS)
    shown = {text.partition(":")[0] for text in wire.KIND_NAMES.values()} & set(_texts(picture))
    assert shown == {"gradient", "partial", "result", "reminder", "pull", "answer", "query", "ack", "nack"}
    # Worker to switch and rack to upper switch; one; from both; one each; to either; from both; one.
    assert len(_lines(picture)) == 2 + 1 + 2 + 1 + 1 + 1 + 2 + 2 + 1
