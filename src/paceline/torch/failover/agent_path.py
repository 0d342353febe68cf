"""The path through agents: a job at the switch, a UDP socket, an agent; made together by all workers.

A *generation* is one such path. Every generation has its own job, key and agents, and every attempt at one meets
under its own keys of the Store: the first worker admits the job and publishes the admission, every worker publishes
its address, and when all addresses are there each builds its agent. `step` never blocks for long, so that a path
can be prepared while another is in use."""

import json
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from paceline.errors import UserError
from paceline.live.agent.agent import Agent, open_socket
from paceline.live.agent.config import AgentConfig
from paceline.live.agent.setup import warm_up
from paceline.live.net.addresses import is_ipv6
from paceline.live.net.sockets import IPV6_MORE_BYTES, route_to
from paceline.live.switch_client import (
    Admission,
    ControlError,
    ControlPlane,
    Membership,
    UntrustedSwitchError,
)
from paceline.torch.rendezvous import StorePrefix
from paceline.torch.settings import Settings

_GRACE_S = 60.0
"""The exchange keeps the time of a reduction; the agent's own limit comes after it."""
PATH_ERRORS = (OSError, RuntimeError, UserError, ControlError)
"""What making a path may raise."""


@dataclass(frozen=True)
class PathOffer:
    """What the first worker publishes: the admission, or what replaces it where there is no switch."""

    job: int
    """The job's number in packets."""
    key: str
    """Of the packets' tags, in hexadecimal digits."""
    admission: str
    """The switch's `Admission` as JSON; empty: custodians do everything."""
    reason: str
    """Why there is no admission."""
    elements: int
    """32-bit integers of a chunk."""
    wanted: bool = True
    """Whether there should be an admission."""
    straggler: str = "off"
    """Whether leading workers help a straggling one: the first worker decides for all."""


def route_to_switch(settings: Settings, master: str) -> tuple[str, int]:
    """This host's address on the way to the switch (or the master), and the MTU of that way.

    IPv6 takes more of a packet than IPv4: what it takes is off the MTU already.
    """
    far = (_control_of(settings).host if settings.switch else "") or master or "127.0.0.1"
    try:
        address, mtu = route_to(far)
        address = settings.address or address
        return address, mtu - IPV6_MORE_BYTES if is_ipv6(address) else mtu
    except OSError as error:
        if settings.address:
            return settings.address, 1500
        raise UserError(f"no way to {far}: {error}", place="PACELINE_SWITCH or MASTER_ADDR") from error


def _control_of(settings: Settings) -> ControlPlane:
    return ControlPlane.parse(settings.switch, settings.token, trust=settings.trust)


def numbered_racks(names: list[str]) -> list[int]:
    """Each worker's rack as a number, in the order of the workers; all in one where some have not told theirs."""
    known = list(dict.fromkeys(names)) if all(names) else [""]
    return [known.index(name) if all(names) else 0 for name in names]


def make_offer(settings: Settings, name: str, workers: int, elements: int, racks: int = 1) -> PathOffer:
    """Ask the switch for a place; without one, custodians do everything. A refusal is a mistake to be told."""
    job, key = secrets.randbelow(1 << 16), secrets.token_hex(16)
    if not settings.switch:
        return PathOffer(job, key, "", "PACELINE_SWITCH is not set", elements, False, settings.straggler)
    control = _control_of(settings)
    warm_up()  # a first start compiles for longer than a lease lasts
    try:
        admission = control.admit(
            name,
            workers,
            priority_max=settings.priority_max,
            slots_max=settings.slots_max,
            racks=racks if racks > 1 else None,
        )
    except ControlError as error:
        if error.status or isinstance(error, UntrustedSwitchError):
            raise UserError(str(error), place="PACELINE_SWITCH") from error
        return PathOffer(job, key, "", str(error), elements, True, settings.straggler)
    if settings.straggler != "off" and admission.policy == "switchml":
        control.leave(admission)
        raise UserError("the switch runs switchml, which has no custodians", place="PACELINE_STRAGGLER")
    narrow = min(elements, admission.elements)
    key = admission.key.hex()
    return PathOffer(admission.job, key, admission.to_json(), "", narrow, True, settings.straggler)


