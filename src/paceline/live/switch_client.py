"""The HTTP client of a switch's control plane: admission, binding, the lease, and coming back after a restart.

control = ControlPlane.parse("10.0.0.1:7070", token)
admission = control.admit("resnet", workers=4)        # one worker; the others are told the admission
control.bind(admission, worker, ("10.0.0.3", 4711))   # every worker
membership = Membership(control, admission, worker, address, agent)  # renews, re-admits, tells the agent
membership.close(); control.leave(admission)
"""

import http.client
import io
import json
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from paceline.core.auth import KEY_BYTES
from paceline.core.numbers.layout import ELEMENTS_MIN
from paceline.core.switch.memory import POLICIES
from paceline.core.wire import MAX_ELEMENTS
from paceline.errors import UserError
from paceline.live.agent.config import Address, AgentConfig
from paceline.live.net.addresses import show_address, split_address
from paceline.live.switch_tls import Trust, UntrustedError, parse_fingerprint
from paceline.names import shown

DEFAULT_PORT = 7070
NAME_CHARACTERS_MAX = 200
"""A switch takes no longer name of a job; what is beyond is cut off here."""
SHARDS_MAX = 64
"""Of a switch; an agent has no room for more."""
ANSWER_BYTES_MAX = 64 << 20
TIMEOUTS = 4
"""An answer that is not whole after so many times the time for its next piece is none."""
REASON_MAX = 400
"""Letters of what another program says, as they are shown."""
LEASE_MAX_S = 1e8


class ControlError(Exception):
    """The control plane refused, or did not answer; `status` is its HTTP status, 0 if there was none.

    `reason` is what it said itself, without who said it.
    """

    def __init__(self, message: str, status: int = 0, reason: str = "") -> None:
        self.status = status
        self.reason = reason or message
        super().__init__(message)


class UntrustedSwitchError(ControlError):
    """Another program answers than the switch that was asked for; nothing was sent there."""


@dataclass(frozen=True)
class Admission:
    """What the switch said when it admitted the job; the key is secret. `to_json` for a rendezvous store."""

    job: int
    key: bytes = field(repr=False)
    host: str
    shards: tuple[int, ...]
    slots: int
    """Aggregators a shard; under SwitchML the places of this job's pool."""
    elements: int
    """The widest chunk that the switch serves, in 32-bit integers."""
    policy: str
    auth: str
    lease_s: float
    epoch: int
    name: str
    workers: int
    instance: str = ""
    """Names this run of the switch: another one has forgotten what went before."""
    slots_max: int = 0
    """The most aggregators a shard that this job may hold; 0: no limit but `slots`."""
    request: dict[str, Any] = field(default_factory=dict)
    """What was asked for, to ask again after a restart."""

    @property
    def aggregators(self) -> int:
        """What the job may hold in all shards together."""
        return len(self.shards) * min(self.slots, self.slots_max or self.slots)

    def config(self, worker: int, peers: Sequence[Address], **more: Any) -> AgentConfig:
        """The configuration of this worker's agent; `more` are other fields of `AgentConfig`."""
        fields: dict[str, Any] = {
            "switch": (self.host, self.shards),
            "slots": self.slots,
            "policy": self.policy,
            "auth": self.auth,
            "epoch": self.epoch,
            "elements": self.elements,
            "name": f"{self.name} worker {worker}",
        }
        return AgentConfig(worker, self.workers, peers, self.job, self.key, **{**fields, **more})

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "key": self.key.hex()})

    @classmethod
    def from_json(cls, text: str | bytes) -> "Admission":
        fields = json.loads(text)
        return cls(**{**fields, "key": bytes.fromhex(fields["key"]), "shards": tuple(fields["shards"])})


