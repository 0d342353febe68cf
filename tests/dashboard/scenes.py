"""Runs on disk for the dashboard's tests, written through the store that real runs use; and its server in a thread."""

import contextlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.dashboard.hub import Hub
from paceline.dashboard.run_source import RunSource
from paceline.dashboard.server import bound_socket, server_of
from paceline.dashboard.switch_source import SwitchSource
from paceline.launch.store import Store

TOKEN = "a-token-for-the-tests"


class WrittenRun:
    """A run that the test writes itself, as a planner would."""

    def __init__(
        self, folder: Path, servers: int = 2, slots: int = 2, racks: int = 1, switch: str = ""
    ) -> None:
        self.folder, self.slots = folder, slots
        self.began = time.time() - 10.0
        self.store = Store.create(folder)
        names = [f"s{i}" for i in range(servers)]
        data = {
            "servers": [
                {"name": n, "gpus": slots, "rack": f"r{i * racks // servers}"} for i, n in enumerate(names)
            ]
        }
        self.store.set_meta(
            run_id="r1", began=self.began, ended=None, state="running", launcher="local", policy="bco-plus",
            objective="makespan", switch={"address": switch, "token": "t"} if switch else None,
            cluster={"name": "test", "data": data}, request={"switch": "auto" if switch else "none"},
        )  # fmt: skip
        for position, name in enumerate(names):
            rack = f"r{position * racks // servers}"
            self.store.insert(
                "servers", name=name, position=position, slots=slots, rack=rack, state="up", reason=""
            )
        self.jobs = 0

    def job(self, name: str, gpus: list[int] | None = None, **values: object) -> None:
        """A job; with `gpus` it runs there."""
        state = "running" if gpus else "waiting"
        row: dict[str, object] = {
            "iterations": 100.0, "priority": 1.0, "exchange": "in-network", "state": state, "arrival_s": 0.0,
            "spec": {"job": {"name": name, "gradient_bytes": 1_000_000}, "command": ["/bin/sh", "-c", "train"]},
            "attempt": 1 if gpus else 0, "reason": "the fewest servers with room" if gpus else "no room yet",
            "started": self.began + 1.0 if gpus else None, "gpus": len(gpus or [1]),
        }  # fmt: skip
        row.update(values)
        self.store.insert("jobs", name=name, position=self.jobs, **row)
        self.jobs += 1
        if gpus:
            self._attempt(name, gpus)

    def _attempt(self, name: str, gpus: list[int]) -> None:
        shares: dict[str, list[int]] = {}
        for gpu in gpus:
            shares.setdefault(f"s{gpu // self.slots}", []).append(gpu)
        task = {
            "job": name,
            "env": {"PACELINE_REMAINING_S": "20.0"},
            "shares": [{"server": s} for s in shares],
        }
        self.store.insert(
            "attempts", job=name, attempt=1, token=f"{name}.1", state="released", task=task, handle=None,
            intended=self.began + 1.0, released=self.began + 1.0, outcome=None, reason="",
        )  # fmt: skip
        for server, own in shares.items():
            self.store.insert(
                "placements", job=name, attempt=1, server=server, slots=len(own), gpus=own, start=self.began + 1.0,
                reason="the fewest servers with room",
            )  # fmt: skip

    def progress(self, name: str, iteration: float, rate: float = 5.0, **figures: object) -> None:
        """What the job told of itself."""
        told = {"iteration": iteration, "rate": rate, "path": "switch", **figures}
        with self.store.transaction():
            self.store.update_job(name, iteration=iteration, rate=rate, path="switch", progress=told)
            self.store.insert(
                "samples", time=time.time(), job=name, attempt=1, iteration=iteration, rate=rate, path="switch",
                figures=figures,
            )  # fmt: skip

    def switch_look(self, when: float, jobs: dict[str, dict[str, Any]], slots: int = 1000) -> None:
        """What the switch told: by job `held`, and figures of its metrics."""
        at = self.began + when
        with self.store.transaction():
            self.store.insert(
                "switch_samples", time=at, job=None, slots_in_use=None, preemptions=None,
                figures={"paceline_slots,shard=0": slots},
            )  # fmt: skip
            for job, told in jobs.items():
                self.store.insert(
                    "switch_samples", time=at, job=f"{job}/0", slots_in_use=told.get("held", 0.0),
                    preemptions=0.0, figures=told["figures"],
                )  # fmt: skip


def lag_figures(lags: dict[int, tuple[float, float]], **counts: float) -> dict[str, float]:
    """Figures as `samples_of` has them: worker -> (count, seconds)."""
    name = "paceline_round_lag_seconds"
    found = {f"{name}_count,worker={w}": count for w, (count, _) in lags.items()}
    found |= {f"{name}_sum,worker={w}": total for w, (_, total) in lags.items()}
    return found | {f"paceline_{key}_total": value for key, value in counts.items()}


@contextlib.contextmanager
def served(
    runs: list[RunSource], switches: list[SwitchSource] | None = None, token: str = TOKEN
) -> Iterator[str]:
    """The dashboard in a thread; its address."""
    hub = Hub(runs, switches or [], bool(token))
    made = bound_socket("127.0.0.1", 0, any_after=False)
    server = server_of(hub, token, loopback=True)
    thread = threading.Thread(target=lambda: server.run(sockets=[made]), daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{made.getsockname()[1]}"
        until = time.monotonic() + 20.0
        while not hub.latest and time.monotonic() < until:
            time.sleep(0.01)
        yield url
    finally:
        hub._closed = True
        server.should_exit = True
        thread.join(10.0)
        hub.close()
        made.close()


def get(url: str, **headers: str) -> Any:
    """JSON from an address."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
        return json.loads(answer.read())


def status_of(url: str, **headers: str) -> int:
    """The HTTP status of a request."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def post(url: str, body: object, token: str = "") -> tuple[int, Any]:
    """Status and JSON of a request with a body."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=15) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def free_address() -> str:
    """An address where nobody listens."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{made.getsockname()[1]}"


def merged(document: Any, patch: Any) -> Any:
    """The document with the JSON merge patch applied, as the page does it."""
    if not isinstance(patch, dict):
        return patch
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result
