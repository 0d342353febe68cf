"""Runs on disk for the tests of the report, written through the store that real runs use.

`python -m tests.report.run_scenes FOLDER` writes both, to look at their pages.
"""

import sys
from pathlib import Path

from paceline.launch.store import Store

BEGAN = 1_700_000_000.0
SERVERS = (("s0", 2), ("s1", 2), ("s2", 1))
_FIRST = {"s0": 0, "s1": 2, "s2": 4}


def _job(store: Store, position: int, name: str, gpus: int, arrival_s: float, **values: object) -> None:
    defaults: dict[str, object] = {
        "iterations": 100.0, "priority": 1.0, "exchange": "in-network", "spec": {"name": name, "gpus": gpus},
        "state": "done", "attempt": 1, "reason": "ended with 0", "exit_code": 0, "rate": 10.0, "path": "switch",
        "iteration": 100.0,
    }  # fmt: skip
    defaults.update(values)
    store.insert("jobs", name=name, position=position, gpus=gpus, arrival_s=arrival_s, **defaults)


def _attempt(
    store: Store,
    job: str,
    number: int,
    places: dict[str, list[int]],
    start: float,
    end: float | None,
    outcome: str,
) -> None:
    token = f"{job}.{number}"
    store.insert(
        "attempts", job=job, attempt=number, token=token, state="ended" if end else "released", task={"job": job},
        handle=None, intended=BEGAN + start, released=BEGAN + start, ended=end and BEGAN + end,
        outcome=outcome or None, exit_code=0, reason="",
    )  # fmt: skip
    for server, local in places.items():
        store.insert(
            "placements", job=job, attempt=number, server=server, slots=len(local),
            gpus=[_FIRST[server] + slot for slot in local], start=BEGAN + start, end=end and BEGAN + end,
            reason=f"the fewest servers with room: {server}",
        )  # fmt: skip


def paceline_run(folder: Path, slow: float = 1.0, name: str = "paceline") -> Path:
    """Three jobs with a switch; one changes its path, one has a slow worker, one is lost once."""
    store = Store.create(folder / name)
    store.set_meta(
        run_id="r1", began=BEGAN, ended=BEGAN + 20 * slow, launcher="local", policy="sjf-bco", objective="makespan",
        state="done", switch={"address": "127.0.0.1:7070", "token": "t"}, options={},
    )  # fmt: skip
    for position, (server, slots) in enumerate(SERVERS):
        store.insert("servers", name=server, position=position, slots=slots, rack="r0", state="up", reason="")
    progress = {"iteration": 100, "rate": 10.0, "path": "switch", "loss": 0.25, "taken_over_total": 42}
    _job(store, 0, "alpha", 4, 0.0, started=BEGAN + 0.5, ended=BEGAN + 10 * slow, progress=progress)
    _job(
        store,
        1,
        "beta",
        1,
        0.0,
        started=BEGAN + 0.5,
        ended=BEGAN + 16 * slow,
        attempt=2,
        progress={"loss": 0.5},
    )
    _job(store, 2, "gamma", 2, 5.0, started=BEGAN + 10.2, ended=BEGAN + 20 * slow, progress={"loss": 0.75})
    _attempt(store, "alpha", 1, {"s0": [0, 1], "s1": [0, 1]}, 0.5, 10 * slow, "done")
    _attempt(store, "beta", 1, {"s2": [0]}, 0.5, 4 * slow, "lost")
    _attempt(store, "beta", 2, {"s2": [0]}, 6 * slow, 16 * slow, "done")
    _attempt(store, "gamma", 1, {"s0": [0, 1]}, 10.2 * slow, 20 * slow, "done")
    decision = {"job": "alpha", "servers": {"s0": 2, "s1": 2}, "start_s": 0.0, "end_s": 9.5}
    store.insert(
        "plans", time=BEGAN + 0.4, policy="sjf-bco", trigger="the run began", running={}, settings={"theta": 12.5},
        decisions=[{**decision, "reason": "smallest first; needs two servers", "now": True}], took_s=0.012,
    )  # fmt: skip
    store.insert(
        "plans", time=BEGAN + 5.0, policy="sjf-bco", trigger="gamma arrived", running={"alpha": 50.0},
        decisions=[
            {**decision, "reason": "runs already", "now": False},
            {"job": "gamma", "servers": {"s0": 2}, "start_s": 5.0, "end_s": 15.0, "now": False,
             "reason": "waits for s0"},
        ],
        settings={"theta": 14.0, "kappa": 4}, took_s=0.02,
    )  # fmt: skip
    for since, factor, learned in ((0.4, 1.0, 1.25), (5.0, 1.25, None)):
        store.insert(
            "predictions", job="alpha", attempt=1, since=BEGAN + since, factor=factor, predicted_s=0.08 * factor,
            measured_s=0.1, iterations=40.0, learned=learned,
        )  # fmt: skip
    store.insert("predictions", job="gamma", attempt=1, since=BEGAN + 10.2, factor=1.0, predicted_s=0.2)
    store.event(BEGAN, "run", "3 jobs on 3 servers by sjf-bco")
    store.event(
        BEGAN + 4 * slow,
        "lost",
        "beta is lost, and waits to be placed anew",
        job="beta",
        reason="<s2> & gone",
    )
    store.event(BEGAN + 6.5, "path", "switch to custodian", job="alpha", reason="no answer for 3 round trips")
    store.event(BEGAN + 7.0, "switch", "the switch 127.0.0.1:7070 does not answer", reason="timed out")
    for second in range(1, int(20 * slow)):
        _sample(store, second, slow)
    store.event(BEGAN + 20 * slow, "run", "the run ends: 3 done")
    store.close()
    return folder / name


