"""The page of the switch tells the truth: its tables are the code's, its options and requests exist."""

import inspect
import re

from paceline.commands.switch import switch
from paceline.describe import sections
from paceline.generated import rewritten
from paceline.live.switch import http as control
from tests.docs.pages import ROOT

PAGE = ROOT / "docs/switch.md"


def test_page_is_as_generated() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert rewritten(page, sections()) == page, "run `make docs`"
    for name in ("metrics", "drops"):
        assert f"<!-- generated: {name} -->" in page


def test_every_option_on_the_page_exists() -> None:
    known = {"--" + name.replace("_", "-") for name in inspect.signature(switch).parameters} | {"--help"}
    named = set(re.findall(r"(--[a-z][a-z-]+)", PAGE.read_text(encoding="utf-8")))
    assert named - {"--datagrams"} <= known


def test_every_request_of_the_control_plane_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    routes = re.findall(r'route\("([^"]+)", "(\w+)"', inspect.getsource(control.application))
    assert len(routes) == 8
    for path, method in routes:
        shown = re.sub(r"\{(\w)\w*\}", lambda m: {"j": "N", "w": "W", "r": "R"}[m[1]], path)
        assert f"{method} {shown}" in page
