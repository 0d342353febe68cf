"""The agent: reduces tensors over all workers of a job, inside the training process, without its GIL.

    sock = open_socket("10.0.0.3")                      # bind first, tell the others the address
    agent = Agent(AgentConfig(worker=0, workers=2, peers=[...], job=1, key=key, switch=(ip, ports)), sock)
    handle = agent.submit(array, op="avg", priority=10) # in place; returns at once
    handle.wait(60)
    agent.close()

The work is done by `loop.run`, one compiled call on a thread of its own. This module checks what it is given,
puts tasks where the loop finds them, and tells what came of them.
"""

import atexit
import logging
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paceline.core.numbers.layout import DTYPES, INT32, ITEM_BYTES, OPS, WIRES, lay_out
from paceline.core.numbers.residual import GivenPart
from paceline.errors import UserError
from paceline.live.agent.config import Address, AgentConfig
from paceline.live.agent.loop import run
from paceline.live.agent.notify import Notifier, describe_failure, describe_status
from paceline.live.agent.setup import build, warm_up
from paceline.live.agent.state import (
    BY_SWITCH,
    CLOSED,
    COMMAND_CUSTODIANS,
    COMMAND_FORGIVE,
    COMMAND_PROBE,
    COMMAND_SWITCH,
    DISAGREED,
    DONE,
    EXPONENT_UNKNOWN,
    FAILED,
    NO_FAILURE,
    PENDING,
    SHARDS_MAX,
    STATE_OFFSET,
    TASK,
    Loop,
)
from paceline.live.agent.tensors import sleep_while
from paceline.live.net.addresses import pack_address, resolve
from paceline.live.net.sockets import open_socket as open_data_socket
from paceline.live.net.syscalls import address_of, close_waiter, wake

log = logging.getLogger("paceline.agent")

_SEND_BUFFER_BYTES = 256 * 1024
"""Small, so that a slow link makes the sender wait instead of losing packets in a queue."""
_SLICE_S = 0.2
"""How often a waiting thread looks for signals (Ctrl-C)."""


class ReductionError(RuntimeError):
    """A reduction ended without its result; the text names what is missing."""


class TensorMismatchError(ReductionError):
    """The workers have submitted different tensors as one reduction."""


class ReductionTimeoutError(ReductionError, TimeoutError):
    """`wait` was given less time than the reduction needs; it goes on."""


