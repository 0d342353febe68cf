"""Runs for the tests: job files whose jobs note each of their starts, and planners that can be killed."""

import asyncio
import collections
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline.commands.status import written
from paceline.launch import control
from paceline.launch import run as launch
from paceline.launch.launchers import supervisor
from paceline.launch.launchers.protocol import MARK
from paceline.launch.store import Row, Store, read_run
from paceline.launch.why import of_run

LIMIT_S = 120.0
PLANNERS: "list[subprocess.Popen[str]]" = []
"""Those of the running test; what it leaves is ended by `conftest.py`."""


class Quiet:
    """Nobody looks on."""

    def event(self, row: Row) -> None: ...

    def tick(self, store: Store, now: float) -> None: ...


class Scene:
    """A folder with a job list, a cluster, and a file in which every rank of every attempt notes its start."""

    def __init__(self, folder: Path, servers: Mapping[str, int]) -> None:
        self.folder, self.run_dir = folder, folder / "run"
        self.jobs_file, self.cluster_file, self.notes = (
            folder / "j.toml",
            folder / "c.toml",
            folder / "starts",
        )
        self._jobs: list[str] = []
        folder.mkdir(exist_ok=True)
        self.cluster_file.write_text(
            "".join(f'[[servers]]\nname = "{name}"\ngpus = {slots}\n' for name, slots in servers.items())
        )

    def job(self, name: str, gpus: int = 1, script: str = "sleep 0.3", **keys: object) -> "Scene":
        """A job whose ranks note their start, then run the script; `keys` are further lines of the job file."""
        where = "${SLURMD_NODENAME:-$PACELINE_SERVER}"
        note = f"echo $PACELINE_JOB $RANK $WORLD_SIZE {where} $PACELINE_ATTEMPT >> {self.notes}"
        keys = {"iterations": 3, "backward": "100 ms", **keys}
        lines = [f"{key} = {_toml(value)}" for key, value in keys.items()]
        command = json.dumps(["/bin/sh", "-c", f"{note}; {script}"])
        text = f'[[jobs]]\nname = "{name}"\ngpus = {gpus}\ncommand = {command}\n'
        self._jobs.append(text + "\n".join(lines) + "\n")
        self.jobs_file.write_text("\n".join(self._jobs))
        return self

    def create(self, **request: Any) -> None:
        launch.create(
            self.jobs_file,
            str(self.cluster_file),
            launch.RunRequest(policy="sjf-bco", **request),
            self.run_dir,
        )

    def run(self, **request: Any) -> int:
        """In this process, from the start to the end."""
        self.create(**request)
        return launch.go_on(self.run_dir, Quiet())

    def planner(self, *more: str, env: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
        """A planner of its own process, to be killed."""
        call = "from paceline.cli import main; main()"
        started = subprocess.Popen(
            [sys.executable, "-c", call, "run", *more], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})}, cwd=self.folder,
        )  # fmt: skip
        PLANNERS.append(started)
        return started

    def new_planner(self, *more: str, env: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
        return self.planner(
            str(self.jobs_file), "--cluster", str(self.cluster_file), "--out", str(self.run_dir), "--policy",
            "sjf-bco", *more, env=env,
        )  # fmt: skip

    def store(self) -> Store:
        return Store.open_to_read(self.run_dir)

    def states(self) -> dict[str, str]:
        return {row["name"]: row["state"] for row in self.rows("jobs")}

    def rows(self, what: str) -> list[Row]:
        store = self.store()
        try:
            found: list[Row] = getattr(store, what)()
            return found
        finally:
            store.close()

    def starts(self) -> dict[str, int]:
        """How often each job was started: the notes of its ranks 0."""
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return dict(collections.Counter(line.split()[0] for line in lines if line.split()[1] == "0"))

    def places(self) -> dict[str, list[str]]:
        """The servers on which each job's ranks said that they ran, in rank order, of the last attempt."""
        found: dict[tuple[str, str], dict[int, str]] = {}
        last: dict[str, str] = {}
        for line in self.notes.read_text().splitlines():
            name, rank, _, server, token = line.split()
            found.setdefault((name, token), {})[int(rank)] = server
            last[name] = token
        return {
            name: [ranks[rank] for rank in sorted(ranks)]
            for (name, token), ranks in found.items()
            if last[name] == token
        }


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {json.dumps(each)}" for key, each in value.items()) + " }"
    return json.dumps(value)