class AgentPath:
    """One generation on one worker."""

    def __init__(
        self,
        keys: StorePrefix,
        worker: int,
        workers: int,
        settings: Settings,
        host: str,
        timeout_s: float,
        name: str,
        racks: Sequence[int] = (),
        make_agent: Callable[[AgentConfig, socket.socket], Agent] = Agent,
    ) -> None:
        """`racks`: of each worker; racks have switches of their own if there is more than one."""
        self._racks = list(racks) or [0] * workers
        self._keys, self._worker, self._workers = keys, worker, workers
        self._settings, self._host = settings, host
        self._timeout_s, self._name, self._make_agent = timeout_s, name, make_agent
        self._sock: socket.socket | None = None
        self._membership: Membership | None = None
        self._control: ControlPlane | None = None
        self._agent: Agent | None = None
        self.offer: PathOffer | None = None
        """There once the first worker has published it."""

    @property
    def _rack(self) -> int:
        return self._racks[self._worker]

    @property
    def agent(self) -> Agent:
        """The agent of a path that is up."""
        assert self._agent is not None
        return self._agent

    def publish(self, offer: PathOffer) -> None:
        """The first worker's part."""
        self._keys.set("offer", json.dumps(asdict(offer)))

    def give_up(self, reason: str) -> None:
        """This worker cannot go on: no worker should wait for it."""
        with suppress(RuntimeError):
            self._keys.set("given_up", reason)

    def given_up(self) -> bool:
        """Whether some worker cannot go on."""
        return self._keys.ready("given_up")

    def step(self) -> bool:
        """Go as far as the others allow; True when the agent is there and runs."""
        if self._agent is not None:
            return self.running()
        if self.offer is None:
            if not self._keys.ready("offer"):
                return False
            self.offer = PathOffer(**json.loads(self._keys.read("offer")))
            self._sock = open_socket(self._host)
            address, port = self._sock.getsockname()[:2]
            self._keys.set(f"address/{self._worker}", json.dumps([address, port]))
        if not all(self._keys.ready(f"address/{other}") for other in range(self._workers)):
            return False
        self._build([json.loads(self._keys.read(f"address/{w}")) for w in range(self._workers)])
        return self.running()

    def _build(self, addresses: list[list[Any]]) -> None:
        assert self.offer is not None
        assert self._sock is not None
        peers = [(str(ip), int(port)) for ip, port in addresses]
        more: dict[str, Any] = {
            "elements": self.offer.elements,
            "timeout_s": self._timeout_s + _GRACE_S,
            "name": self._name,
            "straggler": self.offer.straggler,
        }
        if self.offer.admission:
            admission = Admission.from_json(self.offer.admission)
            self._control = _control_of(self._settings)
            if self._rack > 0:
                # The first worker was admitted by the switch of its own rack; this one has another.
                admission = self._control.readmit(admission, rack=self._rack)
            self._control.bind(admission, self._worker, peers[self._worker])
            config = admission.config(self._worker, peers, racks=self._racks, **more)
        else:
            key = bytes.fromhex(self.offer.key)
            config = AgentConfig(self._worker, self._workers, peers, self.offer.job, key, **more)
        self._agent = self._make_agent(config, self._sock)
        self._sock = None
        if self._control is not None:
            self._membership = Membership(
                self._control, admission, self._worker, peers[self._worker], self._agent
            )

    def running(self) -> bool:
        """Whether the agent's loop goes round: the first time ever, it is compiled before that."""
        if self._agent is None:
            return False
        counters = self._agent.status()["counters"]
        return int(counters["waits"]) + int(counters["rounds"]) > 0

    def close(self, linger_s: float | None = None) -> None:
        """End the agent; the last worker of a rack to leave takes the job from its switch."""
        if self._membership is not None:
            self._membership.close()
        if self._agent is not None:
            self._agent.close(linger_s)
        elif self._sock is not None:
            self._sock.close()
        if self._membership is not None and self._control is not None:
            try:
                if self._keys.add(f"left/{self._rack}") == self._racks.count(self._rack):
                    self._control.leave(self._membership.admission)
            except (ControlError, RuntimeError):
                pass  # its lease ends it


def start_together(
    keys: StorePrefix,
    worker: int,
    workers: int,
    path: AgentPath,
    make_offer: Callable[[], PathOffer],
    timeout_s: float,
) -> str:
    """Bring up the first path of a group on all workers; why it cannot be used on one of them, or nothing.

    A refusal by the switch is the user's mistake: every worker raises it.
    """
    if worker == 0:
        try:
            offer = make_offer()
        except Exception as error:
            keys.set("refused", str(error) or repr(error))  # or the others would wait for it
            raise
        keys.set("refused", "")
        path.publish(offer)
    refused = keys.get("refused")
    if refused:
        raise UserError(refused)
    trouble = ""
    try:
        end = time.monotonic() + timeout_s
        while not path.step():
            if time.monotonic() > end:
                raise TimeoutError("not all workers told their address")
            time.sleep(0.005)
    except PATH_ERRORS as error:
        trouble = str(error) or repr(error)
    keys.set(f"begun/{worker}", trouble)
    answers = [keys.get(f"begun/{other}") for other in range(workers)]
    return next((answer for answer in answers if answer), "")
