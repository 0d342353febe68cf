"""The control plane over TLS: who is trusted, what is told when it is not, and that nothing is sent before."""

import contextlib
import select
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.http_limits import IDLE_MAX
from paceline.live.switch import http
from paceline.live.switch_client import ControlError, ControlPlane, UntrustedSwitchError
from paceline.live.switch_tls import Trust, check_certificate, fingerprint_of
from tests.live.agents import RunningSwitch, job_of, running_switch, tensors_of
from tests.live.certificates import Authority
from tests.live.processes import process, resident_kib

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@contextmanager
def secured(made: tuple[Path, Path], **options: object) -> Iterator[RunningSwitch]:
    with running_switch(tls_certificate=made[0], tls_key=made[1], token=TOKEN, **options) as switch:
        yield switch


@pytest.fixture(scope="module")
def switch(authority: Authority) -> Iterator[RunningSwitch]:
    with secured(authority.sign("IP:127.0.0.1")) as made:
        yield made


def control(switch: RunningSwitch, trust: Trust | None) -> ControlPlane:
    return ControlPlane(switch.switch.options.host, switch.server.port, TOKEN, 5.0, trust)


def test_a_job_is_admitted_by_ca_and_by_fingerprint(switch: RunningSwitch, authority: Authority) -> None:
    assert switch.switch.options.tls_certificate is not None
    pinned = fingerprint_of(switch.switch.options.tls_certificate)
    for trust in (Trust(ca=str(authority.file)), Trust(fingerprint=pinned)):
        known = control(switch, trust)
        admission = known.admit("a", 2)
        known.bind(admission, 0, ("127.0.0.1", 4711))
        assert known.renew(admission)
        assert "paceline_jobs" in known.text("/metrics")
        known.leave(admission)
    there = ControlPlane.parse(f"127.0.0.1:{switch.server.port}#sha256={pinned}", TOKEN)
    assert there.call("GET", "/healthz")["status"] == "ok"


def test_another_ca_and_another_certificate_are_refused(switch: RunningSwitch, folder: Path) -> None:
    other = Authority(folder, "other")
    with pytest.raises(UntrustedSwitchError, match="certificate is not trusted: unable to get local issuer"):
        control(switch, Trust(ca=str(other.file))).admit("a", 2)
    with pytest.raises(UntrustedSwitchError, match="certificate is another one: sha256="):
        control(switch, Trust(fingerprint="00" * 32)).admit("a", 2)
    with pytest.raises(UntrustedSwitchError, match="not trusted"):
        control(switch, Trust()).admit("a", 2)


def test_a_wrong_name_and_an_expired_certificate_are_refused(authority: Authority) -> None:
    cases = (
        (authority.sign("IP:127.0.0.9"), "IP address mismatch, certificate is not valid for '127.0.0.1'"),
        (authority.sign("IP:127.0.0.1", ("20200101000000Z", "20210101000000Z")), "certificate has expired"),
    )
    for made, told in cases:
        with secured(made) as switch, pytest.raises(UntrustedSwitchError, match=told):
            control(switch, Trust(ca=str(authority.file))).admit("a", 2)


def test_a_plain_client_is_told_and_learns_nothing(switch: RunningSwitch) -> None:
    with pytest.raises(ControlError, match="does it ask for TLS"):
        control(switch, None).admit("a", 2)


def test_a_client_that_asks_for_tls_sends_nothing_to_who_has_none(authority: Authority) -> None:
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            for _ in range(2):
                line, _address = listening.accept()
                with line:
                    line.settimeout(5)
                    heard.append(line.recv(65_536))
                    line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        thread = threading.Thread(target=answer)
        thread.start()
        for trust in (Trust(ca=str(authority.file)), Trust(fingerprint="00" * 32)):
            plane = ControlPlane("127.0.0.1", listening.getsockname()[1], TOKEN, 5.0, trust)
            with pytest.raises(UntrustedSwitchError, match="it speaks no TLS"):
                plane.admit("a", 2)
        thread.join(10)
    assert all(TOKEN.encode() not in data and data[0] == 22 for data in heard)


