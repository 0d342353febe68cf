"""A command in an enclosure: what it sees, and that nothing of it stays, whichever process is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.emulation import enclosure
from tests.emulation.test_namespaces import needs_root

CLOSED = [sys.executable, "-m", enclosure.__name__]
MARK = "PACELINE_TEST_ENCLOSURE"


def _marked(value: str) -> list[int]:
    wanted = f"{MARK}={value}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@needs_root
def test_a_command_has_processes_and_named_namespaces_of_its_own() -> None:
    script = "echo $PACELINE_ENCLOSED; ip netns add inside && ip netns; ls /proc | grep -c '^[0-9]'; exit 7"
    done = subprocess.run([*CLOSED, "sh", "-c", script], capture_output=True, text=True, timeout=60)
    how, name, processes = done.stdout.split("\n")[:3]
    assert (how, name) == (enclosure.AS_ROOT, "inside")
    assert int(processes) < 10
    assert done.returncode == 7
    assert not Path("/run/netns/inside").exists()


@needs_root
@pytest.mark.parametrize("victim", ["keeper", "init", "command"])
def test_a_kill_leaves_nothing(victim: str, tmp_path: Path) -> None:
    value = f"{os.getpid()}-{victim}"
    # A daemon in a session of its own, as supervisors are, and a file in shared memory.
    script = f"setsid sleep 600 & touch /dev/shm/{value}; echo ready; sleep 600"
    keeper = subprocess.Popen(
        [*CLOSED, "sh", "-c", script], stdout=subprocess.PIPE, env={**os.environ, MARK: value}
    )
    assert keeper.stdout is not None
    assert keeper.stdout.readline() == b"ready\n"
    (init,) = _children(keeper.pid)
    command = _children(init)[0]
    os.kill({"keeper": keeper.pid, "init": init, "command": command}[victim], signal.SIGKILL)
    keeper.wait(30)
    keeper.stdout.close()
    until = time.monotonic() + 30
    while _marked(value) and time.monotonic() < until:
        time.sleep(0.05)
    assert _marked(value) == []
    assert not Path(f"/dev/shm/{value}").exists()


@needs_root
def test_a_signal_reaches_the_command_once() -> None:
    script = "trap 'echo got; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    keeper = subprocess.Popen([*CLOSED, "bash", "-c", script], stdout=subprocess.PIPE)
    assert keeper.stdout is not None
    assert keeper.stdout.readline() == b"ready\n"
    keeper.send_signal(signal.SIGTERM)
    assert keeper.stdout.read() == b"got\n"
    keeper.stdout.close()
    assert keeper.wait(30) == 3


@needs_root
def test_without_the_rights_of_root_a_user_namespace_does_it() -> None:
    poor = ["setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all"]
    script = "echo $PACELINE_ENCLOSED; ip netns add inside && ip netns"
    done = subprocess.run([*poor, *CLOSED, "sh", "-c", script], capture_output=True, text=True, timeout=60)
    if done.returncode == 2:
        pytest.skip("this kernel lets no user make namespaces")
    assert done.stdout.splitlines() == [enclosure.AS_USER, "inside"]


@needs_root
def test_where_neither_is_possible_one_line_says_so() -> None:
    poor = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    done = subprocess.run([*poor, *CLOSED, "true"], capture_output=True, text=True, timeout=60)
    if done.returncode == 0:
        pytest.skip("this kernel maps root without a capability")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "no emulated network can be made here" in line
