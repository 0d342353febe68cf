"""The control-plane client against a real control plane, and against none."""

import contextlib
import itertools
import json
import socket
import socketserver
import threading
import time
from collections.abc import Iterable, Iterator

import pytest

from paceline.errors import UserError
from paceline.live.agent import state
from paceline.live.switch.jobs import Refusal, Upstream
from paceline.live.switch_client import SHARDS_MAX, Admission, ControlError, ControlPlane, Membership
from paceline.live.switch_tls import Trust
from tests.live.agents import running_switch


class Told:
    """An agent as a membership sees it: it notes what it is told."""

    def __init__(self) -> None:
        self.ports: list[tuple[int, ...]] = []
        self.fresh: list[bool] = []
        self.suspicions = 0
        self.uses_switch = True
        self.epoch = 0

    def use_switch(self, host: str, ports: tuple[int, ...], job: int, fresh: bool) -> None:
        self.ports.append(tuple(ports))
        self.fresh.append(fresh)

    def suspect_switch(self, reason: str = "") -> None:
        self.suspicions += 1


def test_admission_binding_lease_and_leaving() -> None:
    with running_switch() as switch:
        control = switch.control
        admission = control.admit("a", 2)
        assert len(admission.key) == 16
        assert list(admission.shards) == switch.switch.ports
        assert Admission.from_json(admission.to_json()) == admission
        assert admission.key.hex() not in repr(admission)
        control.bind(admission, 1, ("127.0.0.1", 4711))
        assert control.renew(admission)
        again = control.readmit(admission)
        assert (again.job, again.key) == (admission.job, admission.key)
        control.leave(admission)
        assert not control.renew(admission)
        control.leave(admission)


@pytest.mark.parametrize("name", ["x" * 300, "\udce9", "two\nlines"])
def test_a_name_that_no_switch_takes_is_made_one(name: str) -> None:
    with running_switch() as switch:
        switch.control.admit(name, 2)
        (job,) = switch.switch.registry.jobs()
        assert job.name.isprintable()
        assert 0 < len(job.name) <= len(name)


def test_a_wrong_token_and_a_wrong_key_are_refused() -> None:
    with running_switch(token="secret") as switch:
        with pytest.raises(ControlError) as refused:
            switch.control.admit("a", 2)
        assert refused.value.status == 401
        control = ControlPlane("127.0.0.1", switch.server.port, "secret")
        admission = control.admit("a", 2)
        stranger = Admission.from_json(admission.to_json().replace(admission.key.hex(), "00" * 16))
        with pytest.raises(ControlError):
            control.bind(stranger, 0, ("127.0.0.1", 4711))


def test_nobody_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(ControlError, match="does not answer"):
        ControlPlane("127.0.0.1", port, timeout_s=1.0).admit("a", 2)


@pytest.mark.parametrize(
    "text",
    ["", ":7070", "host:", "host:x", "host:99999", "[::1", "[::1]7070", "[host]:1", "1:2:3", "h#sha256=ab"],
)
def test_bad_addresses(text: str) -> None:
    with pytest.raises(UserError):
        ControlPlane.parse(text)


def test_good_addresses() -> None:
    assert ControlPlane.parse("host") == ControlPlane("host", 7070)
    assert ControlPlane.parse("10.0.0.1:99", "t").port == 99
    assert ControlPlane.parse("[::1]:99") == ControlPlane("::1", 99)
    assert ControlPlane.parse("[fd00::1]") == ControlPlane.parse("fd00::1") == ControlPlane("fd00::1", 7070)
    assert ControlPlane("::1", 99).shown == "[::1]:99"
    assert ControlPlane.parse("https://host:1").trust == Trust()
    assert ControlPlane.parse("[::1]:2#sha256=" + "AB" * 32).trust == Trust(fingerprint="ab" * 32)


def test_a_membership_comes_back_to_a_restarted_switch() -> None:
    told = Told()
    with running_switch(lease_s=1.0) as switch:
        port = switch.server.port
        control = switch.control
        admission = control.admit("a", 1)
        control.bind(admission, 0, ("127.0.0.1", 4711))
        member = Membership(control, admission, 0, ("127.0.0.1", 4711), told, retry_s=0.05)
        # Longer than the lease: it was renewed.
        time.sleep(1.5)
        assert control.renew(admission)
    try:
        _until(lambda: told.suspicions > 0)
        with running_switch(port=port) as switch:
            _until(lambda: bool(told.ports))
            assert told.ports[-1] == tuple(switch.switch.ports)
            assert told.fresh == [True]
            assert member.admission.job == admission.job
            assert switch.control.renew(admission)
    finally:
        member.close()


