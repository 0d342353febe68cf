"""What strikes a live drill strikes the path that it says, and no other."""

import errno
import os
import shutil

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
