"""The part of a run's report that holds predictions against measurements: what an iteration was expected to take."""

from paceline.report.page import Page
from paceline.report.run.read import Row, RunData, prediction_error

COLUMNS = (
    "from, s",
    "job",
    "servers",
    "predicted, ms",
    "measured, ms",
    "over iterations",
    "error",
    "computes",
)


SERVER_COLUMNS = ("server", "times as long", "since, s", "why")


def add_predictions(page: Page, run: RunData) -> None:
    """Servers that are slow; a row a job, by its last measured stretch; all stretches, from plan to plan."""
    if run.slow_servers:
        page.heading("Slow servers")
        page.text(
            "How many times as long devices take there as elsewhere: learned from what ranks tell of their computing, "
            "or from jobs that ran inside one server. Plans made after that reckon with it."
        )
        page.table(
            SERVER_COLUMNS,
            [
                [server, round(row["factor"], 2), round(run.at(row["time"]), 1), row["reason"]]
                for server, row in run.slow_servers.items()
            ],
        )
    measured = [row for row in run.predictions if row["measured_s"]]
    if not measured:
        return
    page.heading("Iterations, predicted and measured")
    page.text(
        "For each job the last stretch between two plans that was long enough to measure. Error: the prediction over "
        "the measurement. Computes: how many times as long as its file says, as the prediction had it, and as the "
        "measurement has it; the next plan goes by that."
    )
    last = {row["job"]: row for row in measured}
    page.table(COLUMNS, [_cells(run, last[job["name"]]) for job in run.jobs if job["name"] in last])
    page.fold(f"All {len(measured)} stretches", [], COLUMNS, [_cells(run, row) for row in measured])


def _cells(run: RunData, row: Row) -> list[object]:
    servers = next(
        (each.servers for each in run.tries if (each.job, each.number) == (row["job"], row["attempt"])), ()
    )
    learned = "" if row["learned"] is None else f" > {row['learned']:.3g}"
    return [
        round(run.at(row["since"]), 1),
        row["job"],
        ", ".join(servers),
        1e3 * row["predicted_s"],
        1e3 * row["measured_s"],
        round(row["iterations"]),
        f"{prediction_error(row):+.1%}",
        f"{row['factor']:.3g}{learned}",
    ]
