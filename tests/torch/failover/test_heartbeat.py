"""Connections that show who has ended: workers as processes, killed, stopped, or leaving in order."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from paceline.torch.failover.heartbeat import Lifelines
from tests.live.hostmem_ranks import Folder

SCRIPT = """
import os, sys, time, pathlib
from paceline.torch.failover.heartbeat import Lifelines
from tests.live.hostmem_ranks import Folder
folder, worker = pathlib.Path(sys.argv[1]), int(sys.argv[2])
lines = Lifelines(Folder(folder), worker, 4, "127.0.0.1", 60)
if worker == 1 and os.fork() == 0:
    time.sleep(20)
    os._exit(0)
(folder / f"up-{worker}").touch()
if worker == 3:
    lines.close()
time.sleep(100)
"""


def test_a_worker_that_ends_is_seen_and_one_that_stops_or_leaves_is_not(tmp_path: Path) -> None:
    others = [subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path), str(w)]) for w in (1, 2, 3)]
    try:
        lines = Lifelines(Folder(tmp_path), 0, 4, "127.0.0.1", 60)  # type: ignore[arg-type]
        for worker in (1, 2, 3):
            Folder(tmp_path).get(f"up-{worker}")
        others[1].send_signal(signal.SIGSTOP)
        assert lines.ended() == set()
        others[0].kill()
        others[0].wait()
        end = time.monotonic() + 30
        while not lines.ended() and time.monotonic() < end:
            time.sleep(0.01)
        assert lines.ended() == {1}
        lines.close()
    finally:
        for other in others:
            os.kill(other.pid, signal.SIGKILL) if other.poll() is None else None
            other.wait()


def test_a_stranger_is_not_taken_for_a_worker(tmp_path: Path) -> None:
    import json
    import threading

    made: list[Lifelines] = []
    meeting = Folder(tmp_path)
    thread = threading.Thread(
        target=lambda: made.append(Lifelines(meeting, 0, 2, "127.0.0.1", 60))  # type: ignore[arg-type]
    )
    thread.start()
    host, port, _ = json.loads(meeting.get("line/0"))
    with socket.create_connection((host, port), 30) as stranger:
        stranger.sendall(b"0" * 32 + b"   1")
        worker = Lifelines(meeting, 1, 2, "127.0.0.1", 60)  # type: ignore[arg-type]
        thread.join(60)
        assert stranger.recv(1) == b""
    assert made[0].ended() == worker.ended() == set()
    worker.drop()
    end = time.monotonic() + 30
    while not made[0].ended() and time.monotonic() < end:
        time.sleep(0.01)
    assert made[0].ended() == {1}, "the stranger was kept in its place"
    made[0].close()
