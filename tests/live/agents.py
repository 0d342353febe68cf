"""A switch, its control plane and the agents of one job in one process, for tests."""

import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from paceline.emulation.namespaces import Star, entered
from paceline.live.agent.agent import Agent, open_socket
from paceline.live.agent.config import AgentConfig
from paceline.live.agent.setup import warm_up
from paceline.live.switch.daemon import LiveSwitch, SwitchOptions
from paceline.live.switch.http import ControlServer
from paceline.live.switch.jobs import Events
from paceline.live.switch_client import Admission, ControlPlane, Membership
from paceline.live.switch_tls import Trust

WAIT_S = 240.0
"""Long: the first run of all compiles the loop, beside whatever else the machine does."""
KEY = bytes(range(16))


class RunningSwitch:
    """A live switch with its control plane."""

    def __init__(self, **options: Any) -> None:
        self.options = {"elements": 352, "memory_bytes": 1 << 20, **options}
        self.switch = LiveSwitch(SwitchOptions(**self.options), Events(stream=io.StringIO()))
        self.token = ""
        self.trust: Trust | None = None
        self.server = ControlServer(self.switch)
        self.server.start()

    @property
    def control(self) -> ControlPlane:
        return ControlPlane(self.switch.options.host, self.server.port, token=self.token, trust=self.trust)

    def close(self) -> None:
        self.server.close()
        self.switch.close()


class Job:
    """The agents of one job."""

    def __init__(self, agents: list[Agent], admission: Admission | None, members: list[Membership]) -> None:
        self.agents, self.admission, self.members = agents, admission, members

    def reduce(self, arrays: list[Any], **options: Any) -> list[Any]:
        """Reduce copies of the arrays, one of each worker; the results of all workers."""
        results = [array.copy() for array in arrays]
        handles = [agent.submit(x, **options) for agent, x in zip(self.agents, results, strict=True)]
        for handle in handles:
            handle.wait(WAIT_S)
        return results


@contextmanager
def running_switch(**options: Any) -> Iterator[RunningSwitch]:
    made = RunningSwitch(**options)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def switch_in(star: Star, **options: Any) -> Iterator[RunningSwitch]:
    """A live switch at the hub of a star of namespaces; this thread is there, too."""
    warm_up()
    with entered(star.hub), running_switch(host=star.hub_address, token="star", **options) as switch:
        switch.token = "star"
        yield switch


@contextmanager
def job_of(
    workers: int,
    switch: RunningSwitch | None,
    member: bool = False,
    admission: dict[str, Any] | None = None,
    star: Star | None = None,
    host: str = "127.0.0.1",
    **more: Any,
) -> Iterator[Job]:
    """A job with one agent for each worker, by a switch or by custodians alone; on loopback or in namespaces."""
    # Before the admission: a lease does not wait for a compiler.
    warm_up()
    sockets = []
    for worker in range(workers):
        if star is None:
            sockets.append(open_socket(host))
        else:
            with entered(star.workers[worker]):
                sockets.append(open_socket(star.address(worker)))
    peers = [sock.getsockname()[:2] for sock in sockets]
    admitted = None
    members = []
    with ExitStack() as stack:
        if switch is not None:
            admitted = switch.control.admit("test", workers, **(admission or {}))
            for worker, address in enumerate(peers):
                switch.control.bind(admitted, worker, address)
        agents = []
        for worker, sock in enumerate(sockets):
            settings: dict[str, Any] = {"timeout_s": WAIT_S, "linger_s": 5.0, **more}
            if admitted is not None:
                config = admitted.config(worker, peers, **settings)
            else:
                config = AgentConfig(worker, workers, peers, 1, KEY, **{"elements": 352, **settings})
            agents.append(Agent(config, sock))
            if member and admitted is not None and switch is not None:
                members.append(
                    Membership(switch.control, admitted, worker, peers[worker], agents[-1], retry_s=0.1)
                )
        stack.callback(close_all, agents)
        for membership in members:
            stack.callback(membership.close)
        yield Job(agents, admitted, members)


def close_all(agents: list[Agent]) -> None:
    """Close agents that wait for each other, at once."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(agents)) as pool:
        list(pool.map(lambda agent: agent.close(), agents))


def tensors_of(workers: int, numbers: int, seed: int) -> list[Any]:
    """One array for each worker, always the same for a seed."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(numbers).astype(np.float32) for _ in range(workers)]
