"""What strikes a live drill strikes the path that it says, and no other."""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.drill.live_bed import LiveBed
from paceline.emulation import namespaces
from paceline.live.net.sockets import open_socket

LONG = b"." * 1400


def _send(here: str, source: str, there: str) -> int:
    """The error number of a long datagram from a namespace; 0: it left."""
    with namespaces.entered(here):
        made = open_socket(source)
    try:
        made.socket.sendto(LONG, (there, 9))
    except OSError as error:
        return int(error.errno or 0)
    finally:
        made.close()
    return 0


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs namespaces, and so root")
def test_a_narrow_path_is_that_to_the_switch_alone() -> None:
    with namespaces.star(2, 1e9) as star:
        bed = LiveBed(2, 1, 16, 0.001, star)
        here, source = star.workers[0], star.address(0)
        try:
            bed.narrow(0, 1000)
            assert _send(here, source, star.hub_address) == errno.EMSGSIZE
            assert _send(here, source, star.address(1)) == 0
            assert _send(star.workers[1], star.address(1), star.hub_address) == 0
            bed.narrow(0, 0)
            assert _send(here, source, star.hub_address) == 0
        finally:
            bed.__exit__()


def test_workers_end_with_a_driver_that_is_killed() -> None:
    """Also while they do not look whether it is there: another process holds what they read from open."""
    program = (
        "import subprocess, time\n"
        "from paceline.drill.live_bed import LiveBed\n"
        "bed = LiveBed(2, 1, 16, 0.001)\n"
        "bed._start_workers()\n"
        "holder = subprocess.Popen(['sleep', '120'], pass_fds=[each.fileno() for each in bed._inputs])\n"
        "print(holder.pid, *(process.pid for process in bed._processes), flush=True)\n"
        "time.sleep(600)\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    holder, *workers = (int(word) for word in driver.stdout.readline().split())
    driver.kill()
    driver.wait(30)
    driver.stdout.close()
    try:
        assert len(workers) == 2
        until = time.monotonic() + 60
        while any(_runs(pid) for pid in workers):
            assert time.monotonic() < until, "a worker outlives its driver"
            time.sleep(0.01)
    finally:
        for pid in (holder, *workers):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _runs(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"
