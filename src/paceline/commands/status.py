"""`paceline status` and `paceline logs`: what a run does now, and what its jobs say."""

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.commands.output import JsonFile, Legend, page_console, print_legend, write_json
from paceline.commands.run_view import COLUMNS, failures, headline, job_table, summary
from paceline.whole_files import BYTES_MAX, bytes_from

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.launch.store import Row, Store

EVENTS_SHOWN = 5
LOOK_S = 0.2
LOOK_BACK_BYTES = 1 << 26
"""Of a log whose last lines are wanted."""
RunOption = Annotated[
    str, typer.Option("--run", metavar="RUN", help="The run's folder. Default: the newest below this one.")
]


def status(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The run's folder. Default: the newest below this one.")
    ] = "",
    legend: Legend = False,
    json_file: JsonFile = "",
) -> None:
    """Show what a run does: its jobs, why some failed, what happened last.

    Works while the run goes on, from any terminal, and after it. Reads only.

    Examples:

      paceline status

      paceline status out/run

      paceline status out/run --legend

      paceline status out/run --json -
    """
    from paceline.launch.control import find_run
    from paceline.launch.salvage import shown_as_damage
    from paceline.launch.store import Store

    folder = find_run(run)
    with contextlib.closing(Store.open_to_read(folder)) as store, shown_as_damage(folder):
        _show(store, legend, json_file)


def _show(store: "Store", legend: bool, json_file: str) -> None:
    from paceline.launch.control import planner_alive

    if json_file:
        paused = bool(store.meta().get("paused"))
        document = {**summary(store), "paused": paused, "planner_alive": planner_alive(store.folder)}
        write_json(json_file, document)
    if json_file != "-":
        now = time.time()
        page = page_console(110)
        for line in headline(store, now):
            page.print(line, markup=False, soft_wrap=True)
        page.print()
        page.print(job_table(store, store.jobs(), now, page.width))
        if legend:
            print_legend(page, COLUMNS)
        failed = failures(store)
        if failed:
            page.print()
        for line in failed:
            page.print(line, markup=False, soft_wrap=True)
        page.print("\nlast events:")
        for row in store.events()[-EVENTS_SHOWN:]:
            page.print(event_line(row), markup=False, soft_wrap=True)


def event_line(row: "Row") -> str:
    """An event in a line."""
    reason = f" ({row['reason']})" if row["reason"] else ""
    clock = time.strftime("%H:%M:%S", time.localtime(row["time"]))
    return f"{clock} {row['kind']}: {row['text']}{reason}".replace("\n", " ")


def logs(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")],
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on with what is written, until the job ends.")
    ] = False,
    rank: Annotated[int | None, typer.Option(min=0, help="One rank's log. Default: all ranks.")] = None,
    attempt: Annotated[int | None, typer.Option(min=1, help="Default: the last attempt.")] = None,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="Lines from the end; 0: all.")] = 50,
    run: RunOption = "",
    json_file: JsonFile = "",
) -> None:
    """Show what a job has written: the last lines of its ranks' logs, and more as it comes.

    Lines of several ranks are marked with their rank.

    Examples:

      paceline logs resnet-a

      paceline logs resnet-a -f --rank 0

      paceline logs resnet-a --run out/run -n 0

      paceline logs resnet-a --json -
    """
    from paceline.errors import UserError
    from paceline.launch.control import find_run, known_job
    from paceline.launch.salvage import shown_as_damage
    from paceline.launch.store import Store
    from paceline.report.run.logs import attempt_folder, logs_of

    if follow and json_file:
        raise UserError("a log that goes on is no JSON document; leave out -f or --json", place="--json")
    folder = find_run(run)
    with contextlib.closing(Store.open_to_read(folder)) as store, shown_as_damage(folder):
        row, launcher = known_job(store, job), str(store.meta()["launcher"])
    if attempt is not None and attempt > row["attempt"]:
        raise UserError(f"{job} has {row['attempt']} attempts", place="--attempt")
    number = attempt or row["attempt"]
    if not number and not follow and json_file != "-":
        typer.echo(f"{job} is {row['state']}: {row['reason']}; it has written nothing yet", err=True)
    if number and not follow:
        found = logs_of(attempt_folder(folder, job, number))
        if rank is not None and rank not in found:
            known = ", ".join(str(each) for each in found) or "none"
            raise UserError(f"{job} has no log of rank {rank}; there are: {known}", place="--rank")
    if number and json_file != "-":
        _tell_what_is_missing(folder, row, number, launcher)
    if json_file:
        write_json(json_file, _logs_json(folder, row, number, rank, lines))
    if json_file != "-" and (number or follow):
        for text in written(folder, job, attempt, rank, lines, follow):
            typer.echo(text)