def _until(holds: object) -> None:
    end = time.monotonic() + 60
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.02)


GOOD = {
    "job": 1, "key": "00" * 16, "shards": [7071], "slots": 64, "elements": 352, "policy": "esa", "auth": "header",
    "lease_s": 10.0, "epoch": 0, "pool": 0,
}  # fmt: skip


@contextlib.contextmanager
def impostor(answer: Iterable[bytes], pause_s: float = 0.0) -> Iterator[ControlPlane]:
    """A server that says this to whoever comes."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.request.recv(65_536)
                for piece in answer:
                    self.request.sendall(piece)
                    time.sleep(pause_s)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield ControlPlane("127.0.0.1", server.server_address[1], timeout_s=0.5)
        server.shutdown()


def answer_of(body: str) -> list[bytes]:
    return [f"HTTP/1.1 201 Created\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("job", "70000"), ("job", "-1"), ("job", "1e999"), ("key", '"00"'), ("key", "7"), ("shards", "[]"),
        ("shards", "[0]"), ("shards", "[70000]"), ("shards", "null"), ("shards", str([7071] * 65)), ("slots", "0"),
        ("slots", "1e999"), ("slots", "NaN"), ("elements", "0"), ("elements", "9999"), ("policy", '"best"'),
        ("auth", '"none"'), ("lease_s", "NaN"), ("lease_s", "-1"), ("lease_s", "Infinity"), ("epoch", "65536"),
        ("slots_max", "-5"), ("slots_max", "9e30"),
    ],
)  # fmt: skip
def test_an_admission_that_no_agent_could_work_with_is_refused(field: str, value: str) -> None:
    body = json.dumps({**GOOD, field: "?"}).replace('"?"', value)
    with impostor(answer_of(body)) as control, pytest.raises(ControlError, match="gave a strange admission"):
        control.admit("a", 2)


def test_a_good_admission_is_taken_from_anybody() -> None:
    with impostor(answer_of(json.dumps(GOOD))) as control:
        assert control.admit("a", 2).shards == (7071,)
    assert SHARDS_MAX == state.SHARDS_MAX


@pytest.mark.parametrize(
    ("head", "piece", "pause_s"),
    [
        (b"\r\n", b"x", 0.1),  # a body that drops
        (b"", b"x", 0.1),  # a header that drops
        (b"", b"a: b\r\n", 0.1),  # headers without end
        (b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", 0.1),
        (b"\r\n", b"x" * (1 << 20), 0.0),  # a body that is as large as one likes
    ],
)
def test_an_answer_without_end_is_none(head: bytes, piece: bytes, pause_s: float) -> None:
    began = time.monotonic()
    with impostor(
        itertools.chain([b"HTTP/1.1 200 OK\r\n" + head], itertools.repeat(piece)), pause_s
    ) as control:
        found: list[str] = []

        def call() -> None:
            try:
                control.text("/metrics")
            except ControlError as error:
                found.append(str(error))

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(20.0)
        assert found, f"it still waits, after {time.monotonic() - began:.0f} s"
        assert "does not answer" in found[0]


def test_what_another_program_says_is_shown_as_one_line() -> None:
    body = json.dumps({"error": "no\n\x1b[2J\ud800" + "x" * 9000})
    said = [f"HTTP/1.1 409 No\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()]
    with impostor(said) as control, pytest.raises(ControlError) as refused:
        control.admit("a", 2)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 600


def test_half_an_answer_is_none() -> None:
    said = [b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"a": 1}']
    with impostor(said) as control, pytest.raises(ControlError, match="does not answer"):
        control.call("GET", "/v1/jobs")


@pytest.mark.parametrize(
    ("host", "token"),
    [("x" * 100, "t"), ("127.0.0.1", "a\nb"), ("127.0.0.1", "t\r"), ("127.0.0.1", "\u20ac")],
)
def test_a_name_or_a_token_that_cannot_be_sent_is_told(host: str, token: str) -> None:
    with pytest.raises(ControlError, match="does not answer"):
        ControlPlane(host, 9, token, timeout_s=1.0).admit("a", 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("job", "x"),
        ("job", -1),
        ("shards", []),
        ("shards", ["x"]),
        ("shards", 7),
        ("shards", [1] * 65),
        ("key", 1),
        ("slots", 0.5),
    ],
)
def test_a_rack_switch_believes_no_strange_upper_switch(field: str, value: object) -> None:
    with impostor(answer_of(json.dumps({**GOOD, field: value}))) as control:
        upper = Upstream("127.0.0.1", control.port, "")
        with pytest.raises(Refusal, match="strange admission"):
            upper.admit({"name": "a", "workers": 1})
