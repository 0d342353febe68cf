"""A dashboard for Grafana and alert rules for Prometheus, made from one list of panels and rules each.

Every expression uses metrics that a switch (`live/switch/metrics.py`) or a run's dashboard (`planner_metrics.py`)
really exports, with labels that they really have; a test reads them out of the expressions and compares.
"""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Panel:
    """One chart: a title, a unit of Grafana, and expressions with their legends."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    meaning: str
    stacked: bool = False
    width: int = 12


@dataclass(frozen=True)
class Rule:
    """One alert."""

    name: str
    expression: str
    for_: str
    severity: str
    summary: str
    what_to_do: str


PANELS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Runs",
        (
            Panel("Jobs by state", "short", (("sum by (state) (paceline_run_jobs{run=~\"$run\"})", "{{state}}"),),
                  "jobs of the chosen runs", stacked=True),
            Panel("Slots in use", "percentunit", (("paceline_run_utilisation{run=~\"$run\"}", "{{run}}"),),
                  "held slots over those of servers that are up"),
            Panel("Queue", "short", (("paceline_run_queue_gpus{run=~\"$run\"}", "{{run}}: slots asked for"),),
                  "slots that waiting jobs ask for"),
            Panel("Longest wait", "s", (("max by (run) (paceline_run_waiting_seconds{run=~\"$run\"})", "{{run}}"),),
                  "of the jobs that wait now"),
            Panel("Fragmentation", "percentunit", (("paceline_run_fragmentation{run=~\"$run\"}", "{{run}}"),),
                  "free slots that are not on the emptiest server"),
            Panel("Prediction error", "percentunit",
                  (("quantile by (run) (0.5, abs(paceline_run_prediction_error{run=~\"$run\"}))", "{{run}}: median"),
                   ("quantile by (run) (0.9, abs(paceline_run_prediction_error{run=~\"$run\"}))", "{{run}}: 90 %")),
                  "how far attempts are from the time that the plan gave them"),
            Panel("Iterations a second", "ops", (("paceline_run_job_rate{run=~\"$run\"}", "{{job}}"),),
                  "of running jobs"),
        ),
    ),
    (
        "Switch memory",
        (
            Panel("Aggregators by job", "short",
                  (("sum by (name) (rate(paceline_slot_seconds_total[$__rate_interval]))", "{{name}}"),),
                  "held on average over the interval", stacked=True),
            Panel("Memory in use", "percentunit",
                  (("sum by (instance) (rate(paceline_slot_seconds_total[$__rate_interval])) "
                    "/ sum by (instance) (paceline_slots)", "{{instance}}"),),
                  "of all aggregators"),
            Panel("Preemptions", "ops",
                  (("sum by (name) (rate(paceline_preemptions_total[$__rate_interval]))", "{{name}}"),),
                  "aggregators that a job took from another chunk"),
            Panel("Fallbacks", "pps",
                  (("sum by (name) (rate(paceline_fallbacks_total[$__rate_interval]))", "{{name}}"),),
                  "packets that found no aggregator, and were summed by a custodian"),
        ),
    ),
    (
        "Traffic",
        (
            Panel("Through the switch", "Bps",
                  (("sum by (name, direction) (rate(paceline_bytes_total[$__rate_interval]))",
                    "{{name}} {{direction}}"),),
                  "by job and direction"),
            Panel("Dropped packets", "pps",
                  (("sum by (reason) (rate(paceline_drops_total[$__rate_interval]))", "{{reason}}"),),
                  "by reason; some are answered by the protocol itself"),
        ),
    ),
    (
        "Stragglers",
        (
            Panel("Arrival lag", "s",
                  (("sum by (name, worker) (rate(paceline_round_lag_seconds_sum[$__rate_interval])) "
                    "/ sum by (name, worker) (rate(paceline_round_lag_seconds_count[$__rate_interval]))",
                    "{{name}} worker {{worker}}"),),
                  "behind the first contribution to a chunk, at worst in an iteration"),
            Panel("Scores", "percentunit",
                  (("min by (job, worker) (paceline_run_straggler_score{run=~\"$run\"})", "{{job}} {{worker}}"),),
                  "1 is as quick as the median and as its own best"),
            Panel("GPU time lost", "s",
                  (("increase(paceline_run_straggler_lost_gpu_seconds_total{run=~\"$run\"}[1h])", "{{run}}"),),
                  "waiting for stragglers, over the last hour"),
        ),
    ),
)  # fmt: skip

RULES: tuple[Rule, ...] = (
    Rule("PacelineSwitchSilent", "up{job=~\".*paceline-switch.*\"} == 0", "10s", "critical",
         "the switch {{ $labels.instance }} does not answer",
         "Jobs go on over custodians or Gloo, slower. Look at its log; start it again at the same address."),
    Rule("PacelineSwitchDraining", "paceline_draining == 1", "5m", "warning",
         "the switch {{ $labels.instance }} has been draining for five minutes",
         "It takes no new jobs and waits for those it has: start another, or end the jobs."),
    Rule("PacelineJobEvicted", "increase(paceline_evictions_total[5m]) > 0", "0s", "warning",
         "a job at {{ $labels.instance }} was evicted: nobody renewed its lease",
         "Its workers died or cannot reach the control plane."),
    Rule("PacelineForgedPackets", "sum by (instance) (rate(paceline_drops_total{reason=\"bad_tag\"}[5m])) > 1", "5m",
         "critical", "packets with wrong tags reach {{ $labels.instance }}",
         "Somebody sends without the job's key, or a job uses another's port: look with `paceline switch --pcap`."),
    Rule("PacelineSwitchMemoryShort",
         "sum by (instance) (rate(paceline_fallbacks_total[5m])) "
         "> 0.2 * sum by (instance) (rate(paceline_packets_total{direction=\"in\"}[5m]))",
         "10m", "warning", "a fifth of the packets find no memory in {{ $labels.instance }}",
         "Give the switch more --memory, or place fewer jobs behind it."),
    Rule("PacelineStraggler", "min by (run, job, worker) (paceline_run_straggler_score) < 0.75", "2m", "warning",
         "{{ $labels.worker }} slows {{ $labels.job }} down",
         "Look at that server: another process, a slow link, a hot device. Takeover helps meanwhile."),
    Rule("PacelinePlannerDead", "paceline_run_planner_up == 0 and on (run) paceline_run_jobs{state=\"running\"} > 0",
         "1m", "critical", "nobody plans the run {{ $labels.run }}",
         "Its jobs go on, nothing new starts: paceline run --resume."),
    Rule("PacelineJobsFailed", "increase(paceline_run_jobs{state=\"failed\"}[10m]) > 0", "0s", "warning",
         "jobs of {{ $labels.run }} failed", "paceline status tells which, and the last line of each log."),
    Rule("PacelineQueueStuck",
         "max by (run) (paceline_run_waiting_seconds) > 3600 and on (run) paceline_run_utilisation < 0.5", "10m",
         "warning", "jobs of {{ $labels.run }} wait while half of the slots are free",
         "They may ask for more slots than are free together: see fragmentation; or the queue is paused."),
    Rule("PacelinePredictionsOff", "quantile by (run) (0.5, abs(paceline_run_prediction_error)) > 0.5", "30m",
         "warning", "plans of {{ $labels.run }} are off by half",
         "Measure the jobs: paceline profile gives entries for the job file."),
)  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, group in PANELS:
        panels.append(_placed({"type": "row", "title": title, "collapsed": False, "panels": []}, 0, y, 24, 1))
        y += 1
        x = 0
        for panel in group:
            if x + panel.width > 24:
                x, y = 0, y + 8
            panels.append(_placed(_chart(panel), x, y, panel.width, 8))
            x += panel.width
        y += 8
    for number, each in enumerate(panels, 1):
        each["id"] = number
    return {
        "__inputs": [
            {"name": "DS_PROMETHEUS", "label": "Prometheus", "type": "datasource", "pluginId": "prometheus"}
        ],
        "title": "Paceline",
        "uid": "paceline",
        "tags": ["paceline"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "run",
                    "type": "query",
                    "datasource": {"type": "prometheus", "uid": "${DS_PROMETHEUS}"},
                    "query": "label_values(paceline_run_jobs, run)",
                    "includeAll": True,
                    "multi": True,
                    "refresh": 2,
                    "current": {"text": "All", "value": "$__all"},
                }
            ]
        },
        "panels": panels,
    }


def _chart(panel: Panel) -> dict[str, Any]:
    custom = {"fillOpacity": 30 if panel.stacked else 8, "lineWidth": 1, "showPoints": "never"}
    if panel.stacked:
        custom["stacking"] = {"mode": "normal"}  # type: ignore[assignment]
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.meaning,
        "datasource": {"type": "prometheus", "uid": "${DS_PROMETHEUS}"},
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(65 + i), "expr": expression, "legendFormat": legend}
            for i, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _placed(panel: dict[str, Any], x: int, y: int, width: int, height: int) -> dict[str, Any]:
    return {**panel, "gridPos": {"x": x, "y": y, "w": width, "h": height}}


def alert_rules() -> str:
    """The rules as a file of Prometheus; JSON strings are YAML strings."""
    lines = ["groups:", "  - name: paceline", "    rules:"]
    for rule in RULES:
        lines += [
            f"      - alert: {rule.name}",
            f"        expr: {json.dumps(rule.expression)}",
            f"        for: {rule.for_}",
            "        labels:",
            f"          severity: {rule.severity}",
            "        annotations:",
            f"          summary: {json.dumps(rule.summary)}",
            f"          description: {json.dumps(rule.what_to_do)}",
        ]
    return "\n".join(lines) + "\n"


def rules_document() -> dict[str, Any]:
    """The same rules as plain data."""
    rules = [
        {
            "alert": rule.name,
            "expr": rule.expression,
            "for": rule.for_,
            "labels": {"severity": rule.severity},
            "annotations": {"summary": rule.summary, "description": rule.what_to_do},
        }
        for rule in RULES
    ]
    return {"groups": [{"name": "paceline", "rules": rules}]}


def expressions() -> list[str]:
    """Every expression of the dashboard and of the rules."""
    panels = [query for _, group in PANELS for panel in group for query, _ in panel.queries]
    return panels + [rule.expression for rule in RULES]