def test_handshakes_that_do_not_end_keep_nobody_out(switch: RunningSwitch, authority: Authority) -> None:
    place = ("127.0.0.1", switch.server.port)
    waiting = [socket.create_connection(place, 5) for _ in range(IDLE_MAX + 40)]
    try:
        known = control(switch, Trust(ca=str(authority.file)))
        known.leave(known.admit("a", 2))
        waiting[0].settimeout(10)
        assert waiting[0].recv(1) == b"", "the oldest was closed"
    except ConnectionResetError:
        pass  # closed as well
    finally:
        for line in waiting:
            line.close()


def test_of_too_many_open_handshakes_the_oldest_are_closed(
    switch: RunningSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "IDLE_MAX", 4)
    monkeypatch.setattr(http, "REQUEST_S", 300.0)
    with contextlib.ExitStack() as opened:
        place = ("127.0.0.1", switch.server.port)
        waiting = [opened.enter_context(socket.create_connection(place, 5.0)) for _ in range(10)]
        for one in waiting[:6]:
            one.settimeout(30.0)
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b""
        assert select.select(waiting[6:], [], [], 0)[0] == [], "the newest stay open"


def test_strangers_who_break_off_cost_little_memory(authority: Authority, folder: Path) -> None:
    token = folder / "strangers"
    token.write_text(TOKEN)
    token.chmod(0o600)
    certificate, key = authority.sign("IP:127.0.0.1")
    hello = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    data = hello.read()
    words = ("--token-file", str(token), "--tls-cert", str(certificate), "--tls-key", str(key))
    with process(*words) as (switch, port), contextlib.ExitStack() as lines:
        before_kib = resident_kib(switch.pid)
        for number in range(1500):
            line = socket.create_connection(("127.0.0.1", port), 5)
            line.sendall(data)
            if number % 5:
                line.close()
            else:
                lines.enter_context(line)
        plane = ControlPlane("127.0.0.1", port, TOKEN, 20.0, Trust(ca=str(authority.file)))
        plane.leave(plane.admit("honest", 1))
        assert resident_kib(switch.pid) - before_kib < 250_000


def test_what_is_no_certificate_is_told(authority: Authority, folder: Path) -> None:
    first, second = authority.sign("IP:127.0.0.2"), authority.sign("IP:127.0.0.3")
    check_certificate(*first)
    nonsense = folder / "nonsense"
    nonsense.write_text("nothing\n")
    nonsense.chmod(0o600)
    for certificate, key, told in (
        (first[0], second[1], "is not the key of this certificate"),
        (nonsense, first[1], "no certificate and its key"),
        (first[0], None, "belong together"),
        (folder / "missing", first[1], "No such file"),
        (first[0], folder / "missing", "No such file"),
    ):
        with pytest.raises(UserError, match=told) as refused:
            check_certificate(certificate, key)
        assert "\n" not in str(refused.value)


def test_a_job_sums_over_ipv6_and_tls(authority: Authority, folder: Path) -> None:
    capture = folder / "packets.pcap"
    arrays = tensors_of(3, 20_000, 5)
    with job_of(3, None) as job:
        expected = job.reduce(arrays)[0]
    with secured(authority.sign("IP:::1"), host="::1", pcap=capture) as switch:
        switch.trust = Trust(ca=str(authority.file))
        switch.token = TOKEN
        with job_of(3, switch, host="::1") as job:
            for result in job.reduce(arrays):
                assert np.array_equal(result.view(np.uint32), expected.view(np.uint32))
            assert all(agent.uses_switch for agent in job.agents)
        assert "paceline_packets_total" in switch.control.text("/metrics")
    _check_ipv6_capture(capture.read_bytes())


def _check_ipv6_capture(data: bytes) -> None:
    """Every record is an IPv6 packet from ::1 to ::1, whose UDP checksum holds."""
    at, packets = 24, 0
    while at < len(data):
        length = int.from_bytes(data[at + 8 : at + 12], "little")
        packet = data[at + 16 : at + 16 + length]
        assert packet[0] >> 4 == 6
        assert packet[6] == 17
        assert packet[8:24] == packet[24:40] == bytes(15) + b"\x01"
        words = packet[8:] + bytes(len(packet) % 2)
        total = sum(int.from_bytes(words[i : i + 2], "big") for i in range(0, len(words), 2))
        total += 17 + len(packet) - 40
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        assert total == 0xFFFF
        at, packets = at + 16 + length, packets + 1
    assert packets > 50
