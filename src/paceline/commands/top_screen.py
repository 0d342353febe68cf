"""The screen of `paceline top`: a table of jobs, the selected one's details, events; keys ask the run's planner.

It reads the store anew at every look and keeps nothing but which job is selected. What a key asks for is written as a
command (`launch/control.py`); its outcome is shown when the planner has taken it.
"""

import contextlib
import time
from pathlib import Path
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Label, Static

from paceline.commands.run_view import SCREEN_COLUMNS, STYLES, cells_of, columns_in_view, headline, servers_of
from paceline.commands.status import event_line
from paceline.errors import UserError
from paceline.launch import control
from paceline.launch.salvage import shown_as_damage
from paceline.launch.store import Row, Store
from paceline.report.columns import legend
from paceline.report.run.logs import attempt_folder, logs_of, tail, why_it_failed

LOG_LINES = 6
EVENT_LINES = 6
EDGES = 4
"""Of the table: its margin, and the bar where it can be scrolled."""


class Confirm(ModalScreen[bool]):
    """Asks once more before something is lost."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape", "answer(False)", "no"),
    ]
    DEFAULT_CSS = """
    Confirm { align: center middle; }
    Confirm Label { border: round $warning; padding: 1 2; background: $surface; }
    """

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        yield Label(f"{self.question}\n\ny: yes   n: no", markup=False)

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class ColumnsExplained(ModalScreen[None]):
    """What the columns of the table mean, until a key is pressed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("l,escape,enter,q", "dismiss", "back")]
    DEFAULT_CSS = """
    ColumnsExplained { align: center middle; }
    ColumnsExplained Label { border: round $primary; padding: 1 2; background: $surface; width: 90%; }
    """

    def compose(self) -> ComposeResult:
        lines = [f"{column}: {meaning}" for column, meaning in legend(SCREEN_COLUMNS)]
        yield Label("\n".join(lines), markup=False)


