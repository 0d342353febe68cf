"""`paceline dashboard`, and the page beside a real run: what is asked there, the planner does."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from tests.dashboard.scenes import WrittenRun, free_address, get, post
from tests.launch.scenes import Scene

CALL = "from paceline.cli import main; main()"


def started(*arguments: str, cwd: Path | None = None) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", CALL, "dashboard", *arguments], stderr=subprocess.PIPE, text=True, cwd=cwd
    )


def address(process: "subprocess.Popen[str]", what: str = "dashboard") -> str:
    """What it printed first."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.match(rf"{what}: +(\S+)", line):
            return found[1]
    raise AssertionError(f"no line with {what!r}")


def wait(condition: Any, limit_s: float = 60.0) -> Any:
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        if value := condition():
            return value
        time.sleep(0.1)
    raise AssertionError("not in time")


def test_it_serves_a_run_and_ends_on_a_signal(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs" / "one")
    run.job("alpha", [0])
    with started("--listen", "127.0.0.1:0", cwd=tmp_path) as process:
        url = address(process)
        found = wait(lambda: get(f"{url}api/snapshot"))
        assert list(found["runs"]) == ["one"], "the newest run below this folder"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "holds no run"),
        (["--switch", "10.0.0.1:x"], "is not host, host:port or [ipv6]:port"),
        (["--switch", "127.0.0.1:7070", "--listen", "nonsense"], "not HOST:PORT"),
        (["--switch", "127.0.0.1:7070", "--stragglers", "missing.toml"], "missing.toml"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CALL, "dashboard", *arguments],
        capture_output=True, text=True, cwd=tmp_path, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    import socket

    where = free_address()
    with socket.create_server(("127.0.0.1", int(where.rpartition(":")[2]))):
        done = subprocess.run(
            [sys.executable, "-c", CALL, "dashboard", "--switch", "127.0.0.1:1", "--listen", where],
            capture_output=True, text=True, cwd=tmp_path, timeout=60,
        )  # fmt: skip
    assert done.returncode == 2
    assert "cannot listen" in done.stderr


def test_beside_a_run_jobs_are_cancelled_added_and_paused(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    scene = Scene(tmp_path, {"s0": 1, "s1": 1})
    scene.job("long", script="sleep 600").job("queued", gpus=2, script="true")
    planner = scene.new_planner("--dashboard")
    request.addfinalizer(planner.kill)
    url, _, token = address(planner, "to steer").partition("#token=")
    commands = f"{url}api/runs/run/commands"

    def jobs() -> dict[str, Any]:
        found: dict[str, Any] = get(f"{url}api/snapshot").get("runs", {}).get("run", {}).get("jobs", {})
        return found

    wait(lambda: jobs().get("long", {}).get("state") == "running")
    assert post(commands, {"kind": "cancel", "job": "long"}, "wrong")[0] == 401
    status, said = post(commands, {"kind": "pause"}, token)
    assert (status, said["state"]) == (200, "done"), said
    wait(lambda: get(f"{url}api/snapshot")["runs"]["run"]["paused"])
    text = '[[jobs]]\nname = "added"\ngpus = 1\niterations = 1\nbackward = "1 ms"\ncommand = "true"\n'
    assert post(commands, {"kind": "add", "jobs": text}, token)[1]["state"] == "done"
    assert post(commands, {"kind": "priority", "job": "added", "priority": 9}, token)[1]["state"] == "done"
    wait(lambda: jobs().get("added", {}).get("priority") == 9)
    assert post(commands, {"kind": "cancel", "job": "long"}, token)[1]["state"] == "done"
    wait(lambda: jobs()["long"]["state"] == "cancelled")
    assert jobs()["queued"]["state"] == "waiting", "the queue is paused"
    assert post(commands, {"kind": "unpause"}, token)[1]["state"] == "done"
    assert planner.wait(120) == 0
    assert scene.states() == {"long": "cancelled", "queued": "done", "added": "done"}
    with pytest.raises(OSError, match="refused"):
        get(f"{url}api/snapshot")
