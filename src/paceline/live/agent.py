"""The agent: reduces tensors over all workers of a job, inside the training process, without its GIL.

sock = open_socket("10.0.0.3")                      # bind first, tell the others the address
agent = Agent(AgentConfig(worker=0, workers=2, peers=[...], job=1, key=key, switch=(ip, ports)), sock)
handle = agent.submit(array, op="avg", priority=10) # in place; returns at once
handle.wait(60)
agent.close()
"""

import socket
from collections.abc import Callable, Sequence
from typing import Any

from paceline.live.agent_config import AgentConfig
from paceline.live.agent_handle import Handle


def open_socket(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """A UDP socket as an agent needs it; `getsockname()` is the address that the others are to be told."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((host, port))
    return sock


class Agent:
    """Sender and custodian of one worker on a thread of their own."""

    def __init__(self, config: AgentConfig, sock: socket.socket | None = None) -> None:
        """`sock` from `open_socket` passes to the agent; without it the own entry of `peers` is bound."""
        raise NotImplementedError

    def submit(self, array: Any, op: str = "sum", dtype: str | None = None, priority: int = 128) -> Handle:
        """Reduce a contiguous array in place, over all workers; all submit the same tensors in the same order.

        `dtype` "bfloat16" or "float16" says what a uint16 view holds; otherwise it is the array's own:
        float32, float16 or int32. `op` is "sum" or "avg"; `priority` 0..255, higher goes first in the switch.
        """
        raise NotImplementedError

    def status(self) -> dict[str, Any]:
        """`path` ("switch" or "custodian"), `failed`, `counters`, `events` (the latest changes), figures."""
        raise NotImplementedError

    def on_event(self, callback: Callable[[dict[str, Any]], None]) -> None:
        """Call `callback({"time", "event", "reason", ...})` on each change of path and each failure."""
        raise NotImplementedError

    def use_switch(self, host: str, ports: Sequence[int]) -> None:
        """There is a switch (again) that has admitted the job: use it as soon as it answers."""
        raise NotImplementedError

    def without_switch(self, reason: str = "asked to") -> None:
        """Use custodians only, until `use_switch`."""
        raise NotImplementedError

    def suspect_switch(self, reason: str = "") -> None:
        """The control plane does not answer: ask the data plane at once whether it is alive."""
        raise NotImplementedError

    def close(self, linger_s: float | None = None) -> None:
        """End the thread; what is under way ends with an error. Waits a little for workers that lack a result."""
        raise NotImplementedError

    def __enter__(self) -> "Agent":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
