"""Children end when they should: well, badly, late, and when their parent is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.bench.processes import ChildError, Children

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_what_runs_is_ended() -> None:
    with Children() as children:
        children.start("sleeper", SLEEP, dict(os.environ))
        children.check("sleeper")
        pid = children.children["sleeper"].pid
        folder = children.folder
    assert gone(pid)
    assert not folder.exists()


def test_who_does_not_listen_is_killed() -> None:
    code = (
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    with Children() as children:
        output = children.start("deaf", [sys.executable, "-c", code], dict(os.environ), pipe=True)
        assert output is not None
        assert output.readline() == b"up\n"
        pid = children.children["deaf"].pid
    assert gone(pid)


def test_a_bad_end_is_told_with_the_last_words() -> None:
    with Children() as children:
        children.start("rank 3", [sys.executable, "-c", "raise SystemExit('no such luck')"], dict(os.environ))
        with pytest.raises(ChildError, match=r"(?s)rank 3 ended with exit code 1.*no such luck"):
            children.wait("rank 3", 60)


def test_a_late_end_is_told() -> None:
    with Children() as children:
        children.start("late", SLEEP, dict(os.environ))
        with pytest.raises(ChildError, match="late did not end within 0 s"):
            children.wait("late", 0.2)


def test_children_of_a_killed_parent_die() -> None:
    code = (
        "import os, sys, time\n"
        "from paceline.bench.processes import Children\n"
        "children = Children()\n"
        "children.start('sleeper', [sys.executable, '-c', 'import time; time.sleep(600)'], dict(os.environ))\n"
        "print(children.children['sleeper'].pid, children.folder, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pid, folder = parent.stdout.readline().split()
    parent.send_signal(signal.SIGKILL)
    parent.wait(30)
    assert within(30, lambda: gone(int(pid)))
    for path in Path(folder).iterdir():
        path.unlink()
    Path(folder).rmdir()
