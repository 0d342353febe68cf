"""`paceline metrics`: a dashboard for Grafana, alert rules for Prometheus, and a table of all metrics."""

from typing import Any

import typer

from paceline.commands.output import JsonFile, Legend, page_console, print_legend, print_table, write_json

COLUMNS = ("metric", "type", "labels", "of", "meaning")


def grafana(json_file: JsonFile = "-") -> None:
    """Print a dashboard for Grafana (JSON): runs, switch memory, traffic, stragglers.

    Import it in Grafana and choose the Prometheus that scrapes `/metrics` of the switch and of `paceline dashboard`.

    Examples:

      paceline metrics grafana > paceline-dashboard.json

      paceline metrics grafana --json paceline-dashboard.json
    """
    from paceline.dashboard.grafana import dashboard

    write_json(json_file or "-", dashboard())
    if json_file not in ("", "-"):
        typer.echo(f"dashboard: {json_file}")


def alerts(json_file: JsonFile = "") -> None:
    """Print alert rules for Prometheus (YAML), each with what to do.

    Examples:

      paceline metrics alerts > paceline-alerts.yml

      paceline metrics alerts --json -
    """
    from paceline.dashboard.grafana import alert_rules, rules_document

    if json_file:
        write_json(json_file, rules_document())
    if json_file != "-":
        typer.echo(alert_rules(), nl=False)


def listed(legend: Legend = False, json_file: JsonFile = "") -> None:
    """Print every metric that a switch or a run's dashboard exports: name, type, labels, meaning.

    Examples:

      paceline metrics list

      paceline metrics list --json -
    """
    known = list(_metrics())
    if json_file:
        write_json(json_file, {"metrics": known})
    if json_file == "-":
        return
    page = page_console(140)
    rows = [[" ".join(v) if isinstance(v, list) else str(v) for v in each.values()] for each in known]
    print_table(page, COLUMNS, rows, texts=len(COLUMNS))
    if legend:
        print_legend(page, COLUMNS)


def _metrics() -> "list[dict[str, Any]]":
    from paceline.dashboard.planner_metrics import METRICS as PLANNER
    from paceline.live.switch.metrics import METRICS as SWITCH

    return [
        dict(zip(COLUMNS, (name, kind, list(labels), source, meaning), strict=True))
        for source, metrics in (("switch", SWITCH), ("run", PLANNER))
        for name, (kind, labels, meaning) in metrics.items()
    ]