def _sample(store: Store, second: int, slow: float) -> None:
    when = BEGAN + second
    if second < 10 * slow:
        path = "switch" if second < 6 or second > 8 else "custodian"
        figures: dict[str, object] = {"loss": 1.0 / second}
        if 3 <= second < 7:
            figures |= {"straggler": 3, "straggler_reason": "rank 1 is done and helps rank 3"}
        store.insert(
            "samples",
            time=when,
            job="alpha",
            attempt=1,
            iteration=second * 10.0,
            rate=10.0,
            path=path,
            figures=figures,
        )
        store.insert(
            "switch_samples", time=when, job="alpha/0", slots_in_use=40.0 + 5 * (second % 3), preemptions=second * 2.0,
            figures={
                f"paceline_arrival_lag_seconds_{what},worker={worker}": value * second
                for worker in range(4)
                for what, value in (("sum", 2.0 if worker == 3 else 0.1), ("count", 100.0))
            }
            | {"paceline_completions_total": 200.0 * second, "paceline_fallbacks_total": 3.0 * second},
        )  # fmt: skip
    if second > 11:
        store.insert(
            "samples",
            time=when,
            job="gamma",
            attempt=1,
            iteration=second * 1.0,
            rate=5.0,
            path="switch",
            figures={},
        )
        store.insert(
            "switch_samples",
            time=when,
            job="gamma",
            slots_in_use=25.0,
            preemptions=7.0,
            figures={"other": 1.0},
        )
    store.insert(
        "switch_samples",
        time=when,
        job=None,
        slots_in_use=None,
        preemptions=None,
        figures={"paceline_slots,shard=0": 64.0},
    )


def baseline_run(folder: Path) -> Path:
    """The same jobs, half as long again."""
    return paceline_run(folder, slow=1.5, name="baseline")


def going_run(folder: Path) -> Path:
    """A run of which nothing has ended yet."""
    store = Store.create(folder / "going")
    store.set_meta(run_id="r2", began=BEGAN, launcher="local", policy="ff", state="running", switch=None)
    store.insert("servers", name="s0", position=0, slots=2, rack="", state="up", reason="")
    _job(store, 0, "one", 1, 0.0, state="running", started=BEGAN + 1, path=None, progress=None)
    _job(store, 1, "two", 2, 9.0, state="pending", attempt=0, path=None, progress=None)
    _attempt(store, "one", 1, {"s0": [0]}, 1.0, None, "")
    store.event(BEGAN + 3, "running", "one runs", job="one")
    store.close()
    return folder / "going"


if __name__ == "__main__":
    paceline_run(Path(sys.argv[1]))
    baseline_run(Path(sys.argv[1]))
