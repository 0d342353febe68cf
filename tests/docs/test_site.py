"""The pages as a site: built without a warning and without internet, small, and with nothing from elsewhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("material", reason="needs mkdocs-material")

from tests.docs.pages import ROOT

PAGE_BYTES_MAX = 400_000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_every_page_is_there_and_small(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        made = site / page.relative_to(ROOT / "docs").with_suffix(".html")
        assert made.stat().st_size < PAGE_BYTES_MAX, made.name
    front = (site / "index.html").read_text()
    assert "Many deep-learning jobs finish sooner" in front


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="(https?:[^"]*)"', page.read_text())
        loaded += re.findall(
            r'<link[^>]*rel="(?:stylesheet|preconnect|icon)"[^>]*href="(https?:[^"]*)"', page.read_text()
        )
        assert loaded == [], page.name


def test_links_into_the_repository_lead_to_copies(site: Path) -> None:
    assert (site / "repository" / "examples" / "frameworks" / "trainer_loop.py").read_text().startswith('"""')


def test_words_can_be_searched_and_decisions_come_last(site: Path) -> None:
    found = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert any("custodian" in page["text"] for page in found)
    decisions = [page for page in found if page["location"].startswith("adr/")]
    assert decisions
    assert all(page["boost"] < 1 for page in decisions)
