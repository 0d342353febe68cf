"""One job over several switches: an agent for each, used as one.

Each agent has a thread, a socket, a window and a job of its own at its switch, and fails over by itself. A tensor is
cut between them by weight (`core/numbers/split.py`); its handle ends when all parts have. All workers make their
agents in one order, with the same weights, and submit the same tensors in the same order: so all cut alike.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from paceline.core.numbers.layout import DTYPES
from paceline.core.numbers.residual import GivenPart
from paceline.core.numbers.split import Splitter
from paceline.errors import UserError
from paceline.live.agent.agent import Agent, Handle, ReductionError

_SUMMED = ("counters", "custodian", "packets")
"""Parts of an agent's status whose figures are added up."""


def path_name(by_switch: int, by_custodians: int) -> str:
    """The way of a job's contributions: "switch", "custodian", "switch x2", "switch, custodian"."""
    if by_switch == 0:
        return "custodian"
    several = "switch" if by_switch == 1 else f"switch x{by_switch}"
    return f"{several}, custodian" if by_custodians else several


class SpreadHandle:
    """One submitted tensor, in parts; the array must not be touched until the handle is done."""

    def __init__(self, parts: Sequence[Handle]) -> None:
        self.parts = tuple(parts)

    def wait(self, timeout_s: float | None = None) -> None:
        """As `Handle.wait`, for all parts."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        for part in self.parts:
            part.wait(None if end_s is None else max(0.0, end_s - time.monotonic()))

    def wait_here(self, timeout_s: float) -> None:
        """Wait, without an error, and run callbacks that are due on this thread."""
        end_s = time.monotonic() + timeout_s
        for part in self.parts:
            part.wait_here(max(0.0, end_s - time.monotonic()))

    def agreed(self) -> list[GivenPart]:
        """As `Handle.agreed`, of all parts, which are the tensor in order."""
        return [agreed for part in self.parts for agreed in part.agreed()]

    def done(self) -> bool:
        """Have all parts ended, well or not?"""
        return all(part.done() for part in self.parts)

    def error(self) -> ReductionError | None:
        """Why a part ended without its result, if one did."""
        return next((error for part in self.parts if (error := part.error()) is not None), None)

    def add_done_callback(self, callback: Callable[["SpreadHandle"], None]) -> None:
        """Call `callback(handle)` once: when all parts have their results, or as soon as one never will."""
        lock, left = threading.Lock(), [len(self.parts)]

        def one_ended(part: Handle) -> None:
            with lock:
                left[0] -= 1
                due = left[0] == 0
                if left[0] > 0 and part.error() is not None:
                    due, left[0] = True, -len(self.parts)  # the others come too late to be told of
            if due:
                callback(self)

        for part in self.parts:
            part.add_done_callback(one_ended)


class SpreadAgent:
    """The agents of one worker, one a switch."""

    def __init__(self, agents: Sequence[Agent], switches: Sequence[str], weights: Sequence[int]) -> None:
        """`switches`: what people call them."""
        if not len(agents) == len(switches) == len(weights):
            raise UserError("an agent, a name and a weight for each switch", place="switches")
        self.agents, self.switches, self.weights = tuple(agents), tuple(switches), tuple(weights)
        self.config = agents[0].config
        self._splitter = Splitter(weights)
        self._lock = threading.Lock()

    def submit(
        self, array: Any, op: str = "sum", dtype: str | None = None, priority: int = 128, wire: int = 32
    ) -> Handle | SpreadHandle:
        """Reduce a flat array in place, over all workers; as `Agent.submit`."""
        name = dtype or str(array.dtype)
        if name not in DTYPES or array.ndim != 1:
            raise UserError(
                f"{name} of {array.ndim} dimensions is not cut for several switches", place="submit"
            )
        with self._lock:
            parts = self._splitter.cut(array.size, DTYPES[name], self.config.elements, wire)
            handles = [
                self.agents[part.switch].submit(array[part.begin : part.end], op, name, priority, wire)
                for part in parts
            ]
        return handles[0] if len(handles) == 1 else SpreadHandle(handles)

    @property
    def path(self) -> str:
        """The way of the contributions now."""
        by_switch = sum(agent.uses_switch for agent in self.agents)
        return path_name(by_switch, len(self.agents) - by_switch)

    @property
    def switches_used(self) -> int:
        """How many switches carry contributions now."""
        return sum(agent.uses_switch for agent in self.agents)

    def status(self) -> dict[str, Any]:
        """As `Agent.status`, with figures of all agents together; what each says of itself is under `switches`."""
        each = [agent.status() for agent in self.agents]
        shown = {**each[0], "path": self.path, "failed": any(one["failed"] for one in each)}
        for name in _SUMMED:
            total: Counter[str] = Counter()
            for one in each:
                total.update(one[name])
            shown[name] = {key: total[key] for key in each[0][name]}
        shown["under_way"] = max(int(one["under_way"]) for one in each)
        shown["window"] = sum(float(one["window"]) for one in each)
        shown["events"] = sorted(
            (self._named(k, event) for k, one in enumerate(each) for event in one["events"]),
            key=lambda event: float(event["time"]),
        )
        shown["switches"] = [
            {"switch": name, "weight": weight, **one}
            for name, weight, one in zip(self.switches, self.weights, each, strict=True)
        ]
        return shown

    def on_event(self, callback: Callable[[dict[str, Any]], None]) -> None:
        """As `Agent.on_event`: each event names its switch, and a change of path has the path of all together."""

        def listen(k: int) -> None:
            def heard(event: dict[str, Any]) -> None:
                named = self._named(k, event)
                callback({**named, "path": self.path} if "path" in event else named)

            self.agents[k].on_event(heard)

        for k in range(len(self.agents)):
            listen(k)

    def _named(self, k: int, event: dict[str, Any]) -> dict[str, Any]:
        name = self.switches[k]
        return {**event, "switch": name, "reason": f"{event['reason']} ({name})"}

    def close(self, linger_s: float | None = None) -> None:
        """Close all of them."""
        for agent in self.agents:
            agent.close(linger_s)
