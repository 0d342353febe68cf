"""Pages: small, and nothing beside them is needed; the columns of every table are explained."""

from pathlib import Path

from paceline.commands.run import COLUMNS as RUN
from paceline.launch.store import read_run
from paceline.report.chart import Chart
from paceline.report.columns import MEANINGS, legend
from paceline.report.page import ROWS_MAX, Page
from paceline.report.plan import COLUMNS as PLAN
from paceline.report.plan import WHAT_IF_COLUMNS as WHAT_IF
from paceline.report.run.page import write_page
from paceline.report.simulation import COLUMNS as SIMULATION
from tests.report.run_scenes import paceline_run

SMALL_BYTES = 400_000


def test_a_page_needs_nothing_else(tmp_path: Path) -> None:
    page = Page("Title")
    for _ in range(2):
        chart = Chart("chart")
        chart.line("line", [1, 2], [3, 4])
        page.figure(chart)
    page.write(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]
    assert text.count("<svg") == 2
    assert 'id="figure-2"' in text
    assert "src=" not in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "prefers-color-scheme: dark" in text


def test_a_long_table_is_cut_and_says_so(tmp_path: Path) -> None:
    page = Page("Title")
    page.table(
        [f"column {i}" for i in range(20)], [[1000.0 * row + i for i in range(20)] for row in range(5000)]
    )
    page.write(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert len(text) < SMALL_BYTES
    assert f"The first {ROWS_MAX} of 5000 rows." in text
    assert text.count("<tr>") == ROWS_MAX + 1


def test_a_runs_report_is_small(tmp_path: Path) -> None:
    run = read_run(paceline_run(tmp_path))
    write_page(tmp_path / "report.html", run)
    text = (tmp_path / "report.html").read_text()
    assert len(text.encode()) < SMALL_BYTES
    assert "<dt>path</dt>" in text, "columns are explained"


def test_every_column_of_the_commands_tables_is_explained() -> None:
    for columns in (RUN, PLAN, WHAT_IF, SIMULATION):
        assert [name for name, _ in legend(columns)] == list(columns)
    assert all(meaning and not meaning.endswith(".") for meaning in MEANINGS.values())