class RunScreen(App[None]):
    """One run, looked at every so many seconds."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "cancel", "cancel job"),
        Binding("plus", "priority(2.0)", "priority x2", key_display="+"),
        Binding("minus", "priority(0.5)", "priority /2", key_display="-"),
        Binding("p", "pause", "pause / go on"),
        Binding("l", "legend", "columns"),
        Binding("q", "quit", "leave"),
    ]
    CSS = """
    #head { height: auto; padding: 0 1; color: $text-muted; }
    #jobs { height: 1fr; }
    #job { height: auto; max-height: 11; padding: 0 1; border-top: solid $primary; }
    #events { height: auto; max-height: 8; padding: 0 1; border-top: solid $primary; color: $text-muted;
              text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self, folder: Path, every_s: float = 0.5) -> None:
        super().__init__()
        self.folder, self.every_s = folder, every_s
        self.asked: list[int] = []
        """Numbers of commands whose outcome has not been shown."""
        self._shown: list[tuple[list[str], str]] = []
        """Cells and style of each row of the table,"""
        self._columns: list[int] = []
        """and which of `SCREEN_COLUMNS` there is room for."""

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield DataTable(id="jobs", cursor_type="row", zebra_stripes=False)
        yield Static(id="job", markup=False)
        yield Static(id="events", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self.title = f"paceline {self.folder}"
        self.look()
        self.set_interval(self.every_s, self.look)

    @property
    def jobs(self) -> "DataTable[object]":
        return self.query_one("#jobs", DataTable)

    @property
    def selected(self) -> str:
        """The name of the job under the cursor, or nothing."""
        table = self.jobs
        return str(table.get_row_at(table.cursor_row)[0]) if table.row_count else ""

    def look(self) -> None:
        """Show the run as it is now."""
        try:
            with contextlib.closing(Store.open_to_read(self.folder)) as store, shown_as_damage(self.folder):
                self._show(store, time.time())
        except UserError as error:
            self.query_one("#head", Static).update(str(error))

    def _show(self, store: Store, now: float) -> None:
        rows, servers, predictions = store.jobs(), servers_of(store), store.last_predictions()
        shown = []
        for row in rows:
            where = servers.get((row["name"], row["attempt"]), "")
            cells = [*cells_of(row, where, predictions.get(row["name"]), now), f"{row['priority']:g}"]
            shown.append((cells, STYLES.get(row["state"], "")))
        self._draw(shown)
        self.query_one("#head", Static).update("\n".join(headline(store, now)))
        self.query_one("#job", Static).update("\n".join(self._details(rows)))
        events = [event_line(row) for row in store.events()[-EVENT_LINES:]]
        self.query_one("#events", Static).update("\n".join(events))
        taken = {
            row["id"]: row for row in store.commands() if row["id"] in self.asked and row["state"] != "asked"
        }
        for number, row in taken.items():
            self.asked.remove(number)
            self.notify(row["outcome"], severity="information" if row["state"] == "done" else "warning")

    def _draw(self, rows: list[tuple[list[str], str]]) -> None:
        """Only what has changed, so that the table stays scrolled as it is; jobs are added below."""
        from rich.text import Text

        table = self.jobs
        columns = columns_in_view([cells for cells, _ in rows], self.size.width - EDGES, SCREEN_COLUMNS)
        cursor = None
        if columns != self._columns or len(rows) < len(self._shown):
            cursor = table.cursor_row
            table.clear(columns=True)
            table.add_columns(*(SCREEN_COLUMNS[i] for i in columns))
            self._columns, self._shown = columns, []
        rows = [([cells[i] for i in columns], style) for cells, style in rows]
        for i, (cells, style) in enumerate(rows):
            if i >= len(self._shown):
                table.add_row(*(Text(cell, style) for cell in cells))
                continue
            before, style_before = self._shown[i]
            for column, cell in enumerate(cells):
                if cell != before[column] or style != style_before:
                    table.update_cell_at(Coordinate(i, column), Text(cell, style), update_width=True)
        self._shown = rows
        if cursor is not None:
            table.move_cursor(row=cursor, animate=False)

    def _details(self, rows: list[Row]) -> list[str]:
        found = [row for row in rows if row["name"] == self.selected]
        if not found:
            return []
        row = found[0]
        lines = [f"{row['name']}: {row['state']}" + (f", {row['reason']}" if row["reason"] else "")]
        line = why_it_failed(self.folder, row)
        folder = attempt_folder(self.folder, row["name"], row["attempt"])
        logs = logs_of(folder) if row["attempt"] else {}
        rank = line.rank if line else min(logs, default=-1)
        if rank in logs:
            lines.append(f"rank {rank} of {len(logs)}: {logs[rank]}")
            written = tail(logs[rank], LOG_LINES) or ["(no lines yet)"]
            lines += [f"  {text}" for text in written]
        return lines

    # Keys --------------------------------------------------------------------------------------------------

    def ask(self, kind: str, job: str | None = None, **argument: object) -> None:
        """Write a command; without a planner it waits for the next one, which is said."""
        try:
            self.asked.append(control.ask(self.folder, kind, job=job, argument=argument, by="top"))
        except UserError as error:
            self.notify(error.message, severity="error")
            return
        if not control.planner_alive(self.folder):
            self.notify(
                "no planner is alive; it is done when the run goes on with --resume", severity="warning"
            )

    def action_cancel(self) -> None:
        job = self.selected
        if job:
            self.push_screen(
                Confirm(f"Cancel {job}?"), lambda sure: self.ask("cancel", job) if sure else None
            )

    def action_priority(self, factor: float) -> None:
        with contextlib.closing(Store.open_to_read(self.folder)) as store:
            found = [row for row in store.jobs() if row["name"] == self.selected]
        if found:
            self.ask("priority", found[0]["name"], priority=found[0]["priority"] * factor)

    def action_legend(self) -> None:
        self.push_screen(ColumnsExplained())

    def action_pause(self) -> None:
        with contextlib.closing(Store.open_to_read(self.folder)) as store:
            paused = bool(store.meta().get("paused"))
        self.ask("unpause" if paused else "pause")
