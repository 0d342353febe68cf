"""What is exported, by a real parser; and that shipped dashboards and rules use only that."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from paceline.dashboard.grafana import PANELS, RULES, alert_rules, dashboard, expressions
from paceline.dashboard.planner_metrics import JOB_STATES, metrics_text
from paceline.dashboard.planner_metrics import METRICS as PLANNER
from paceline.dashboard.run_source import RunSource
from paceline.live.switch.daemon import LiveSwitch, SwitchOptions
from paceline.live.switch.jobs import Events
from paceline.live.switch.metrics import METRICS as SWITCH
from paceline.live.switch.metrics import metrics_text as switch_text
from paceline.live.switch.shard_state import DROP_REASONS
from tests.dashboard.scenes import WrittenRun, lag_figures

WORD = re.compile(r"(paceline_\w+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"(?:by|on) \(([^)]*)\)")
OUTSIDE = {"instance", "job", "run"}
"""Labels that Prometheus adds by itself, or that Grafana asks for."""


def parsed(text: bytes) -> dict[str, Any]:
    """The families of a page, by the strict parser of OpenMetrics."""
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    return {family.name: family for family in text_string_to_metric_families(text.decode())}


@pytest.fixture
def run(tmp_path: Path) -> RunSource:
    made = WrittenRun(tmp_path / "run", servers=3, slots=2)
    made.job("alpha", [0, 2], rate=5.0)
    made.job('od"d\nname', [1], rate=2.0)
    made.job("late", gpus=None)
    made.progress("alpha", 50)
    source = RunSource(made.folder)
    for second in range(1, 6):
        lags = {0: (100.0 * second, 0.0), 1: (100.0 * second, 10.0 * second)}
        made.switch_look(float(second), {"alpha": {"held": 4.0, "figures": lag_figures(lags)}})
        source.view()
    return source


def values(families: dict[str, Any], name: str) -> dict[tuple[str, ...], float]:
    family = families[name.removesuffix("_total")]
    order = PLANNER[name][1]
    return {tuple(sample.labels[label] for label in order): sample.value for sample in family.samples}


def test_the_planners_page_is_openmetrics_and_says_what_is(run: RunSource) -> None:
    families = parsed(metrics_text({"run": run}, openmetrics=True))
    assert {name.removesuffix("_total") for name in PLANNER} == set(families)
    assert values(families, "paceline_run_jobs")["run", "running"] == 2
    assert values(families, "paceline_run_queue_gpus")[("run",)] == 1
    assert values(families, "paceline_run_slots") == {
        ("run", "held"): 3,
        ("run", "free"): 3,
        ("run", "down"): 0,
    }
    assert values(families, "paceline_run_utilisation")[("run",)] == 0.5
    # Free: one on s1, two on s2; two of the three are together.
    assert values(families, "paceline_run_fragmentation")[("run",)] == pytest.approx(1 / 3)
    # 9 s of 20 have passed, and 50 of 100 iterations are left at 5 a second.
    error = values(families, "paceline_run_prediction_error")["run", "alpha"]
    assert error == pytest.approx((9 + 10) / 20 - 1, abs=0.2)
    assert values(families, "paceline_run_waiting_seconds")["run", "late"] == pytest.approx(10, abs=5)
    scores = values(families, "paceline_run_straggler_score")
    assert all(0.0 <= score <= 1.0 for score in scores.values())
    assert min(scores.values()) == pytest.approx(0.5)
    assert values(families, "paceline_run_straggler_lost_gpu_seconds_total")[("run",)] > 0
    assert values(families, "paceline_run_job_rate")["run", 'od"d\nname'] == 2.0
    run.close()


def test_the_switchs_page_is_openmetrics_and_has_every_metric(tmp_path: Path) -> None:
    with (tmp_path / "events").open("w") as quiet:
        switch = LiveSwitch(SwitchOptions(memory_bytes=1 << 20), Events(stream=quiet))
        try:
            switch.admit('a "strange" \\ name', 2)
            families = parsed(switch_text(switch, openmetrics=True))
        finally:
            switch.close()
    assert {name.removesuffix("_total") for name in SWITCH} == set(families)
    exported = {sample.name for family in families.values() for sample in family.samples}
    wanted = {name for query in expressions() for name, _ in WORD.findall(query)}
    assert {name for name in wanted if name.startswith("paceline_") and "_run_" not in name} <= exported


def test_charts_and_alerts_use_only_metrics_and_labels_that_are_exported() -> None:
    known = {**SWITCH, **PLANNER}
    for name, (kind, labels, _) in list(known.items()):
        if kind == "summary":
            known |= {f"{name}_{part}": ("counter", labels, "") for part in ("sum", "count")}
            del known[name]
    for query in expressions():
        names = WORD.findall(query)
        if not names:
            assert query.startswith("up{"), query
        own: set[str] = set()
        for name, selector in names:
            assert name in known, f"{name} is not exported: {query}"
            labels = set(known[name][1])
            own |= labels
            used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
            assert used <= labels, f"{name} has no label {used - labels}"
            reasons = re.findall(r'reason="(\w+)"', selector)
            assert set(reasons) <= set(DROP_REASONS), f"no packet is dropped for {reasons}"
            states = re.findall(r'state="(\w+)"', selector)
            assert set(states) <= {*JOB_STATES, "held", "free", "down"}, f"no job is {states}"
            counter = known[name][0] == "counter"
            assert counter == bool(re.search(rf"(rate|increase)\({name}", query)) or "jobs{state" in query, (
                query
            )
        for group in GROUPED.findall(query):
            used = {label.strip() for label in group.split(",")}
            assert used <= own | OUTSIDE, f"{used - own} in {query}"
    for _, group in PANELS:
        for panel in group:
            for query, legend in panel.queries:
                shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
                by = {label.strip() for found in GROUPED.findall(query) for label in found.split(",")}
                assert shown <= by or not by, f"{panel.title}: {legend}"
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_the_files_are_what_grafana_and_prometheus_read() -> None:
    page = json.loads(json.dumps(dashboard()))
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in page["panels"]]
    assert len(set(places)) == len(places), "no two panels in one place"
    assert all(p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 for p in page["panels"])
    assert len({p["id"] for p in page["panels"]}) == len(page["panels"])
    rules = alert_rules()
    found = re.findall(r"expr: (.*)", rules)
    assert [json.loads(each) for each in found] == [rule.expression for rule in RULES]
    assert rules.count("description: ") == len(RULES)


@pytest.mark.parametrize("what", ["grafana", "alerts", "list"])
def test_the_command_prints_them(what: str) -> None:
    call = "from paceline.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", call, "metrics", what], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    if what == "grafana":
        assert json.loads(done.stdout) == dashboard()
    if what == "alerts":
        assert done.stdout == alert_rules()
    if what == "list":
        assert all(name in done.stdout for name in PLANNER)


def test_the_page_has_every_metric_and_every_alert() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    for name, (kind, labels, meaning) in PLANNER.items():
        assert f"| `{name}` ({kind}) | {', '.join(labels)} | {meaning} |" in page
    for rule in RULES:
        assert f"| `{rule.name}` | {rule.for_} | {rule.severity} |" in page
