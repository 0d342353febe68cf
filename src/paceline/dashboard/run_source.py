"""A run as the dashboard sees it: its store, read anew only where something was written.

Tables that grow for ever (events, samples) are read from where the last look ended, and kept in part: what the page
can show. Whatever a report can say of a run is taken from `report/run/read.py`.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from paceline.dashboard.stragglers import Callback, StragglerRules, StragglerScores
from paceline.dashboard.switch_source import Health, health_of, total
from paceline.dashboard.views import (
    BarView,
    EventView,
    JobView,
    MemoryView,
    RunView,
    ServerView,
    StragglerView,
    SwitchView,
)
from paceline.launch.control import planner_alive
from paceline.launch.planner_loop import FINAL
from paceline.launch.salvage import shown_as_damage
from paceline.launch.store import Row, Store
from paceline.live.switch_client import parse_switches
from paceline.report.run.logs import why_it_failed
from paceline.report.run.read import RunData, lags_of, run_of, workers_of
from paceline.schedule.inputs.cluster import Cluster
from paceline.schedule.inputs.sources import ClusterSource

EVENTS = 200
"""The page shows so many."""
SAMPLES = 600
"""Of each job, for its charts."""
LOOKS = 1200
"""Looks at the switch that are kept."""
SILENT_AFTER_S = 1.5
"""A run's switch that cannot be asked from here is silent when its figures have stopped for so long."""


