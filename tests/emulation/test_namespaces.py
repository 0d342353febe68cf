"""Namespaces with limited links: what they give, and that nothing stays behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.emulation import namespaces
from paceline.errors import UserError

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

RATE_BPS = 200e6
MAKER = (
    "import signal, time\n"
    "from paceline.emulation import namespaces\n"
    # Who is started in the background may have been told to ignore it.
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "with namespaces.star(2, 200e6):\n"
    "    print(*namespaces.own(), flush=True)\n"
    "    time.sleep(600)\n"
)
RECEIVE = (
    "import socket, sys, time\n"
    "server = socket.create_server((sys.argv[1], 5000))\n"
    "print('ready', flush=True)\n"
    "server.settimeout(60)\n"
    "peer, _ = server.accept()\n"
    "peer.settimeout(60)\n"
    "started, total = time.perf_counter(), 0\n"
    "while data := peer.recv(1 << 20):\n"
    "    total += len(data)\n"
    "print(total * 8 / (time.perf_counter() - started), flush=True)\n"
)
SEND = (
    "import socket, sys\n"
    "with socket.create_connection((sys.argv[1], 5000), timeout=60) as peer:\n"
    "    peer.sendall(bytes(int(sys.argv[2])))\n"
)


def exists(name: str) -> bool:
    return Path("/run/netns", name).exists()


def speed_bps(sender: str, receiver: str, address: str, size_bytes: int) -> float:
    """What TCP makes of the way between two namespaces."""
    command = namespaces.inside(receiver, [sys.executable, "-c", RECEIVE, address])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        command = namespaces.inside(sender, [sys.executable, "-c", SEND, address, str(size_bytes)])
        subprocess.run(command, check=True, timeout=120)
        return float(server.stdout.readline())


@needs_root
def test_links_are_limited_in_both_directions_and_nothing_stays() -> None:
    with namespaces.star(2, RATE_BPS) as star:
        assert len(namespaces.own()) == 3
        # A loaded machine may be slower than the link, never faster.
        for sender, receiver, address in (
            (star.workers[0], star.workers[1], star.address(1)),
            (star.hub, star.workers[0], star.address(0)),
            (star.workers[1], star.hub, star.hub_address),
        ):
            assert 0.5 * RATE_BPS < speed_bps(sender, receiver, address, 10_000_000) < 1.02 * RATE_BPS
    assert namespaces.own() == []
    assert not exists(star.hub)


@needs_root
def test_servers_beside_the_workers_have_links_of_their_own() -> None:
    with namespaces.star(1, RATE_BPS, switches=2, switch_rate_bps=RATE_BPS / 4) as star:
        assert len(namespaces.own()) == 4
        at, address = star.switches[1], star.switch_address(1)
        to_switch = speed_bps(star.workers[0], at, address, 4_000_000)
        from_switch = speed_bps(at, star.workers[0], star.address(0), 4_000_000)
        for speed in (to_switch, from_switch):
            assert 0.1 * RATE_BPS < speed < 0.27 * RATE_BPS
    assert namespaces.own() == []


@needs_root
def test_an_mtu_holds_on_every_device() -> None:
    with namespaces.star(2, RATE_BPS, mtu=9000) as star:
        for name in (star.hub, *star.workers):
            done = subprocess.run(
                ["ip", "-n", name, "-j", "link"], capture_output=True, check=True, timeout=30
            )
            assert {device["mtu"] for device in json.loads(done.stdout) if device["ifname"] != "lo"} == {9000}


@needs_root
def test_an_error_inside_removes_everything() -> None:
    with pytest.raises(RuntimeError, match="inside"), namespaces.star(1, RATE_BPS):
        raise RuntimeError("inside")
    assert namespaces.own() == []


@needs_root
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_makers_namespaces_go_with_it_or_at_the_next_start(number: signal.Signals) -> None:
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert maker.stdout is not None
    with maker.stdout:
        names = maker.stdout.readline().split()
    assert len(names) == 3
    assert all(exists(name) for name in names)
    assert not set(names) & set(namespaces.remove_leftovers()), "its maker lives"
    maker.send_signal(number)
    maker.wait(60)
    if number == signal.SIGKILL:
        assert set(names) <= set(namespaces.remove_leftovers())
    assert not any(exists(name) for name in names)


def test_names_of_others_are_not_ours() -> None:
    assert namespaces._maker("pl-12-34-w0") == (12, 34)
    for name in ("blue", "pl-w0", "pl-12-x-w0", "plan-1-2-w0", "pl-1-2"):
        assert namespaces._maker(name) is None


def test_an_unprivileged_user_gets_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match=r"--rate: .*root"), namespaces.star(2, RATE_BPS):
        pass


def test_a_star_has_a_bounded_number_of_workers() -> None:
    with pytest.raises(UserError, match="1 to 64"), namespaces.star(65, RATE_BPS):
        pass
