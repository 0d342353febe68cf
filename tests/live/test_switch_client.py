"""The control-plane client against a real control plane, and against none."""

import socket
import time

import pytest

from paceline.errors import UserError
from paceline.live.switch_client import Admission, ControlError, ControlPlane, Membership
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