class RunSource:
    """One run, watched."""

    def __init__(
        self,
        folder: Path,
        rules: StragglerRules | None = None,
        callback: Callback | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self.name = folder.resolve().name
        self.clock = clock
        self.scores = StragglerScores(rules or StragglerRules(), callback)
        self.samples: dict[str, deque[Row]] = {}
        """The last progress of each job."""
        self.looks: deque[MemoryView] = deque(maxlen=LOOKS)
        """The switch's memory over time."""
        self._store = Store.open_to_read(folder)
        self._lock = threading.RLock()
        """Held by every reader: the page's looks, a click, a scrape."""
        self._last = {"samples": 0, "switch_samples": 0, "events": 0}
        """The last row of each growing table that was read."""
        self._events: deque[Row] = deque(maxlen=EVENTS)
        self._figures: dict[str, tuple[float, dict[str, float]]] = {}
        """By job: when the switch was last asked, what it had counted,"""
        self._rates: dict[str, tuple[float, float]] = {}
        """and bytes a second in and out since the look before."""
        self._unscored: list[tuple[float, str, dict[str, float]]] = []
        """Looks whose stragglers are not told yet: when, at which process group, what was counted."""
        self._paces: dict[str, list[tuple[float, float]]] = {}
        """By job: when it told its rate, and which; those since the last scoring, and the last before."""
        self._opened = clock()
        self._failures: dict[tuple[str, int], str] = {}
        """By job and attempt."""
        self._version = -1
        self._data: RunData | None = None
        self._switches: dict[str, tuple[Health, float, bool]] = {}
        """By name: how it is, since when, and whether it ever answered from here."""
        self._looked = 0.0
        """When the planner last wrote what the switch says."""
        source = ClusterSource((meta := self._store.meta())["cluster"]["name"], meta["cluster"]["data"], {})
        self.cluster: Cluster = source.file.cluster()

    def close(self) -> None:
        """Give the store back."""
        with self._lock:
            self._store.close()

    def data(self) -> RunData:
        """The run's tables as they are now; the growing ones in part."""
        with self._lock:
            version = self._store.data_version()
            if self._data is None or version != self._version:
                self._version = version
                self._read()
            assert self._data is not None
            return self._data

    def _read(self) -> None:
        with self._store.snapshot():
            meta = self._store.meta()
            for table, last in self._last.items():
                rows = self._store.rows_after(table, last)
                if rows:
                    self._last[table] = rows[-1]["id"]
                getattr(self, f"_take_{table}")(rows)
            tables: dict[str, Any] = {
                "servers": self._store.servers(), "jobs": self._store.jobs(), "attempts": self._store.attempts(),
                "placements": self._store.placements(), "plans": self._store.last_plan(),
                "events": list(self._events),
                "samples": sorted((row for kept in self.samples.values() for row in kept), key=_time),
                "switch_samples": [], "predictions": list(self._store.last_predictions().values()),
            }  # fmt: skip
        self._data = run_of(self.folder, meta, tables)
        self._score(self._data)

    def _take_samples(self, rows: list[Row]) -> None:
        for row in rows:
            self.samples.setdefault(row["job"], deque(maxlen=SAMPLES)).append(row)
            if row["rate"]:
                self._paces.setdefault(row["job"], []).append((row["time"], row["rate"]))

    def _take_events(self, rows: list[Row]) -> None:
        self._events.extend(rows)

    def _take_switch_samples(self, rows: list[Row]) -> None:
        began = float(self._store.meta()["began"])
        for when in sorted({row["time"] for row in rows}):
            now = [row for row in rows if row["time"] == when]
            held: dict[str, float] = {}
            slots: float | None = None
            counted: dict[str, dict[str, float]] = {}
            for row in now:
                if row["job"] is None:
                    slots = (slots or 0.0) + (total(row["figures"], "paceline_slots") or 0.0)
                    continue
                job = _job_of(row["job"])
                held[job] = held.get(job, 0.0) + (row["slots_in_use"] or 0.0)
                # Where racks have switches of their own, each tells of the same job.
                figures = counted.setdefault(row["job"], {})
                for key, value in row["figures"].items():
                    figures[key] = figures.get(key, 0.0) + value
            for name, figures in counted.items():
                self._count(name, when, figures)
                self._unscored.append((when, name, figures))
            self.looks.append(MemoryView(when - began, None if slots is None else round(slots), held))
            self._looked = when

    def _count(self, name: str, when: float, figures: dict[str, float]) -> None:
        then, before = self._figures.get(name, (when, figures))
        passed_s = when - then
        if passed_s > 0:
            new, old = (
                [total(each, "paceline_bytes_total", direction=way) or 0.0 for way in ("in", "out")]
                for each in (figures, before)
            )
            self._rates[name] = (max(0.0, new[0] - old[0]) / passed_s, max(0.0, new[1] - old[1]) / passed_s)
        self._figures[name] = (when, figures)

    # Stragglers ------------------------------------------------------------------------------------------

    def _score(self, data: RunData) -> None:
        """Every look since the last time, also those from before this page was opened."""
        jobs = {row["name"]: row for row in data.jobs}
        shares = _shares(data)
        for when, name, figures in self._unscored:
            row = jobs.get(_job_of(name))
            if row is None or (row["state"] in FINAL and row["ended"] is not None and when > row["ended"]):
                continue
            lags = lags_of(figures)
            names, gpus = workers_of(shares.get((row["name"], row["attempt"]), []), len(lags))
            pace = self._pace(row, when)
            self.scores.look(when, row["name"], lags, pace, names, gpus, news=when >= self._opened)
        self._unscored.clear()
        for paces in self._paces.values():
            del paces[:-1]
        for row in data.jobs:
            if row["state"] in FINAL:
                self.scores.forget(row["name"])

    def _pace(self, row: Row, when: float) -> float | None:
        """Iterations a second of a job at a time: what it had told last by then, or first after it."""
        if not (paces := self._paces.get(row["name"])):
            return None if row["rate"] is None else float(row["rate"])
        return next((rate for time_s, rate in reversed(paces) if time_s <= when), paces[0][1])

    # The view --------------------------------------------------------------------------------------------

    def view(self) -> RunView:
        """The run as the page shows it."""
        with self._lock, shown_as_damage(self.folder):
            return self._view(self.clock(), self.data())

    def _view(self, now: float, data: RunData) -> RunView:
        meta = data.meta
        over = meta.get("state") in ("done", "failed", "stopped")
        jobs = {row["name"]: self._job(data, row, now) for row in data.jobs}
        switches = self._switch_views(data, now, over)
        bars = {f"{bar.job}.{bar.attempt}.{bar.server}": bar for bar in _bars(data, now)}
        return RunView(
            name=self.name,
            folder=str(self.folder),
            state=str(meta.get("state", "new")),
            launcher=str(meta.get("launcher", "")),
            policy=str(meta.get("policy", "")),
            objective=str(meta.get("objective", "")),
            began=float(meta["began"]),
            time_s=data.end_s if over else data.at(now),
            planner=planner_alive(self.folder),
            paused=bool(meta.get("paused")),
            jobs=jobs,
            servers=self._servers(data),
            bars=bars,
            events={str(row["id"]): _event(data, row) for row in self._events},
            stragglers=self.scores.views() | _told_stragglers(data),
            switches=switches,
            memory=self.looks[-1] if self.looks else None,
            ended_s=data.end_s if over else None,
            avg_jct_s=data.avg_jct_s,
            makespan_s=data.makespan_s,
            lost_gpu_s=self.scores.lost_gpu_s(),
        )

    def _reason(self, row: Row) -> str:
        """Why it is where it is; of a failed job with the line of its log that explains it, read once."""
        if row["state"] != "failed":
            return str(row["reason"])
        key = row["name"], row["attempt"]
        if key not in self._failures:
            line = why_it_failed(self.folder, row)
            self._failures[key] = row["reason"] if line is None else f"{row['reason']}; {line}"
        return self._failures[key]

    def _job(self, data: RunData, row: Row, now: float) -> JobView:
        placed = [p for p in data.placements if (p["job"], p["attempt"]) == (row["name"], row["attempt"])]
        predicted_s, measured_s = predicted_and_measured(data, row, now)
        per_iteration = _prediction(data, row["name"])
        counted = [figures for name, (_, figures) in self._figures.items() if _job_of(name) == row["name"]]
        return JobView(
            name=row["name"],
            position=row["position"],
            state=row["state"],
            gpus=row["gpus"],
            servers={p["server"]: p["slots"] for p in placed},
            iterations=row["iterations"],
            priority=row["priority"],
            exchange=row["exchange"],
            arrival_s=row["arrival_s"],
            attempt=row["attempt"],
            reason=self._reason(row),
            iteration=row["iteration"],
            rate=row["rate"],
            path=row["path"],
            start_s=None if row["started"] is None else data.at(row["started"]),
            end_s=None if row["ended"] is None else data.at(row["ended"]),
            expected_end_s=None if row["expected_end"] is None else data.at(row["expected_end"]),
            exit_code=row["exit_code"],
            predicted_s=predicted_s,
            measured_s=measured_s,
            iteration_predicted_s=per_iteration.get("predicted_s"),
            iteration_measured_s=per_iteration.get("measured_s"),
            preemptions=_sum(counted, "paceline_preemptions_total"),
            fallbacks=_sum(counted, "paceline_fallbacks_total"),
            sums=_sum(counted, "paceline_completions_total"),
            loss=_loss(row),
        )

    def _servers(self, data: RunData) -> dict[str, ServerView]:
        held: dict[str, dict[str, str]] = {row["name"]: {} for row in data.servers}
        first = 0
        firsts: dict[str, int] = {}
        for row in data.servers:
            firsts[row["name"]] = first
            first += row["slots"]
        for placement in data.placements:
            if placement["end"] is None:
                for gpu in placement["gpus"]:
                    held[placement["server"]][str(gpu - firsts[placement["server"]])] = placement["job"]
        load, how = self._loads(data)
        return {
            row["name"]: ServerView(
                row["name"], row["rack"], row["state"], row["slots"], firsts[row["name"]], held[row["name"]],
                row["reason"], load.get(row["name"]), self.cluster.inter_bps, how.get(row["name"], ""),
            )
            for row in data.servers
        }  # fmt: skip

    def _loads(self, data: RunData) -> tuple[dict[str, float], dict[str, str]]:
        """Bits a second on each server's link, and where that is known from."""
        load: dict[str, float] = {}
        how: dict[str, str] = {}
        for row in data.jobs:
            servers = [p["server"] for p in data.placements if p["job"] == row["name"] and p["end"] is None]
            if len(servers) < 2:
                continue
            rates = [rate for name, rate in self._rates.items() if _job_of(name) == row["name"]]
            fresh = rates and (row["path"] or "switch") != "ring"
            if fresh:
                # What all workers send reaches the switch; each has an equal part of it.
                each = 8 * max(sum(rate[0] for rate in rates), sum(rate[1] for rate in rates)) / len(servers)
            else:
                size = int(row["spec"]["job"].get("gradient_bytes") or 0)
                each = 8 * size * (row["rate"] or 0.0) * 2 * (len(servers) - 1) / len(servers)
            for server in servers:
                load[server] = load.get(server, 0.0) + each
                how[server] = "switch" if fresh and how.get(server, "switch") == "switch" else "model"
        return load, how

    def _switch_views(self, data: RunData, now: float, over: bool) -> dict[str, SwitchView]:
        """The run's switch, or those of its racks; asked directly where that works, else as the planner saw it."""
        found: dict[str, SwitchView] = {}
        addresses = _switch_addresses(data.meta)
        answers = {} if over else _asked_together(set(addresses.values()))
        for name, address in addresses.items():
            _, since, reached = self._switches.get(name, (Health(""), now, False))
            before = self._switches.get(name, (Health(""), now, False))[0].state
            if over:
                health = Health("ended")
            elif (asked := answers[address]).state != "silent":
                health, reached = asked, True
            elif reached:
                health = asked
            elif not self._looked:
                health = Health("unseen", asked.reason)
            else:
                late_s = now - self._looked
                health = (
                    Health("silent", f"no figures for {late_s:.0f} s")
                    if late_s > SILENT_AFTER_S
                    else Health("ok")
                )
            since = now if health.state != before else since
            self._switches[name] = (health, since, reached)
            found[name] = SwitchView(address, health.state, data.at(since), health.reason)
        return found


# What the tables say -----------------------------------------------------------------------------------------


def _asked_together(addresses: set[str]) -> dict[str, Health]:
    """How each switch is; one that does not answer does not keep the others waiting."""
    if len(addresses) < 2:
        return {address: health_of(address) for address in addresses}
    with ThreadPoolExecutor(max_workers=len(addresses), thread_name_prefix="ask") as pool:
        return dict(zip(addresses, pool.map(health_of, addresses), strict=True))


def _time(row: Row) -> float:
    return float(row["time"])


def _job_of(name: str) -> str:
    """A process group of a job is `JOB/GROUP` in the switch."""
    return name.rpartition("/")[0] or name


def _sum(counted: list[dict[str, float]], metric: str) -> float | None:
    values = [value for figures in counted if (value := total(figures, metric)) is not None]
    return sum(values) if values else None


def _loss(row: Row) -> float | None:
    value = (row["progress"] or {}).get("loss")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _shares(data: RunData) -> dict[tuple[str, int], list[Row]]:
    found: dict[tuple[str, int], list[Row]] = {}
    for row in data.placements:
        found.setdefault((row["job"], row["attempt"]), []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: min(row["gpus"], default=0))
    return found


def predicted_and_measured(data: RunData, row: Row, now: float) -> tuple[float | None, float | None]:
    """Of a job's last attempt: what the plan expected, and what it took or is now expected to take."""
    attempt = next(
        (a for a in data.attempts if (a["job"], a["attempt"]) == (row["name"], row["attempt"])), None
    )
    if attempt is None:
        return None, None
    predicted_s = float(attempt["task"]["env"].get("PACELINE_REMAINING_S", "nan"))
    began = attempt["released"]
    if began is None:
        return predicted_s, None
    if attempt["ended"] is not None:
        return predicted_s, attempt["ended"] - began
    if row["rate"] and row["iteration"] is not None:
        left_s = max(0.0, row["iterations"] - row["iteration"]) / row["rate"]
        return predicted_s, now - began + left_s
    return predicted_s, None


def _prediction(data: RunData, job: str) -> Row:
    return next((row for row in data.predictions if row["job"] == job), {})


def _bars(data: RunData, now: float) -> list[BarView]:
    how = {(row["job"], row["attempt"]): row["outcome"] or "" for row in data.attempts}
    found = [
        BarView(
            row["job"], row["attempt"], row["server"], tuple(row["gpus"]), data.at(row["start"]),
            None if row["end"] is None else data.at(row["end"]), how.get((row["job"], row["attempt"]), ""),
        )
        for row in data.placements
    ]  # fmt: skip
    waiting = {row["name"] for row in data.jobs if row["state"] in ("waiting", "pending")}
    for plan in data.plans[-1:]:
        at = data.at(plan["time"])
        for decision in plan["decisions"]:
            if decision["job"] in waiting and not decision["now"]:
                # What a plan put into the past has not happened: it is late, and comes now at the earliest.
                late_s = max(0.0, data.at(now) - (at + decision["start_s"]))
                start_s, end_s = at + decision["start_s"] + late_s, at + decision["end_s"] + late_s
                found += [
                    BarView(decision["job"], 0, server, (), start_s, end_s, "planned")
                    for server in decision["servers"]
                ]
    return found


def _event(data: RunData, row: Row) -> EventView:
    return EventView(data.at(row["time"]), row["kind"], row["text"], row["reason"], row["job"])


def _told_stragglers(data: RunData) -> dict[str, StragglerView]:
    """Stragglers in a job's own words, where no switch sees them."""
    found: dict[str, StragglerView] = {}
    for row in data.jobs:
        who = (row["progress"] or {}).get("straggler")
        if row["state"] == "running" and isinstance(who, int | str) and who is not True and who != "":
            name = f"rank {who}" if isinstance(who, int) else who
            found[f"{row['name']}/told"] = StragglerView(row["name"], -1, name, 0.0, 0.0, 0.0, 0.0, True)
    return found


def _switch_addresses(meta: Mapping[str, Any]) -> dict[str, str]:
    """The switches of a run, by the names that its store has for them; those that others run are numbered."""
    found = {
        key: value["address"]
        for key, value in meta.items()
        if key.startswith("switch") and isinstance(value, dict) and "address" in value
    }
    if not found and (asked := str(meta["request"].get("switch", "none"))) not in ("none", "auto"):
        addresses = [named.address for named in parse_switches(asked)]
        names = [f"switch {k + 1}" for k in range(len(addresses))] if len(addresses) > 1 else ["switch"]
        found.update(zip(names, addresses, strict=True))
    return found


def open_run(
    folder: Path, rules: StragglerRules | None = None, callback: Callback | None = None
) -> RunSource:
    """A run's folder, to be watched; a folder without one is the user's mistake."""
    with shown_as_damage(folder):
        return RunSource(folder, rules, callback)
