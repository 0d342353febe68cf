"""All-reduces between workers: through agents, or over Gloo when those fail, and back; none lost or doubled.

The agents go from the switch to custodians and back by themselves. What this adds is the step beyond: when
agents cannot finish a reduction, all workers leave the agents together, at the same place.

**Leaving.** A worker that sees a reduction fail writes so into the Store, and every worker looks there. Each stops
its agent, then publishes the first reduction that it has no result of. From the smallest of these on, all do
all reductions again over Gloo, in order, from the inputs they kept (`pending`, `gloo_replay`); a worker that had the
result already throws the new one away, which is bit for bit the same.

**Coming back.** The first worker asks for a place at the switch, less and less often (`switch_search`). When there is
one, all prepare new agents while Gloo goes on. Each reduction over Gloo carries every worker's "ready"; the one at
which all were is the last over Gloo.

**Joining late.** A group that began without its switch looks for it too. When it is there, the group leaves its
agents for new ones in the same two moves: whatever the switch's policy and width, all begin with it at one place.

**Ending.** A worker that others wait for, and whose process has ended or whose heartbeat has stopped, ends the group
with an error that names its rank.
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy.typing as npt
from torch.distributed import DistBackendError, DistNetworkError, DistStoreError

from paceline.live.agent.agent import Handle, TensorMismatchError
from paceline.live.spread import SpreadHandle, path_name
from paceline.torch.failover.agent_path import PATH_ERRORS, AgentPath, start_together
from paceline.torch.failover.gloo_replay import GlooCarrier, GlooReplay
from paceline.torch.failover.heartbeat import AgentWatch, Lifelines, PeerLostError, Peers, waits_long
from paceline.torch.failover.offer import PathOffer
from paceline.torch.failover.pending import PendingReduction, ReductionQueue
from paceline.torch.failover.switch_search import MakeOffer, NextPath, SwitchSearch
from paceline.torch.feedback import Feedback
from paceline.torch.journal import Journal
from paceline.torch.rendezvous import RankPlace, StorePrefix

TICK_S = 0.25
WAIT_S = 0.2
"""A thread that waits for an agent looks up so often, for an end that the agent knows nothing of."""


@dataclass(frozen=True)
class LeaveReason:
    """Why all workers leave their agents; one of them writes it into the Store for the others."""

    text: str
    joins_switch: bool = False
    """The agents have not failed: the switch that was missing answers now."""


class WorkerExchange:
    """One worker's side."""

    def __init__(
        self,
        keys: StorePrefix,
        place: RankPlace,
        carrier: GlooCarrier,
        make_path: Callable[[int, int], AgentPath],
        make_offer: MakeOffer,
        drop_offer: Callable[[PathOffer], None],
        journal: Journal,
        timeout_s: float,
        lifelines: Lifelines,
    ) -> None:
        """`make_path(generation, attempt)` gives a path that is not up yet; `make_offer` asks switches for one."""
        self._keys, self._worker, self.workers = keys, place.worker, place.workers
        self.rank = place.first_ranks[place.worker]
        self._carrier, self._journal = carrier, journal
        self._queue = ReductionQueue()
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._generation = 0
        self._path: AgentPath | None = None  # None: reductions go over Gloo
        self._leaving_agents = True  # what agents still bring is not taken any more
        self._leave_reason = LeaveReason("")
        self._no_return = ""  # why the last attempt at a new path failed
        self._fatal_error: Exception | None = None
        self._closing = False
        self._search = SwitchSearch(make_offer, drop_offer)
        self._next_path = NextPath(make_path, self._search if self._worker == 0 else None)
        self._replay = GlooReplay(carrier, self._queue, self._lock)
        self._watch = AgentWatch(self._worker, time.monotonic())
        self._begin(make_path(0, 0), make_offer, timeout_s)
        self._peers = Peers(
            keys.part("peers/"),
            self._worker,
            place.first_ranks,
            lifelines,
            lambda: self._queue.next_seq,
            self.end,
        )
        self._thread = threading.Thread(target=self._run, name="paceline-exchange", daemon=True)
        self._thread.start()

    # --- the beginning -------------------------------------------------------------------------------------

    def _begin(self, path: AgentPath, make_offer: MakeOffer, timeout_s: float) -> None:
        """The first generation, all workers together; if one cannot, all begin over Gloo."""
        trouble = start_together(self._keys, self._worker, self.workers, path, make_offer, timeout_s)
        if trouble:
            path.close(0.0)
            self._journal.change("gloo", f"agents cannot be used: {trouble}", bad=True)
            return
        self._use(path, "")

    def _use(self, path: AgentPath, reason: str) -> None:
        """Reductions that have not begun go through this path from now on."""
        self._path, self._leaving_agents, self._leave_reason = path, False, LeaveReason("")
        self._watch.moved(time.monotonic())
        path.agent.on_event(lambda event: self._agent_event(path, event))
        offer = path.offer
        assert offer is not None
        self._carrier.elements = offer.elements  # the same cut, so the same bits
        if offer.admitted:
            many = "the switch" if offer.admitted == 1 else f"{offer.admitted} switches"
            text = reason or f"reductions go through {many}"
            text += f"; without: {offer.reason}" if offer.missing else ""
            job = offer.branches[0].job
            self._journal.change(path_name(offer.admitted, 0), text, bad=bool(offer.missing), job=job)
        else:
            text = f"reductions go over custodians: {reason or offer.reason}"
            self._journal.change("custodian", text, bad=True)

    def _agent_event(self, path: AgentPath, event: dict[str, Any]) -> None:
        if path is not self._path or self._closing:
            return
        # The agent has logged it; a change of path is called by the path.
        name = str(event.get("path", event["event"]))
        self._journal.change(name, str(event["reason"]), quiet=True, text=event.get("text", ""))

    # --- submitting ----------------------------------------------------------------------------------------

    def submit(
        self,
        array: npt.NDArray[Any],
        kind: str,
        op: str,
        priority: int,
        timeout_s: float,
        tell: Callable[[Exception | None], None],
        wire: int = 32,
        feedback: Feedback | None = None,
    ) -> PendingReduction | None:
        """All-reduce in place; `tell(None)` or `tell(error)` on some thread when it has ended."""
        with self._lock:
            if self._fatal_error is None and not self._closing:
                entry = PendingReduction(array, kind, op, priority, timeout_s, tell, wire, feedback)
                self._queue.add(entry)
                if not self._leaving_agents:
                    self._pump()
                else:
                    self._wake.set()
                return entry
            error = self._fatal_error or DistBackendError("the group is closed")
        tell(error)
        return None

    def wait_here(self, entry: PendingReduction, timeout_s: float) -> None:
        """Wait on this thread while agents work at it, and tell of its end from here; may return early."""
        end_s = time.monotonic() + timeout_s
        while (left_s := end_s - time.monotonic()) > 0:
            handle = entry.handle
            # What ends all reductions leaves the agents, too.
            if handle is None or entry.done or self._leaving_agents:
                return
            handle.wait_here(min(WAIT_S, left_s))

    def _pump(self) -> None:
        """Send what may be sent; under the lock."""
        assert self._path is not None
        path = self._path
        while not self._leaving_agents and (entry := self._queue.may_begin()) is not None:
            self._queue.begin(entry, time.monotonic())
            try:
                handle = path.agent.submit(entry.array, entry.op, entry.kind, entry.priority, entry.wire)
            except (OSError, RuntimeError) as error:
                self._leave(LeaveReason(f"the agent takes no reduction: {error}"))
                return
            entry.handle = handle
            handle.add_done_callback(partial(self._ended, path, entry))

    def _ended(self, path: AgentPath, entry: PendingReduction, handle: Handle | SpreadHandle) -> None:
        """A handle of an agent has ended; on the agent's notifying thread."""
        error = handle.error()
        with self._lock:
            if path is not self._path or self._leaving_agents or entry.done:
                return
            if error is not None:
                if isinstance(error, TensorMismatchError):  # Gloo could not help
                    self.end(DistBackendError(str(error)))
                else:
                    self._leave(LeaveReason(str(error)))
                return
            entry.handle = None
            self._watch.moved(time.monotonic())
            self._queue.finish(entry, handle.agreed() if entry.feedback is not None else ())
            self._pump()
        self._journal.count("reductions")
        entry.tell(None)

    def _leave(self, reason: LeaveReason) -> None:
        """Stop taking the agents' results; the thread does the rest. Under the lock."""
        if not self._leaving_agents:
            self._leaving_agents, self._leave_reason = True, reason
        self._wake.set()

    # --- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing and self._fatal_error is None:
            self._wake.wait(TICK_S)
            self._wake.clear()
            try:
                self._tick(time.monotonic())
            except PeerLostError as error:
                self.end(error)
            except (DistNetworkError, DistStoreError) as error:
                # Its process may have ended because all was done: what is on its way comes without the Store.
                if not self._closing and waits_long(self._open(), time.monotonic()):
                    gone = f"the job's Store is gone, with the process that kept it: {error}"
                    self.end(self._peers.ended() or DistBackendError(gone))
            except Exception as error:
                if not self._closing:
                    self.end(DistBackendError(f"the exchange between workers failed: {error}"))

    def _tick(self, now_s: float) -> None:
        self._check_open()
        if self._path is not None and not self._leaving_agents:
            self._look_at_agents(now_s)
        if self._path is not None and self._leaving_agents:
            self._leave_agents()
        while self._path is None and not self._closing:
            if not self._replay.step(self._next_path.ready(), self._check_alive, self._after_gloo):
                break
        if self._path is None:
            try:
                self._next_path.prepare(self._generation + 1)
            except PATH_ERRORS as error:
                if str(error) != self._no_return:
                    self._no_return = str(error)
                    self._journal.change("no_return", self._no_return, quiet=True)

    def _look_at_agents(self, now_s: float) -> None:
        """While agents work: did another worker leave them, are they all right, is the switch there now?"""
        keys, path = self._here(), self._path
        assert path is not None
        with self._lock:
            entries = self._queue.under_way()
        reason = None
        if keys.ready("leaving"):
            reason = LeaveReason(**json.loads(keys.read("leaving")))
        elif stalled := self._watch.look(entries, self._peers, path.agent, now_s):
            reason = LeaveReason(stalled)
        elif self._next_path.may_join(path):
            reason = LeaveReason("the switch answers now", joins_switch=True)
        if reason is not None:
            with self._lock:
                self._leave(reason)

    def _here(self) -> StorePrefix:
        """The keys of this generation."""
        return self._keys.part(f"left/{self._generation}/")

    # --- over Gloo, and back -------------------------------------------------------------------------------

    def _leave_agents(self) -> None:
        """Say so, and agree on the first reduction to do over Gloo."""
        keys, path, first = self._here(), self._path, self._queue.lowest_open
        assert path is not None
        if not keys.ready("leaving"):
            keys.set("leaving", json.dumps(asdict(self._leave_reason)))
        keys.set(f"at/{self._worker}", str(first))
        path.close(0.0)
        self._peers.forget_looks()
        again = first - self._replay.agree(keys, self.workers, self._check_alive)
        self._path = None
        reason = self._leave_reason
        self._journal.change(
            "gloo", f"reductions go over Gloo: {reason.text}", bad=not reason.joins_switch, done_again=again
        )

    def _check_open(self) -> None:
        if self._fatal_error is not None or self._closing:
            raise DistBackendError("the group is closed")

    def _check_alive(self) -> None:
        self._check_open()
        self._peers.look(time.monotonic())

    def _after_gloo(self, all_ready: bool) -> None:
        """A reduction over Gloo has its result; under the lock."""
        self._journal.count("reductions_gloo")
        self._peers.forget_looks()
        if all_ready:
            self._return()

    def _return(self) -> None:
        """All workers are ready: what comes after this reduction goes through the new agents. Under the lock."""
        path = self._next_path.take()
        self._generation += 1
        self._queue.next_to_begin = self._replay.seq
        self._use(path, "the switch is there" if path.offer and path.offer.admitted else "agents again")
        self._pump()

    # --- the end -------------------------------------------------------------------------------------------

    def end(self, error: Exception) -> None:
        """Nothing can be reduced any more: all that is open ends with the error."""
        with self._lock:
            if self._fatal_error is not None:
                return
            self._fatal_error, self._leaving_agents = error, True
            entries = self._queue.open_entries()
        self._journal.change("failed", str(error), bad=True)
        self._carrier.abort()
        for entry in entries:
            entry.tell(error)

    def _open(self) -> list[PendingReduction]:
        with self._lock:
            return self._queue.open_entries()

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything submitted has ended."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if self._fatal_error is not None or not self._open():
                return True
            time.sleep(0.005)
        return False

    def status(self) -> dict[str, Any]:
        """The path, and what the agent says."""
        path = self._path
        shown: dict[str, Any] = {"path": "gloo", "workers": self.workers, "generation": self._generation}
        if self._fatal_error is not None:
            shown["path"] = "none"
        elif path is not None:
            agent = path.agent.status()
            shown |= {"path": agent.get("path", "switch"), "agent": agent}
        return shown

    def close(self, at_once: bool = False) -> None:
        """Stop the thread and the agents; what is still open ends with an error. `at_once`: help nobody to finish."""
        self._closing = True
        self._wake.set()
        if self._open():
            self._carrier.abort()  # nobody else takes part in what is still open
        if threading.current_thread() is not self._thread:
            self._thread.join(10.0)
        self._search.close()
        self._peers.close()
        linger_s = 0.0 if at_once or self._fatal_error is not None else None
        if self._path is not None:
            self._path.close(linger_s)
        self._next_path.close(linger_s)
        self._carrier.close()
        for entry in self._open() if self._fatal_error is None else []:
            entry.tell(DistBackendError(f"rank {self.rank} has closed the group"))