@dataclass(frozen=True)
class ControlPlane:
    """Where a switch's control plane is, and the token that it asks for."""

    host: str
    port: int = DEFAULT_PORT
    token: str = field(default="", repr=False)
    timeout_s: float = 5.0
    trust: Trust | None = None
    """How the switch is known, over TLS; None: plain HTTP."""

    @classmethod
    def parse(
        cls, text: str, token: str = "", timeout_s: float = 5.0, trust: Trust | None = None
    ) -> "ControlPlane":
        """`host[:port]` or `[ipv6]:port`, as in PACELINE_SWITCH; `https://` before or `#sha256=HEX` behind it: TLS."""
        address, hash_sign, pinned = text.strip().partition("#")
        if address.startswith("https://"):
            address, trust = address.removeprefix("https://").rstrip("/"), trust or Trust()
        if hash_sign:
            trust = Trust(fingerprint=parse_fingerprint(pinned, "PACELINE_SWITCH"))
        try:
            host, port = split_address(address, DEFAULT_PORT)
        except ValueError:
            port = 0
        if not port:
            raise UserError(
                f'"{text}" is not host, host:port or [ipv6]:port', place="PACELINE_SWITCH"
            ) from None
        return cls(host, port, token, timeout_s, trust)

    @property
    def shown(self) -> str:
        """Where it is, for people."""
        return show_address(self.host, self.port)

    def admit(
        self,
        name: str,
        workers: int,
        *,
        priority_max: int | None = None,
        slots_max: int | None = None,
        racks: int | None = None,
    ) -> Admission:
        """Ask for a place for a job; one of several racks asks the switch of its rack 0 first."""
        options = {"racks": racks, "priority_max": priority_max, "slots_max": slots_max}
        # A byte of the environment that is not UTF-8, or a long name, must not keep a job from being admitted.
        request = {
            "name": shown(name)[:NAME_CHARACTERS_MAX],
            "workers": workers,
            **{k: v for k, v in options.items() if v is not None},
        }
        return self._admission(request, self.call("POST", "/v1/jobs", request))

    def readmit(self, admission: Admission, epoch: int | None = None, rack: int | None = None) -> Admission:
        """The same job and key: after a restart of the switch, or at the switch of another rack.

        Any worker may ask, several may. The number is another one where a newcomer has the old one by now.
        """
        if rack is not None:
            admission = replace(admission, request={**admission.request, "rack": rack})
        request = {
            **admission.request,
            "job": admission.job,
            "key": admission.key.hex(),
            "epoch": admission.epoch if epoch is None else epoch,
        }
        return replace(
            self._admission(request, self.call("POST", "/v1/jobs", request)), request=admission.request
        )

    def bind(self, admission: Admission, worker: int, address: tuple[str, int]) -> None:
        """Packets of this worker come from this address; 0.0.0.0 means: from where this request comes."""
        path = f"/v1/jobs/{admission.job}/workers/{worker}"
        self.call("PUT", path, {"address": show_address(address[0], address[1])}, admission.key)

    def renew(self, admission: Admission) -> bool:
        """Renew the lease; False where the job is not known (any more)."""
        try:
            self.call("POST", f"/v1/jobs/{admission.job}/lease", {}, admission.key)
        except ControlError as error:
            if error.status == http.client.NOT_FOUND:
                return False
            raise
        return True

    def leave(self, admission: Admission) -> None:
        """The job is over; its aggregators are freed. A job that is not there any more is left already."""
        try:
            self.call("DELETE", f"/v1/jobs/{admission.job}", None, admission.key)
        except ControlError as error:
            if error.status != http.client.NOT_FOUND:
                raise

    def _admission(self, request: dict[str, Any], answer: dict[str, Any]) -> Admission:
        try:
            admission = Admission(
                job=int(answer["job"]),
                key=bytes.fromhex(answer["key"]),
                host=self.host,
                shards=tuple(int(port) for port in answer["shards"]),
                slots=int(answer["pool"] if answer["policy"] == "switchml" else answer["slots"]),
                elements=int(answer["elements"]),
                policy=str(answer["policy"]),
                auth=str(answer["auth"]),
                lease_s=float(answer["lease_s"]),
                epoch=int(answer.get("epoch", 0)),
                name=str(request["name"]),
                workers=int(request["workers"]),
                instance=str(answer.get("instance", "")),
                slots_max=int(answer.get("slots_max", 0)),
                request={k: v for k, v in request.items() if k not in ("job", "key", "epoch")},
            )
            _check_admission(admission)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ControlError(f"{self.shown} gave a strange admission: {shown(repr(error))}") from error
        return admission

    def call(
        self, method: str, path: str, body: dict[str, Any] | None = None, key: bytes | None = None
    ) -> dict[str, Any]:
        """Any request, as JSON; the key is that of the job it is about."""
        text = self._ask(method, path, body, key)
        try:
            answer = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError):
            answer = {}
        return answer if isinstance(answer, dict) else {"items": answer}

    def text(self, path: str) -> str:
        """A page for people or programs, such as `/metrics`."""
        return self._ask("GET", path, None, None).decode(errors="replace")

    def _ask(self, method: str, path: str, body: dict[str, Any] | None, key: bytes | None) -> bytes:
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if key is not None:
            headers["X-Paceline-Key"] = key.hex()
        where = f"the switch at {self.shown}"
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout_s)
        try:
            if self.trust is not None:
                connection = self.trust.connect(self.host, self.port, self.timeout_s)
            connection.response_class = _Answer
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read(ANSWER_BYTES_MAX + 1)
            if len(text) > ANSWER_BYTES_MAX:
                raise http.client.HTTPException(f"its answer is longer than {ANSWER_BYTES_MAX >> 20} MiB")
            if response.length:
                raise http.client.IncompleteRead(text, response.length)
        except UntrustedError as error:
            raise UntrustedSwitchError(f"{where}: {error}", reason=str(error)) from error
        except (OSError, http.client.HTTPException, ValueError) as error:  # also a token or name that is none
            hint = "" if self.trust is not None or not _looks_like_tls(error) else " (does it ask for TLS?)"
            reason = f"{shown(str(error))[:REASON_MAX]}{hint}"
            raise ControlError(f"{where} does not answer: {reason}", reason=reason) from error
        finally:
            connection.close()
        if response.status >= 400:
            reason = shown(_sentence(text) or response.reason)[:REASON_MAX]
            raise ControlError(f"{where}: {reason}", response.status, reason)
        return text


