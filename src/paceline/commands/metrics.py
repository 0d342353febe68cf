"""`paceline metrics`: a dashboard for Grafana, alert rules for Prometheus, and a table of all metrics."""

import typer


def grafana() -> None:
    """Print a dashboard for Grafana (JSON): runs, switch memory, traffic, stragglers.

    Import it in Grafana and choose the Prometheus that scrapes `/metrics` of the switch and of `paceline dashboard`.

    Examples:

      paceline metrics grafana > paceline-dashboard.json
    """
    import json

    from paceline.dashboard.grafana import dashboard

    typer.echo(json.dumps(dashboard(), indent=2))


def alerts() -> None:
    """Print alert rules for Prometheus (YAML), each with what to do.

    Examples:

      paceline metrics alerts > paceline-alerts.yml
    """
    from paceline.dashboard.grafana import alert_rules

    typer.echo(alert_rules(), nl=False)


def listed() -> None:
    """Print every metric that a switch or a run's dashboard exports: name, type, labels, meaning.

    Examples:

      paceline metrics list
    """
    from rich.table import Table

    from paceline.commands.output import page_console
    from paceline.dashboard.planner_metrics import METRICS as PLANNER
    from paceline.live.switch.metrics import METRICS as SWITCH

    table = Table(box=None, pad_edge=False)
    for column in ("metric", "type", "labels", "of", "meaning"):
        table.add_column(column, overflow="fold")
    for source, metrics in (("switch", SWITCH), ("run", PLANNER)):
        for name, (kind, labels, meaning) in metrics.items():
            table.add_row(name, kind, " ".join(labels), source, meaning)
    page_console(140).print(table)
