"""The path through agents: a job at each switch, a UDP socket and an agent for each; made together by all workers.

A *generation* is one such path. Every generation has its own jobs, keys and agents, and every attempt at one meets
under its own keys of the Store: the first worker admits the job and publishes the offer, every worker publishes
its addresses, and when all addresses are there each builds its agents. `step` never blocks for long, so that a path
can be prepared while another is in use."""

import json
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from paceline.errors import UserError
from paceline.live.agent.agent import Agent, open_socket
from paceline.live.agent.config import Address, AgentConfig
from paceline.live.spread import SpreadAgent
from paceline.live.switch_client import Admission, ControlError, Membership
from paceline.torch.failover.offer import BranchOffer, PathOffer, switches_of
from paceline.torch.rendezvous import StorePrefix
from paceline.torch.settings import Settings

_GRACE_S = 60.0
"""The exchange keeps the time of a reduction; the agent's own limit comes after it."""
PATH_ERRORS = (OSError, RuntimeError, UserError, ControlError)
"""What making a path may raise."""


class Branch:
    """One switch of a path, or custodians in its place, on one worker: socket, agent, lease."""

    def __init__(self, offer: BranchOffer, settings: Settings, worker: int, host: str) -> None:
        self.offer, self._worker = offer, worker
        named = switches_of(settings) if offer.admission else ()
        self._control = named[offer.switch].control if named else None
        self.name = self._control.shown if self._control is not None else "custodians"
        """What people call it."""
        self._among = len(named)
        self._sock: socket.socket | None = open_socket(host)
        self._membership: Membership | None = None
        self._agent: Agent | None = None

    @property
    def address(self) -> Address:
        """Where this worker's agent listens, or will."""
        assert self._sock is not None
        host, port = self._sock.getsockname()[:2]
        return str(host), int(port)

    @property
    def agent(self) -> Agent:
        """The agent, once it is built."""
        assert self._agent is not None
        return self._agent

    def build(
        self,
        peers: list[Address],
        racks: Sequence[int],
        make_agent: Callable[[AgentConfig, socket.socket], Agent],
        **more: Any,
    ) -> None:
        """Bind this worker's address at the switch, and begin; `more` are fields of `AgentConfig`."""
        assert self._sock is not None
        if self._control is not None:
            admission = Admission.from_json(self.offer.admission)
            if racks[self._worker] > 0:
                # The first worker was admitted by the switch of its own rack; this one has another.
                admission = self._control.readmit(admission, rack=racks[self._worker])
            self._control.bind(admission, self._worker, peers[self._worker])
            if self._among > 1:
                more["name"] = f"{more['name']} worker {self._worker}, switch {self.name}"
            config = admission.config(self._worker, peers, racks=racks, **more)
        else:
            key = bytes.fromhex(self.offer.key)
            config = AgentConfig(self._worker, len(peers), peers, self.offer.job, key, **more)
        self._agent = make_agent(config, self._sock)
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

    def close(self, linger_s: float | None) -> None:
        """End agent and lease; the job stays at its switch."""
        if self._membership is not None:
            self._membership.close()
        if self._agent is not None:
            self._agent.close(linger_s)
        elif self._sock is not None:
            self._sock.close()

    def leave(self) -> None:
        """Take the job from its switch; where that does not answer, its lease ends it."""
        if self._membership is not None and self._control is not None:
            with suppress(ControlError):
                self._control.leave(self._membership.admission)


class AgentPath:
    """One generation on one worker."""

    def __init__(
        self,
        keys: StorePrefix,
        worker: int,
        workers: int,
        settings: Settings,
        hosts: Sequence[str],
        timeout_s: float,
        name: str,
        racks: Sequence[int] = (),
        make_agent: Callable[[AgentConfig, socket.socket], Agent] = Agent,
    ) -> None:
        """`hosts`: this host's address on the way to each switch; `racks`: of each worker, if racks have switches."""
        self._racks = list(racks) or [0] * workers
        self._keys, self._worker, self._workers = keys, worker, workers
        self._settings, self._hosts = settings, hosts
        self._timeout_s, self._name, self._make_agent = timeout_s, name, make_agent
        self._branches: list[Branch] = []
        self._agent: Agent | SpreadAgent | None = None
        self.offer: PathOffer | None = None
        """There once the first worker has published it."""

    @property
    def agent(self) -> Agent | SpreadAgent:
        """The agent of a path that is up; one over all branches, where there are several."""
        assert self._agent is not None
        return self._agent

    def switches_used(self) -> int:
        """How many switches carry contributions now."""
        return sum(bool(branch.offer.admission) and branch.agent.uses_switch for branch in self._branches)

    def publish(self, offer: PathOffer) -> None:
        """The first worker's part."""
        self._keys.set("offer", offer.to_json())

    def give_up(self, reason: str) -> None:
        """This worker cannot go on: no worker should wait for it."""
        with suppress(RuntimeError):
            self._keys.set("given_up", reason)

    def given_up(self) -> bool:
        """Whether some worker cannot go on."""
        return self._keys.ready("given_up")

    def step(self) -> bool:
        """Go as far as the others allow; True when the agents are there and run."""
        if self._agent is not None:
            return self.running()
        if self.offer is None:
            if not self._keys.ready("offer"):
                return False
            self.offer = PathOffer.from_json(self._keys.read("offer"))
            for offer in self.offer.branches:
                host = self._hosts[min(offer.switch, len(self._hosts) - 1)]
                self._branches.append(Branch(offer, self._settings, self._worker, host))
            self._keys.set(f"address/{self._worker}", json.dumps([b.address for b in self._branches]))
        if not all(self._keys.ready(f"address/{other}") for other in range(self._workers)):
            return False
        self._build([json.loads(self._keys.read(f"address/{w}")) for w in range(self._workers)])
        return self.running()

    def _build(self, addresses: list[list[list[Any]]]) -> None:
        """`addresses[worker][branch]`: host and port."""
        assert self.offer is not None
        for number, branch in enumerate(self._branches):
            peers = [(str(theirs[number][0]), int(theirs[number][1])) for theirs in addresses]
            branch.build(
                peers,
                self._racks,
                self._make_agent,
                elements=self.offer.elements,
                timeout_s=self._timeout_s + _GRACE_S,
                name=self._name,
                straggler=self.offer.straggler,
            )
        agents = [branch.agent for branch in self._branches]
        names = [branch.name for branch in self._branches]
        weights = [branch.offer.weight for branch in self._branches]
        self._agent = agents[0] if len(agents) == 1 else SpreadAgent(agents, names, weights)

    def running(self) -> bool:
        """Whether all agents' loops go round."""
        return self._agent is not None and all(branch.running() for branch in self._branches)

    def close(self, linger_s: float | None = None) -> None:
        """End the agents; the last worker of a rack to leave takes the job from its switches."""
        for branch in self._branches:
            branch.close(linger_s)
        if self._agent is not None and self.offer is not None and self.offer.admitted:
            rack = self._racks[self._worker]
            with suppress(RuntimeError):
                if self._keys.add(f"left/{rack}") == self._racks.count(rack):
                    for branch in self._branches:
                        branch.leave()


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
