"""One worker of a live drill, a process of its own: `python -m paceline.drill.live_worker SPEC`, started by `live_bed`.

It tells its address, is told its peers and the admission, and then sums as far as it is allowed, one step after
another. Every line is JSON; those of a step have when it ended, the hash of the result, and which way it went. Inputs
follow from the seed alone and come around every few steps, so the first round, which nothing disturbs, says what all
the others must be; sums of integers are checked against NumPy's besides.
"""

import json
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paceline.live.agent.agent import Agent, open_socket
from paceline.live.agent.setup import warm_up
from paceline.live.switch_client import Admission, ControlPlane, Membership
from paceline.passport.xxh64 import xxh64

ROUND = 4
"""So many different inputs there are."""
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker is told when it is started."""

    worker: int
    workers: int
    host: str
    control: str
    token: str
    seed: int
    elements: int
    pace_s: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def inputs(seed: int, turn: int, worker: int, elements: int) -> Any:
    """What a worker brings to a turn: numbers of very different sizes, or integers that wrap."""
    rng = np.random.default_rng([seed, turn, worker])
    if turn % 2:
        return rng.integers(-(2**31), 2**31, elements, dtype=np.int64).astype(np.int32)
    return (rng.standard_normal(elements) * 10.0 ** rng.integers(-6, 6, elements)).astype(np.float32)


class Allowance:
    """How far a worker may go; its driver raises it."""

    def __init__(self) -> None:
        self.steps, self._condition = 0, threading.Condition()

    def listen(self) -> None:
        """Until the driver has no more to say."""
        for line in sys.stdin:
            with self._condition:
                self.steps = int(json.loads(line)["steps"])
                self._condition.notify()
        with self._condition:
            self.steps = -1
            self._condition.notify()

    def wait_beyond(self, step: int) -> bool:
        """Whether this step may be done; False: there are no more."""
        with self._condition:
            self._condition.wait_for(lambda: self.steps < 0 or self.steps > step)
            return self.steps >= 0


def tell(**what: Any) -> None:
    """A line to the driver."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main(argument: str) -> None:
    """Take part until there is nothing more on standard input."""
    spec = WorkerSpec(**json.loads(argument))
    warm_up()
    turns = [
        [inputs(spec.seed, turn, worker, spec.elements) for worker in range(spec.workers)]
        for turn in range(ROUND)
    ]
    sums: list[Any] = [
        np.sum(turn, axis=0, dtype=np.int32) if turn[0].dtype == np.int32 else None for turn in turns
    ]
    sock = open_socket(spec.host)
    address = sock.getsockname()[:2]
    tell(address=list(address))
    told = json.loads(sys.stdin.readline())
    admission = Admission.from_json(told["admission"])
    control = ControlPlane.parse(spec.control, spec.token, timeout_s=2.0)
    peers = [(str(host), int(port)) for host, port in told["peers"]]
    control.bind(admission, spec.worker, peers[spec.worker])
    agent = Agent(admission.config(spec.worker, peers, timeout_s=TIMEOUT_S, linger_s=1.0), sock)
    membership = Membership(control, admission, spec.worker, peers[spec.worker], agent)
    allowance = Allowance()
    threading.Thread(target=allowance.listen, name="allowance", daemon=True).start()
    step = 0
    try:
        while allowance.wait_beyond(step):
            time.sleep(spec.pace_s)
            turn = step % ROUND
            result = turns[turn][spec.worker].copy()
            agent.submit(result).wait(TIMEOUT_S)
            right = sums[turn] is None or bool(np.array_equal(result, sums[turn]))
            way = "switch" if agent.uses_switch else "custodians"
            tell(step=step, time=time.monotonic(), digest=xxh64(result), right=right, path=way)
            step += 1
    finally:
        membership.close()
        agent.close(1.0)


if __name__ == "__main__":
    main(sys.argv[1])
