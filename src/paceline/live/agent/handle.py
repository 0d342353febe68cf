"""A reduction under way: wait for it, ask whether it is done, or be called when it is."""

from collections.abc import Callable
from typing import Any, Protocol

from paceline.live.agent.state import FAILED, PENDING


class ReductionError(RuntimeError):
    """A reduction ended without its result; the text names what is missing."""


class TensorMismatchError(ReductionError):
    """The workers have submitted different tensors as one reduction."""


class ReductionTimeoutError(ReductionError, TimeoutError):
    """`wait` was given less time than the reduction needs; it goes on."""


class Waiter(Protocol):
    """The part of an agent that handles need."""

    def wait_for(self, ticket: int, timeout_s: float | None) -> int:
        """The state of a reduction, when it has ended or the time is over."""

    def state_of(self, ticket: int) -> int: ...

    def failure(self) -> ReductionError:
        """Why reductions fail there."""

    def call_when_done(self, handle: "Handle", callback: Callable[["Handle"], None]) -> None: ...


class Handle:
    """One submitted tensor. The array must not be touched until the handle is done."""

    def __init__(self, agent: Waiter, ticket: int, array: Any, exponents: Any) -> None:
        self._agent = agent
        self.ticket = ticket
        self.array = array
        # Memory that the loop works on lives at least as long as the handle.
        self._exponents = exponents

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when the array holds the result; `ReductionError` if it never will.

        `ReductionTimeoutError` after `timeout_s`; None waits as long as the agent's own time limit.
        """
        state = self._agent.wait_for(self.ticket, timeout_s)
        if state == PENDING:
            raise ReductionTimeoutError(f"the reduction is not done after {timeout_s} s; it goes on")
        if state == FAILED:
            raise self._agent.failure()

    def done(self) -> bool:
        """Has it ended, well or not?"""
        return self._agent.state_of(self.ticket) != PENDING

    def error(self) -> ReductionError | None:
        """Why it ended without its result, if it did."""
        if self._agent.state_of(self.ticket) != FAILED:
            return None
        return self._agent.failure()

    def add_done_callback(self, callback: Callable[["Handle"], None]) -> None:
        """Call `callback(handle)` on the agent's notifying thread when it has ended; at once if it has."""
        self._agent.call_when_done(self, callback)