def _tell_what_is_missing(folder: Path, row: "Row", attempt: int, launcher: str) -> None:
    """On standard error: why there is no log yet, or no more of it to come, where that is the launcher's doing."""
    from paceline.launch.control import ENDED, HOW_LOGGED, planner_alive
    from paceline.report.run.logs import attempt_folder, logs_of

    where, how = attempt_folder(folder, row["name"], attempt), HOW_LOGGED.get(launcher, "")
    if not logs_of(where):
        typer.echo(f"no log in {where} yet" + (f"; {how}" if how else ""), err=True)
    elif launcher == "ray" and row["state"] not in ENDED and not planner_alive(folder):
        typer.echo(
            f"no planner is alive, so this is not all: {how}; paceline run --resume {folder}", err=True
        )


def _logs_json(folder: Path, row: "Row", attempt: int, rank: int | None, lines: int) -> dict[str, Any]:
    from paceline.report.run.logs import attempt_folder, logs_of

    found = logs_of(attempt_folder(folder, row["name"], attempt)) if attempt else {}
    logs = []
    for each, path in found.items():
        if rank is None or each == rank:
            text, _ = _read_lines(path, _begin(path, lines), last=True)
            logs.append({"rank": each, "path": str(path), "lines": text[-lines:] if lines else text})
    return {"job": row["name"], "state": row["state"], "attempt": attempt, "logs": logs}


def written(
    run: Path, job: str, attempt: int | None, rank: int | None, lines: int, follow: bool, look_s: float = LOOK_S
) -> "Iterator[str]":  # fmt: skip
    """The lines of a job's logs: the last of each rank, then what comes, until the job has ended."""
    from paceline.launch.control import known_job
    from paceline.launch.planner_loop import FINAL
    from paceline.launch.store import Store
    from paceline.report.run.logs import attempt_folder, logs_of

    places: dict[Path, int] = {}
    shown = 0
    while True:
        store = Store.open_to_read(run)
        row = known_job(store, job)
        store.close()
        # Looked at before the logs: what was written before the end is read after it.
        over = row["state"] in FINAL or (attempt is not None and attempt < row["attempt"])
        number = attempt or row["attempt"]
        if shown and number > shown:
            yield f"--- attempt {number} ---"
        shown = number
        found = logs_of(attempt_folder(run, job, number)) if number else {}
        chosen = {each: path for each, path in found.items() if rank is None or each == rank}
        for each, path in chosen.items():
            first = path not in places
            place = _begin(path, lines) if first else places[path]
            fresh, places[path] = _read_lines(path, place, last=over or not follow)
            for text in fresh[-lines:] if first and lines else fresh:
                yield f"[{each}] {text}" if len(chosen) > 1 else text
        if over or not follow:
            return
        time.sleep(look_s)


def _begin(path: Path, lines: int) -> int:
    """Where to begin in a log whose last lines are wanted; it may be larger than memory."""
    try:
        return max(0, path.stat().st_size - LOOK_BACK_BYTES) if lines else 0
    except OSError:
        return 0


def _read_lines(path: Path, place: int, last: bool) -> tuple[list[str], int]:
    """Whole lines from a place on, and the place after them; at the last look also one without an end."""
    data = bytes_from(path, place, BYTES_MAX)
    if not last:
        data = data[: data.rfind(b"\n") + 1]
    return data.decode(errors="replace").splitlines(), place + len(data)
