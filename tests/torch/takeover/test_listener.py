"""Strangers at the takeover keeper's door: nothing of theirs is kept, and they keep no rank out."""

import contextlib
import select
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

from paceline.torch.takeover import listener
from paceline.torch.takeover.client import KeeperClient
from paceline.torch.takeover.keeper import KeeperServer
from paceline.torch.takeover.listener import STRANGERS_MAX

MIB = 1 << 20


@pytest.fixture
def keeper() -> Iterator[KeeperServer]:
    server = KeeperServer("127.0.0.1", "secret", ranks=1, lease_s=5.0)
    yield server
    server.close()


def _resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))


def _is_closed(connection: socket.socket, within_s: float = 20.0) -> bool:
    connection.settimeout(within_s)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def _send_all_that_goes(connection: socket.socket, data: bytes, within_s: float) -> None:
    connection.settimeout(within_s)
    with contextlib.suppress(OSError):  # closed, or nobody takes it
        connection.sendall(data)


def test_strangers_that_send_much_cost_no_memory(keeper: KeeperServer) -> None:
    before = _resident_bytes()
    flood = b"x" * (12 * MIB)
    connections = [socket.create_connection(("127.0.0.1", keeper.port)) for _ in range(20)]
    for connection in connections:
        _send_all_that_goes(connection, flood, 0.5)
    grown = _resident_bytes() - before - len(flood)
    for connection in connections:
        connection.close()
    assert grown < 50 * MIB


def test_a_line_without_an_end_is_hung_up_on(keeper: KeeperServer) -> None:
    with socket.create_connection(("127.0.0.1", keeper.port)) as stranger:
        _send_all_that_goes(stranger, b"{" * 4096, 5.0)
        assert _is_closed(stranger, 4.0)


@pytest.mark.parametrize(
    "hello",
    [b"\n", b"[]\n", b"{}\n", b'{"token": 5}\n', b'{"token": "s\xff"}\n', b'{"token": "guess", "rank": 0}\n'],
)
def test_a_first_line_without_the_token_is_hung_up_on(hello: bytes, keeper: KeeperServer) -> None:
    with socket.create_connection(("127.0.0.1", keeper.port)) as stranger:
        stranger.sendall(hello)
        assert _is_closed(stranger, 4.0)


def test_of_too_many_silent_strangers_the_oldest_are_hung_up_on(
    keeper: KeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "STRANGERS_MAX", 4)
    monkeypatch.setattr(listener, "HELLO_S", 300.0)
    with contextlib.ExitStack() as opened:
        connect = partial(socket.create_connection, ("127.0.0.1", keeper.port), 5.0)
        strangers = [opened.enter_context(connect()) for _ in range(10)]
        assert all(_is_closed(stranger) for stranger in strangers[:6])
        assert select.select(strangers[6:], [], [], 0)[0] == [], "the newest stay open"


def test_silent_strangers_keep_no_rank_out(keeper: KeeperServer) -> None:
    address = ("127.0.0.1", keeper.port)
    strangers = [socket.create_connection(address) for _ in range(STRANGERS_MAX + 8)]
    client = KeeperClient([address], "secret", 0, lease_s=5.0, silence_s=10.0)
    client.tell("begin", 1, micro_batches=[1])
    assert client.wait_for(client.ask("claim", 1, ahead=False), 20.0)["claim"][:2] == [0, 0]
    # The oldest make room at once, the others after a moment of silence.
    begin = time.monotonic()
    assert all(_is_closed(stranger) for stranger in strangers)
    assert time.monotonic() - begin < 15
    client.close()
    for stranger in strangers:
        stranger.close()
