"""Pages: small ones share plotly's script; the columns of every table are explained."""

from pathlib import Path

import plotly.graph_objects as go

from paceline.commands.run import COLUMNS as RUN
from paceline.launch.store import read_run
from paceline.report.columns import MEANINGS, legend
from paceline.report.page import SCRIPT, Page
from paceline.report.plan import COLUMNS as PLAN
from paceline.report.plan import WHAT_IF_COLUMNS as WHAT_IF
from paceline.report.run.page import write_page
from paceline.report.simulation import COLUMNS as SIMULATION
from tests.report.run_scenes import paceline_run

SMALL_BYTES = 400_000


def _page() -> Page:
    page = Page("Title")
    page.figure(go.Figure(go.Scatter(x=[1, 2], y=[3, 4])))
    page.figure(go.Figure(go.Scatter(x=[1, 2], y=[3, 4])))
    return page


def test_a_page_by_itself_brings_the_script_once(tmp_path: Path) -> None:
    _page().write(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert text.count("plotly.js v") == 1
    assert not (tmp_path / SCRIPT).exists()


def test_small_pages_share_it(tmp_path: Path) -> None:
    for name in ("one.html", "two.html"):
        _page().write(tmp_path / name, small=True)
        text = (tmp_path / name).read_text()
        assert len(text) < SMALL_BYTES
        assert text.count(f'<script src="{SCRIPT}">') == 1
        assert "http" not in text.replace("https://plot.ly", "")
    assert (tmp_path / SCRIPT).stat().st_size > SMALL_BYTES


def test_a_runs_report_is_small_if_asked(tmp_path: Path) -> None:
    run = read_run(paceline_run(tmp_path))
    write_page(tmp_path / "report.html", run, small=True)
    text = (tmp_path / "report.html").read_text()
    assert len(text.encode()) < SMALL_BYTES
    assert "<dt>path</dt>" in text, "columns are explained"


def test_every_column_of_the_commands_tables_is_explained() -> None:
    for columns in (RUN, PLAN, WHAT_IF, SIMULATION):
        assert [name for name, _ in legend(columns)] == list(columns)
    assert all(meaning and not meaning.endswith(".") for meaning in MEANINGS.values())
