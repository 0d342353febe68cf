"""The actor that holds an attempt's ranks on a node of a Ray cluster. It needs no Ray, unlike `test_ray.py`."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.launch.launchers import supervisor
from paceline.launch.launchers.protocol import MARK
from paceline.launch.launchers.ray import NodeActor
from tests.launch.scenes import assert_nothing_left, wait_for

STOPPED, KILLED = f"stopped-{os.getpid()}", f"killed-{os.getpid()}"


@contextmanager
def actor(token: str, script: str, ranks: int = 2) -> Iterator[NodeActor]:
    entries = [{"rank": rank, "env": {"RANK": str(rank)}} for rank in range(ranks)]
    command = ["/bin/sh", "-c", script]
    spec: dict[str, Any] = {
        "token": token,
        "command": command,
        "workdir": "",
        "grace_s": 5.0,
        "ranks": entries,
    }
    made = NodeActor({**spec, "remaining_s": "1"})
    try:
        yield made
    finally:
        made.clear()


def ended(made: NodeActor) -> dict[str, Any]:
    wait_for(lambda: made.poll({})["ended"], "the end")
    return made.poll({})


def test_one_that_is_stopped_while_it_starts_says_how_it_ended() -> None:
    with actor(STOPPED, "sleep 60") as made:
        made.stop()
        assert ended(made)["verdict"]["reason"] == "stopped"
        assert ended(made)["verdict"]["exit_code"] == 128 + signal.SIGTERM
    assert_nothing_left(STOPPED)


def test_ranks_of_a_supervisor_that_is_killed_are_killed(tmp_path: Path) -> None:
    with actor(KILLED, f"touch {tmp_path}/$RANK; sleep 60") as made:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2, "two ranks")
        made.process.kill()
        assert ended(made)["verdict"] is None
        assert_nothing_left(KILLED)
    assert supervisor.marked_processes(MARK, KILLED) == []
