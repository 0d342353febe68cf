"""Compile the agent once before the ranks start: `python -m paceline.bench.warm_up`.

Cold ranks would each compile the same code at the same time. Two agents in one process reduce a few numbers; what
they compile is kept on disk.
"""

import sys

import numpy as np

from paceline.live.agent import Agent, open_socket
from paceline.live.agent_config import KEY_BYTES, AgentConfig

TIMEOUT_S = 390.0


def main() -> None:
    """Reduce once, without a switch."""
    sockets = [open_socket() for _ in range(2)]
    peers = [sock.getsockname() for sock in sockets]
    agents = [
        Agent(AgentConfig(worker=i, workers=2, peers=peers, job=1, key=bytes(KEY_BYTES)), sock)
        for i, sock in enumerate(sockets)
    ]
    arrays = [np.ones(5_000, np.float32) for _ in agents]
    handles = [agent.submit(array) for agent, array in zip(agents, arrays, strict=True)]
    for handle in handles:
        handle.wait(TIMEOUT_S)
    for agent in agents:
        agent.close()
    if not all((array == 2.0).all() for array in arrays):
        sys.exit("the agent's sum was wrong")


if __name__ == "__main__":
    main()