def until(path: Path) -> str:
    """For a job's script: wait until the file is there, so that nothing depends on who is how fast."""
    return f"i=0; while [ ! -e {path} ] && [ $i -lt 1500 ]; do sleep 0.1; i=$((i + 1)); done"


def wait_for(ready: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not ready():
        assert time.monotonic() < deadline, f"{what} did not happen within {limit_s:.0f} s"
        time.sleep(0.05)


def kill(process: "subprocess.Popen[str]", number: int = signal.SIGKILL) -> tuple[int, str, str]:
    """Signal a planner and wait for its end; its exit code and what it said."""
    process.send_signal(number)
    return finish(process)


def finish(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, err


def assert_nothing_left(token: str) -> None:
    """No process carries the token any more, or soon none does: the last may just be ending."""
    wait_for(lambda: not supervisor.marked_processes(MARK, token), "the end of all processes", 20)


def ten_jobs(scene: Scene, script: str = "sleep 0.3") -> Scene:
    """Ten jobs of one to four slots, some arriving late; one of them fails."""
    for i, gpus in enumerate((1, 2, 4, 1, 3, 2, 1, 1, 2)):
        scene.job(f"j{i}", gpus, script, arrival=f"{0.2 * (i % 3):.1f} s")
    return scene.job("bad", 2, "sleep 0.1; exit 7")


def assert_ten_went_well(scene: Scene, code: int) -> None:
    """What every launcher has to show after `ten_jobs`."""
    rows = {row["name"]: row for row in scene.rows("jobs")}
    assert code == 1, "one of the ten fails"
    assert {name: row["state"] for name, row in rows.items()} == {
        **{f"j{i}": "done" for i in range(9)},
        "bad": "failed",
    }
    assert rows["bad"]["exit_code"] == 7
    assert scene.starts() == dict.fromkeys(rows, 1)
    promised: dict[str, list[str]] = {}
    for place in scene.rows("placements"):
        promised.setdefault(place["job"], []).extend([place["server"]] * place["slots"])
        assert place["end"] >= place["start"]
    assert scene.places() == promised, "every rank ran where the plan put it"
    assert_slots_held_once(scene)


def assert_slots_held_once(scene: Scene) -> None:
    """No slot was given to two jobs at a time."""
    held: dict[int, list[tuple[float, float]]] = {}
    for place in scene.rows("placements"):
        for gpu in place["gpus"]:
            held.setdefault(gpu, []).append((place["start"], place["end"]))
    for times in held.values():
        for before, after in zip(sorted(times), sorted(times)[1:], strict=False):
            assert before[1] <= after[0]


def guide_command(launcher: str) -> str:
    """The command of the user guide for a launcher, as it stands there."""
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")
    (found,) = [line for line in guide.splitlines() if line.endswith(f"--launcher {launcher}")]
    return found


def run_guide_command(scene: Scene, launcher: str, env: Mapping[str, str] | None = None) -> None:
    """The guide's command in a folder with the scene's files under the names that the guide uses."""
    scene.jobs_file.rename(scene.folder / "jobs.toml")
    scene.cluster_file.rename(scene.folder / "cluster.toml")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        guide_command(launcher), shell=True, cwd=scene.folder, env={**os.environ, "PATH": path, **(env or {})},
        capture_output=True, text=True, timeout=2 * LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (scene.run_dir,) = (scene.folder / "runs").iterdir()


_ENGINES = {"local": "namespaces", "slurm": "Slurm", "ray": "Ray"}
"""By launcher: what the doctor looks at for it."""


async def _look_at_top(scene: Scene) -> None:
    """The full-screen view of the run shows its jobs, and the log of the one under the cursor."""
    from paceline.commands.top_screen import RunScreen

    screen = RunScreen(scene.run_dir, 0.1)
    async with screen.run_test(size=(120, 40)) as pilot:
        await pilot.pause(0.3)
        assert [str(screen.jobs.get_row_at(i)[0]) for i in range(3)] == ["long", "kept", "later"]
        await pilot.press("down")
        await pilot.pause(0.3)
        assert "kept speaks" in str(screen.query_one("#job").render())
        await pilot.press("l")
        await pilot.pause(0.2)
        assert "where its ranks are" in str(screen.screen.query_one("Label").render())
        await pilot.press("escape")
        await pilot.press("q")


def assert_steered(scene: Scene, launcher: str, env: Mapping[str, str] | None = None) -> None:
    """What every launcher has to show: a run that is paused, added to, cancelled in, and ends well.

    The scene has room for all jobs of four slots, and no jobs yet.
    """
    gate = scene.folder / "gate"
    scene.job("long", 2, until(gate)).job("kept", 1, f"echo kept speaks; {until(gate)}").job(
        "later", 1, "true", arrival="1h"
    )
    planner = scene.new_planner("--launcher", launcher, env=env)
    wait_for(lambda: (scene.run_dir / "run.sqlite").exists(), "the run's folder")
    wait_for(lambda: list(scene.states().values())[:2] == ["running"] * 2, "two running jobs")

    wait_for(
        lambda: list(written(scene.run_dir, "kept", None, 0, 50, follow=False)) == ["kept speaks"],
        "a line of its log",
    )

    def typed(*words: str, code: int = 0) -> str:
        """A command as it is typed in another terminal; what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "paceline", *words], cwd=scene.folder, env={**os.environ, **(env or {})},
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    told = typed("status", "run", "--legend")
    assert f"launcher {launcher}, policy sjf-bco" in told
    assert "2 running, 1 pending" in told
    assert "servers: where its ranks are" in told
    assert {
        job["name"]: job["state"] for job in json.loads(typed("status", "--json"))["jobs"]
    } == scene.states()
    assert typed("logs", "kept", "--rank", "0") == "kept speaks\n"
    (log,) = json.loads(typed("logs", "kept", "--json"))["logs"]
    assert (log["rank"], log["lines"]) == (0, ["kept speaks"])
    assert "queue" in typed("why", "kept", "--run", "run")
    assert f'"what": "{_ENGINES[launcher]}"' in typed(
        "doctor", "--launcher", launcher, "--address", (env or {}).get("RAY_ADDRESS", ""), "--json"
    )
    asyncio.run(_look_at_top(scene))

    told = typed("pause")
    assert "the queue is paused: what runs goes on, nothing new starts" in told
    assert control.HOW_PAUSED.get(launcher, "starts\n") in told
    more = Scene(scene.folder / "more", {})
    more.notes = scene.notes
    more.job("added", 1, "true")
    assert typed("add", "run", str(more.jobs_file)) == "run: added added\n"
    wait_for(lambda: scene.states()["added"] == "waiting", "the arrival of the new job")
    assert typed("priority", "added", "4") == "run: the priority of added goes from 1 to 4\n"
    told = typed("priority", "kept", "2")
    assert "already, so this counts when it is placed anew" in told
    assert (f"the queue of {launcher}" in told) == (launcher != "local")
    told = typed("cancel", "long", "--why", "a try")
    assert told == f"run: long is asked to end{control.HOW_ENDED.get(launcher, '')}\n"
    wait_for(lambda: scene.states()["long"] == "cancelled", "the end of the cancelled job")
    assert scene.states()["added"] == "waiting", "a paused queue starts nothing"
    assert typed("cancel", "later") == "run: later is cancelled, and never starts\n"
    typed("unpause")
    typed("unpause", code=1)
    wait_for(lambda: scene.states()["added"] == "done", "the end of the added job")
    assert scene.states()["kept"] == "running"
    gate.touch()
    code, _, err = finish(planner)
    assert code == 0, err
    assert scene.states() == {"long": "cancelled", "kept": "done", "later": "cancelled", "added": "done"}
    assert scene.starts() == {"long": 1, "kept": 1, "added": 1}
    (row,) = [row for row in scene.rows("jobs") if row["name"] == "added"]
    assert row["priority"] == row["spec"]["job"]["priority"] == 4
    for name in ("kept", "long", "later"):
        found = of_run(read_run(scene.run_dir), name)
        assert abs(sum(part.seconds for part in found.parts) - found.total_s) < 1e-6, found
    for attempt in scene.rows("attempts"):
        assert_nothing_left(attempt["token"])