class Handle:
    """One submitted tensor. The array must not be touched until the handle is done."""

    def __init__(self, agent: "Agent", ticket: int, array: Any, exponents: Any) -> None:
        self._agent = agent
        self.ticket = ticket
        self.array = array
        # Memory that the loop works on lives at least as long as the handle.
        self._exponents = exponents

    def agreed(self) -> list[GivenPart]:
        """Once it is done: what the workers have agreed on for it."""
        config = self._agent.config
        return [GivenPart(self.array.size, self._exponents, config.elements, config.workers)]

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when the array holds the result; `ReductionError` if it never will.

        `ReductionTimeoutError` after `timeout_s`; None waits as long as the agent's own time limit.
        """
        state = self._agent.wait_for(self.ticket, timeout_s)
        if state == PENDING:
            raise ReductionTimeoutError(f"the reduction is not done after {timeout_s} s; it goes on")
        if state == FAILED:
            raise self._agent.failure()

    def wait_here(self, timeout_s: float) -> None:
        """Wait, without an error, and run callbacks that are due on this thread: quicker than by the notifying one."""
        self._agent.wait_here(self.ticket, timeout_s)

    def done(self) -> bool:
        """Has it ended, well or not?"""
        return self._agent.state_of(self.ticket) != PENDING

    def error(self) -> ReductionError | None:
        """Why it ended without its result, if it did."""
        if self._agent.state_of(self.ticket) != FAILED:
            return None
        return self._agent.failure()

    def add_done_callback(self, callback: Callable[["Handle"], None]) -> None:
        """Call `callback(handle)` when it has ended, at once if it has: on the notifying thread, or in `wait_here`."""
        self._agent.call_when_done(self, callback)


def open_socket(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """A UDP socket as an agent needs it; `getsockname()` is the address that the others are to be told."""
    made = open_data_socket(host, port)
    made.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    for warning in made.warnings:
        log.warning("%s", warning)
    return made.socket


class _Fields:
    """What every reduction looks at, as plain arrays: attributes of records take microseconds each."""

    def __init__(self, loop: Loop) -> None:
        control, layouts = loop.control.view(np.ndarray), loop.layouts.view(np.ndarray)
        self.tasks = loop.tasks.view(np.ndarray)
        self.begin = address_of(self.tasks)
        self.head, self.tail = control["head"], control["tail"]
        self.ticket, self.state, self.waited = (self.tasks[name] for name in ("ticket", "state", "waited"))
        self._blocks, self._patches = layouts["blocks"], layouts["patches"]

    def agreements(self, slot: int) -> int:
        """Exponents and steps of the tensor whose layout is there."""
        return int(self._blocks[slot] + self._patches[slot])


def _begin_of(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


class Agent:
    """Sender and custodian of one worker on a thread of their own."""

    def __init__(self, config: AgentConfig, sock: socket.socket | None = None) -> None:
        """`sock` from `open_socket` passes to the agent; without it the own entry of `peers` is bound."""
        warm_up()
        self.config = config
        self._socket = sock if sock is not None else open_socket(*config.peers[config.worker])
        self._name = config.name or f"job {config.job} worker {config.worker}"
        self._loop = build(config, self._socket.fileno())
        self._control = self._loop.control[0]
        self._fields = _Fields(self._loop)
        self._notifier = Notifier(self._loop, self._name, self._has_ended, self.error_text)
        self._control.notify_fd = self._notifier.fd
        self._lock = threading.Lock()
        self._closed = False
        self._handles: dict[int, Handle] = {}
        self._thread = threading.Thread(target=run, args=(self._loop,), name="paceline-agent", daemon=True)
        self._thread.start()
        # An interpreter that ends must not take the loop's memory from under it.
        closer = weakref.WeakMethod(self.close)
        self._at_exit = lambda: (method := closer()) and method(0.0)
        atexit.register(self._at_exit)

    @property
    def address(self) -> Address:
        """Where this agent listens."""
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    # --- reductions ------------------------------------------------------------------------------------------

    def submit(
        self, array: Any, op: str = "sum", dtype: str | None = None, priority: int = 128, wire: int = 32
    ) -> Handle:
        """Reduce a contiguous array in place, over all workers; all submit the same tensors in the same order.

        `dtype` "bfloat16" or "float16" says what a uint16 view holds; otherwise it is the array's own:
        float32, float16 or int32. `op` is "sum" or "avg"; `priority` 0..255, higher goes first in the switch.
        `wire`: bits of a number on the wire, 16 or 32; all workers the same.
        """
        name = dtype or str(array.dtype)
        if name not in DTYPES or op not in OPS:
            raise UserError(f"{op} of {name} is not reduced here", place="submit")
        kind = DTYPES[name]
        if not array.flags.c_contiguous or not array.flags.writeable or array.itemsize != ITEM_BYTES[kind]:
            raise UserError(f"needs a writable, contiguous array of {name}", place="submit")
        if not 0 <= priority <= 255:
            raise UserError("must be from 0 to 255", place="submit priority")
        if wire not in WIRES:
            raise UserError("must be 16 or 32", place="submit wire")
        with self._lock:
            ticket = self._room_for_one()
            slot = ticket % len(self._loop.tasks)
            layout = self._loop.layouts[slot]
            lay_out(layout, array.size, kind, OPS[op], self.config.elements, self.config.workers, wire)
            agreed = 0 if kind == INT32 else self._fields.agreements(slot)
            exponents = np.full(agreed, EXPONENT_UNKNOWN, dtype=np.int32)
            handle = Handle(self, ticket, array, exponents)
            timeout_ns = int(self.config.timeout_s * 1e9)
            addresses = (_begin_of(array), _begin_of(exponents))
            # In the order of TASK; the state last but for what the loop only reads.
            self._fields.tasks[slot] = (
                ticket,
                *addresses,
                timeout_ns,
                0,
                0,
                0,
                0,
                0,
                PENDING,
                kind,
                OPS[op],
                priority,
                0,
            )
            self._handles[ticket] = handle
            self._fields.head[0] = ticket + 1
        wake(self._loop.waiter)
        return handle

    def _room_for_one(self) -> int:
        """The next ticket, when there is room for it; forgets what has ended."""
        if self._closed:
            raise ReductionError(f"{self._name}: the agent is closed")
        ticket, tail = int(self._fields.head[0]), int(self._fields.tail[0])
        while ticket - tail >= len(self._loop.tasks) - 1:
            self.wait_for(tail, self.config.timeout_s)
            tail = int(self._fields.tail[0])
        if len(self._handles) > 64:
            self._handles = {number: kept for number, kept in self._handles.items() if number >= tail}
        return ticket

    def state_of(self, ticket: int) -> int:
        """PENDING, DONE or FAILED."""
        fields = self._fields
        slot = ticket % len(fields.ticket)
        if fields.ticket[slot] != ticket:
            # Its place has been taken by a later one: only what has ended makes room.
            return DONE
        return int(fields.state[slot])

    def _has_ended(self, ticket: int) -> bool:
        return self.state_of(ticket) != PENDING

    def wait_for(self, ticket: int, timeout_s: float | None) -> int:
        """The state of a reduction, when it has ended or the time is over."""
        address = self._fields.begin + ticket % len(self._fields.ticket) * TASK.itemsize + STATE_OFFSET
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            state = self.state_of(ticket)
            if state != PENDING:
                return state
            left_s = _SLICE_S if end is None else min(_SLICE_S, end - time.monotonic())
            if left_s <= 0:
                return PENDING
            if not self._thread.is_alive():
                return FAILED
            sleep_while(address, PENDING, left_s)

    def wait_here(self, ticket: int, timeout_s: float) -> None:
        """Wait for a reduction, then run the callbacks that are due on this thread; the notifying one sleeps on.

        The loop ends a reduction first and looks for a mark then; here it is the other way round. So none is missed.
        """
        fields = self._fields
        slot = ticket % len(fields.ticket)
        if fields.ticket[slot] != ticket:
            return
        fields.waited[slot] = 1
        try:
            self.wait_for(ticket, timeout_s)
        finally:
            if fields.ticket[slot] == ticket:
                fields.waited[slot] = 0
            self._notifier.deliver()

    def call_when_done(self, handle: Handle, callback: Callable[[Handle], None]) -> None:
        """Run the callback when the reduction has ended."""
        self._notifier.when_done(handle.ticket, lambda: callback(handle))

    def error_text(self) -> str:
        """Why reductions fail here."""
        if self._closed and int(self._control.failed) == NO_FAILURE:
            return f"{self._name}: the agent was closed before the reduction was done"
        return f"{self._name}: {describe_failure(self.config, self._loop)}"

    def failure(self) -> ReductionError:
        """The same as an error."""
        kind = TensorMismatchError if int(self._control.failed) == DISAGREED else ReductionError
        return kind(self.error_text())

    @property
    def uses_switch(self) -> bool:
        """Do contributions go by the switch now?"""
        return int(self._control.path) == BY_SWITCH

    @property
    def epoch(self) -> int:
        """The epoch that this worker sends in; every change of roles begins one."""
        return int(self._loop.senders.state[0].epoch)

    # --- the switch ------------------------------------------------------------------------------------------

    def use_switch(self, host: str, ports: Sequence[int], job: int | None = None, fresh: bool = True) -> None:
        """There is a switch that has admitted the job, as number `job`: use it as soon as all have proved it.

        `fresh`: it is another one, or it was started anew; that the one before had to be left is forgotten.
        """
        if not 0 < len(ports) <= SHARDS_MAX:
            raise UserError(f"from 1 to {SHARDS_MAX} ports", place="use_switch")
        address = resolve(host)
        self._loop.switch[: len(ports)] = [pack_address(address, port) for port in ports]
        self._control.shards = len(ports)
        if job is not None:
            self._control.next_job = job
        self._command(COMMAND_SWITCH | (COMMAND_FORGIVE if fresh else 0))

    def without_switch(self, reason: str = "asked to") -> None:
        """Use custodians only, until `use_switch`."""
        log.info("%s: without the switch: %s", self._name, reason)
        self._command(COMMAND_CUSTODIANS)

    def suspect_switch(self, reason: str = "") -> None:
        """The control plane does not answer: ask the data plane at once whether it is alive."""
        log.info("%s: is the switch there? %s", self._name, reason)
        self._command(COMMAND_PROBE)

    def _command(self, command: int) -> None:
        if not self._closed:
            self._control.command = int(self._control.command) | command
            wake(self._loop.waiter)

    # --- what the user sees ----------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """`path` ("switch" or "custodian"), `failed`, `counters`, `events` (the latest changes), figures."""
        return describe_status(self.config, self._loop, list(self._notifier.events))

    def on_event(self, callback: Callable[[dict[str, Any]], None]) -> None:
        """Call `callback({"time", "event", "reason", ...})` on each change of path or roles, each failure."""
        self._notifier.listen(callback)

    def close(self, linger_s: float | None = None) -> None:
        """End the thread; what is under way ends with an error. Waits a little for workers that lack a result."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self._at_exit)
        linger_s = self.config.linger_s if linger_s is None else linger_s
        if linger_s > 0 and int(self._control.failed) == NO_FAILURE:
            self._control.closing = 1
            wake(self._loop.waiter)
            self._thread.join(linger_s)
        self._control.stop = 1
        wake(self._loop.waiter)
        self._thread.join(10.0)
        if int(self._control.failed) == NO_FAILURE:
            self._control.failed = CLOSED
        for ticket in range(int(self._control.tail), int(self._control.head)):
            task = self._loop.tasks[ticket % len(self._loop.tasks)]
            if int(task.state) == PENDING:
                task.state = FAILED
        self._notifier.close()
        if not self._thread.is_alive():
            close_waiter(self._loop.waiter)
            self._socket.close()

    def __enter__(self) -> "Agent":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
