"""A report in a real browser: a tap tells what a mark stands for, nothing is wider than a phone, dark is dark."""

from collections.abc import Iterator

import pytest

from paceline.launch.store import read_run
from paceline.report.run.page import write_page
from tests.dashboard import browser as chromium
from tests.dashboard.browser import Browser
from tests.report.run_scenes import paceline_run

pytestmark = pytest.mark.skipif(bool(chromium.missing()), reason=chromium.missing())


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    write_page(folder / "report.html", read_run(paceline_run(folder)))
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    with chromium.opened() as opened:
        yield opened


def test_a_tap_on_a_bar_tells_what_it_is(page: Browser, url: str) -> None:
    page.open(url)
    page.click("#figure-1 rect")
    page.wait(lambda: "attempt 1" in page.text("#tip"), "the tip")
    assert "alpha" in page.text("#tip")
    page.click("h1")
    page.wait(lambda: page.js("return document.getElementById('tip').hidden"), "no tip")


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_as_wide_as_the_screen(page: Browser, url: str, width: int) -> None:
    page.open(url, width, 844)
    assert page.js("return document.documentElement.scrollWidth <= window.innerWidth")


def test_it_follows_the_systems_light_and_dark(page: Browser, url: str) -> None:
    page.open(url)
    shades = []
    for scheme in ("light", "dark"):
        page.devtools(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        shades.append(
            page.js(
                "return [getComputedStyle(document.body).backgroundColor, "
                "getComputedStyle(document.querySelector('svg.chart text')).fill]"
            )
        )
    page.devtools("Emulation.setEmulatedMedia", {"features": []})
    (paper, ink), (dark_paper, dark_ink) = shades
    assert paper != dark_paper, "the page turns dark"
    assert ink != dark_ink, "and the charts' text light"
