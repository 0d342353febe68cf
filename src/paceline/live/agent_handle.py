"""A reduction under way: wait for it, ask whether it is done, or be called when it is."""

from collections.abc import Callable
from typing import Any, Protocol


class ReductionError(RuntimeError):
    """A reduction ended without its result; the text names what is missing."""


class ReductionTimeoutError(ReductionError, TimeoutError):
    """`wait` was given less time than the reduction needs; it goes on."""


class Waiter(Protocol):
    """The part of an agent that handles need."""

    def wait_for(self, ticket: int, timeout_s: float | None) -> bool: ...

    def state_of(self, ticket: int) -> int: ...

    def error_of(self, ticket: int) -> str: ...

    def call_when_done(self, handle: "Handle", callback: Callable[["Handle"], None]) -> None: ...


class Handle:
    """One submitted tensor. The array must not be touched until the handle is done."""

    def __init__(self, agent: Waiter, ticket: int, array: Any) -> None:
        self._agent = agent
        self.ticket = ticket
        self.array = array

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when the array holds the result; `ReductionError` if it never will.

        `ReductionTimeoutError` after `timeout_s`; None waits as long as the agent's own time limit.
        """
        raise NotImplementedError

    def done(self) -> bool:
        """Has it ended, well or not?"""
        raise NotImplementedError

    def error(self) -> ReductionError | None:
        """Why it ended without its result, if it did."""
        raise NotImplementedError

    def add_done_callback(self, callback: Callable[["Handle"], None]) -> None:
        """Call `callback(handle)` on the agent's notifying thread when it has ended; at once if it has."""
        raise NotImplementedError
