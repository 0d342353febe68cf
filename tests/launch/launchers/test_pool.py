"""Ranks forked from a warm process are like ranks that were started."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.launch.launchers import supervisor
from paceline.launch.launchers.local import WarmPool
from paceline.launch.launchers.protocol import MARK


@pytest.fixture
def pool() -> Iterator[WarmPool]:
    made = WarmPool(["decimal"])
    yield made
    made.close()


def _script(folder: Path, text: str) -> list[str]:
    (folder / "script.py").write_text(text)
    return ["python", "script.py"]


def test_a_rank_has_its_arguments_environment_folder_and_code(pool: WarmPool, tmp_path: Path) -> None:
    text = (
        "import os, sys; print('decimal' in sys.modules, sys.argv, os.environ['X'], os.getcwd()); sys.exit(5)"
    )
    command = [*_script(tmp_path, text), "a b"]
    done = subprocess.run(
        [*pool.before(command), *command], cwd=tmp_path, env={**os.environ, "X": "y"}, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 5
    assert done.stdout == f"True ['script.py', 'a b'] y {tmp_path}\n"


def test_an_error_is_a_traceback_and_code_1(pool: WarmPool, tmp_path: Path) -> None:
    command = _script(tmp_path, "raise ValueError('no luck')")
    done = subprocess.run(
        [*pool.before(command), *command], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "ValueError: no luck" in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -15), (signal.SIGKILL, -9)])
def test_a_rank_ends_with_the_process_that_stands_for_it(
    pool: WarmPool, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    command = _script(tmp_path, "import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    rank = subprocess.Popen(
        [*pool.before(command), *command], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert rank.stdout is not None
    forked = Path("/proc", rank.stdout.readline().strip())
    rank.send_signal(number)
    assert rank.wait(30) == code
    rank.stdout.close()
    until = time.monotonic() + 30
    while forked.exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not forked.exists()


def test_what_a_rank_forks_is_known_for_its_own(pool: WarmPool, tmp_path: Path) -> None:
    text = (
        "import os, time\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    os.setsid(); os.close(1); os.close(2); time.sleep(600)\n"
        "print(os.getpid(), pid, os.environ['PACELINE_ATTEMPT'], flush=True)\n"
    )
    command = _script(tmp_path, text)
    token = secrets.token_hex(8)
    done = subprocess.run(
        [*pool.before(command), *command], cwd=tmp_path, env={**os.environ, MARK: token}, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip
    _, child, told = done.stdout.split()
    assert told == token
    assert supervisor.marked_processes(MARK, token) == [int(child)]
    assert supervisor.kill_marked(MARK, token) == 1


def test_a_rank_ends_as_a_program_does(pool: WarmPool, tmp_path: Path) -> None:
    text = (
        "import atexit, threading, time\n"
        "atexit.register(print, 'what was registered')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('a thread'))).start()\n"
        "raise SystemExit('a last word')\n"
    )
    command = _script(tmp_path, text)
    done = subprocess.run(
        [*pool.before(command), *command], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "a thread\nwhat was registered\n")
    assert done.stderr == "a last word\n"


def test_the_signal_that_ended_a_rank_is_seen(pool: WarmPool, tmp_path: Path) -> None:
    command = _script(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert subprocess.run([*pool.before(command), *command], cwd=tmp_path, timeout=60).returncode == -9


def test_without_the_pool_the_command_runs_all_the_same(pool: WarmPool, tmp_path: Path) -> None:
    command = [sys.executable, *_script(tmp_path, "print('here')")[1:]]
    before = pool.before(command)
    pool.close()
    done = subprocess.run([*before, *command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == "here\n"


def test_only_scripts_are_forked(pool: WarmPool) -> None:
    assert pool.before(["/bin/sh", "-c", "true"]) == []
    assert pool.before(["python", "-m", "module"]) == []


def test_a_module_that_is_not_there_is_one_line() -> None:
    with pytest.raises(UserError, match=r"--warm: no_such_module could not be loaded"):
        WarmPool(["no_such_module"])