class _Answer(http.client.HTTPResponse):
    """An answer that comes whole within a time, or `TimeoutError`: a drop now and then does not hold us for ever."""

    def __init__(self, sock: socket.socket, *args: Any, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        self.fp.close()
        self.fp = io.BufferedReader(_Until(sock))


class _Until(io.RawIOBase):
    """What a socket receives, until so many of its timeouts are over."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._sock, self._raw = sock, sock.makefile("rb", buffering=0)
        timeout_s = sock.gettimeout()
        self._until = None if timeout_s is None else time.monotonic() + TIMEOUTS * timeout_s

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int | None:
        if self._until is not None and time.monotonic() > self._until:
            raise TimeoutError("its answer does not come to an end")
        return self._raw.readinto(into)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _check_admission(admission: Admission) -> None:
    """Refuse what an agent could not work with, by a `ValueError`."""
    limits = (
        ("job", admission.job, 0, 65_535),
        ("epoch", admission.epoch, 0, 65_535),
        ("elements", admission.elements, ELEMENTS_MIN, MAX_ELEMENTS),
        ("slots", admission.slots, 1, 1 << 31),
        ("slots_max", admission.slots_max, 0, 1 << 31),
        ("length of the key", len(admission.key), KEY_BYTES, KEY_BYTES),
        ("number of shards", len(admission.shards), 1, SHARDS_MAX),
        *(("port", port, 1, 65_535) for port in admission.shards),
    )
    for name, value, low, high in limits:
        if not low <= value <= high:
            raise ValueError(f"{name} {value}")
    if not 0.0 < admission.lease_s <= LEASE_MAX_S:
        raise ValueError(f"lease_s {admission.lease_s}")
    if admission.policy not in POLICIES or admission.auth not in ("header", "full"):
        raise ValueError(f"policy {admission.policy!r}, auth {admission.auth!r}")


SWITCHES_MAX = 8
"""Switches of a job: a worker has an agent for each."""
WEIGHT_MAX = 1000


@dataclass(frozen=True)
class NamedSwitch:
    """One of the switches that PACELINE_SWITCH names."""

    control: ControlPlane
    address: str
    """As it is named."""
    factor: int = 1
    """How many times as much as the others it is to carry, as far as it has room."""


def parse_switches(
    text: str, token: str = "", timeout_s: float = 5.0, trust: Trust | None = None
) -> tuple[NamedSwitch, ...]:
    """PACELINE_SWITCH: one address, as `ControlPlane.parse` takes it, or several with commas between them.

    `*N` behind an address: this switch is to carry N times as much as one without.
    """
    named: list[NamedSwitch] = []
    for part in text.split(",") if text.strip() else []:
        address, factor = part.strip().rsplit("*", 1) if "*" in part else (part.strip(), "1")
        if not (factor.isdecimal() and 1 <= int(factor) <= WEIGHT_MAX):
            raise UserError(f'"{part}": behind * is a number from 1 to {WEIGHT_MAX}', place="PACELINE_SWITCH")
        if not address:
            raise UserError(f'"{text}" has a comma and no address beside it', place="PACELINE_SWITCH")
        control = ControlPlane.parse(address, token, timeout_s, trust)
        named.append(NamedSwitch(control, address.strip(), int(factor)))
    shown_all = [switch.control.shown for switch in named]
    if double := next((name for name in shown_all if shown_all.count(name) > 1), ""):
        raise UserError(f"{double} is named twice", place="PACELINE_SWITCH")
    if len(named) > SWITCHES_MAX:
        raise UserError(
            f"{len(named)} switches are more than the {SWITCHES_MAX} of a job", place="PACELINE_SWITCH"
        )
    return tuple(named)


def _looks_like_tls(error: Exception) -> bool:
    """A server of TLS closes a plain connection at once, or answers with a record that is no status line."""
    return isinstance(error, http.client.BadStatusLine | ConnectionResetError)


def _sentence(text: bytes) -> str:
    """Why the control plane refused, in its own words."""
    try:
        return str(json.loads(text).get("error", ""))
    except (ValueError, AttributeError, RecursionError):
        return ""


class SwitchUser(Protocol):
    """The part of an agent that a membership tells about the switch."""

    @property
    def uses_switch(self) -> bool: ...

    @property
    def epoch(self) -> int: ...

    def use_switch(self, host: str, ports: tuple[int, ...], job: int, fresh: bool) -> None: ...

    def suspect_switch(self, reason: str = "") -> None: ...


class Membership:
    """Keeps a job admitted: renews the lease, and admits and binds again where a switch has restarted."""

    def __init__(
        self,
        control: ControlPlane,
        admission: Admission,
        worker: int,
        address: tuple[str, int],
        agent: SwitchUser,
        *,
        retry_s: float = 0.5,
    ) -> None:
        self.control = control
        self.admission = admission
        self.worker = worker
        self.address = address
        self.readmissions = 0
        self.last_error = ""
        self._agent = agent
        self._retry_s = retry_s
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-lease", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop renewing; the job stays admitted until its lease ends or it leaves."""
        self._stop.set()
        self._thread.join(self.control.timeout_s + 1.0)

    def _run(self) -> None:
        wait_s = self._renewal_s()
        while not self._stop.wait(wait_s):
            wait_s = self._renewal_s() if self._step() else self._retry_s

    def _renewal_s(self) -> float:
        # Often enough to notice a restart soon, whatever the lease.
        return max(0.05, min(self.admission.lease_s / 3, 1.0))

    def _step(self) -> bool:
        """Renew once; admit again if the switch does not know the job. False: try again soon."""
        try:
            # After an outage ask for the admission itself: another worker may have admitted the job to a switch
            # that was restarted, with other ports. For the same reason the address is bound every time.
            settled = not self.last_error and self._agent.uses_switch
            if settled and self.control.renew(self.admission):
                self.control.bind(self.admission, self.worker, self.address)
                return True
            admission = self.control.readmit(self.admission, self._agent.epoch)
            self.control.bind(admission, self.worker, self.address)
        except ControlError as error:
            if not self.last_error:
                self._agent.suspect_switch(str(error))
            self.last_error = str(error)
            return False
        fresh = admission.instance != self.admission.instance
        with self._lock:
            self.admission = admission
            self.readmissions += 1
            self.last_error = ""
        self._agent.use_switch(admission.host, admission.shards, admission.job, fresh)
        return True
