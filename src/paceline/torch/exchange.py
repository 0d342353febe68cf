"""All-reduces between workers: through agents, or over Gloo when those fail, and back; no reduction lost or
doubled.

The agents go from the switch to custodians and back by themselves. What this adds is the step beyond: when
agents cannot finish a reduction, all workers leave the agents together, at the same place.

**Leaving.** Whoever sees a reduction fail writes so into the Store, and every worker looks there. Each stops
its agent, then publishes the first reduction that it has no result of. From the smallest of these on, all do
all reductions again over Gloo, in order, from the inputs they kept (`ledger`); who had the result already
throws the new one away, which is bit for bit the same.

**Coming back.** The first worker asks for a place at the switch, less and less often. When there is one, all
prepare new agents while Gloo goes on. Each reduction over Gloo carries every worker's "ready"; the one at which
all were is the last over Gloo.

**Ending.** A worker without a heartbeat while others wait for it ends the group with an error that names its rank.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.distributed import DistBackendError

from paceline.errors import UserError
from paceline.live.agent_handle import Handle
from paceline.live.client import ControlError
from paceline.torch.agent_path import AgentPath, Ticket
from paceline.torch.gloo_carrier import GlooCarrier
from paceline.torch.journal import Journal
from paceline.torch.ledger import Entry, Ledger
from paceline.torch.peers import DEAD_S, PeerLostError, Peers
from paceline.torch.rendezvous import Keys

TICK_S = 0.25
SLOW_S = 1.5
"""A reduction that takes longer makes a worker look whether the others live."""
STALL_S = 10.0
"""Agents that bring nothing for this long, though every worker has submitted the reduction, have failed."""
RETRY_S = (2.0, 300.0)
"""How long after leaving the agents to try them again: at first, and at most."""


class Exchange:
    """One worker's side."""

    def __init__(
        self,
        keys: Keys,
        worker: int,
        leaders: tuple[int, ...],
        carrier: GlooCarrier,
        make_path: Callable[[int], AgentPath],
        take_ticket: Callable[[], Ticket],
        journal: Journal,
        timeout_s: float,
    ) -> None:
        self._keys, self._worker, self._workers = keys, worker, len(leaders)
        self._carrier, self._make_path, self._take_ticket = carrier, make_path, take_ticket
        self._journal, self._timeout_s = journal, timeout_s
        self._ledger = Ledger()
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._generation = 0
        self._path: AgentPath | None = None
        self._next_path: AgentPath | None = None
        self._frozen = True
        self._gloo_seq = 0
        self._trouble = ""
        self._over: Exception | None = None
        self._closing = False
        self._retry_s = RETRY_S[0]
        self._retry_at_s = 0.0
        self._moved_s = time.monotonic()
        self._results_seen = -1
        self._begin()
        self._peers = Peers(
            keys.part("peers/"),
            worker,
            leaders,
            lambda: self._ledger.next_seq,
            lambda error: self._end(error),
        )
        self._thread = threading.Thread(target=self._run, name="paceline-exchange", daemon=True)
        self._thread.start()

    # --- the beginning -------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """The first generation, all workers together; if one cannot, all begin over Gloo."""
        path = self._make_path(0)
        if self._worker == 0:
            try:
                ticket = self._take_ticket()
            except UserError as error:
                self._keys.set("refused", str(error))
                raise
            self._keys.set("refused", "")
            path.publish(ticket)
        refused = self._keys.get("refused")
        if refused:
            raise UserError(refused)
        trouble = ""
        try:
            end = time.monotonic() + self._timeout_s
            while not path.step():
                if time.monotonic() > end:
                    raise TimeoutError("not all workers told their address")
                time.sleep(0.005)
        except (OSError, RuntimeError, UserError, ControlError) as error:
            trouble = str(error) or repr(error)
        self._keys.set(f"begun/{self._worker}", trouble)
        answers = [self._keys.get(f"begun/{other}") for other in range(self._workers)]
        bad = next((answer for answer in answers if answer), "")
        if bad:
            path.close(0.0)
            self._retry_at_s = time.monotonic() + self._retry_s
            self._journal.change("gloo", f"agents cannot be used: {bad}", bad=True)
            return
        self._use(path, path.ticket.reason if path.ticket else "")

    def _use(self, path: AgentPath, reason: str) -> None:
        """Reductions that have not begun go through this path from now on."""
        self._path, self._frozen, self._trouble = path, False, ""
        self._moved_s = time.monotonic()
        if path.ticket is not None:
            self._carrier.elements = path.ticket.elements  # the same cut, so the same bits
        path.agent.on_event(lambda event: self._agent_event(path, event))
        if path.ticket is not None and path.ticket.admission:
            self._journal.change("switch", reason or "reductions go through the switch", job=path.ticket.job)
        else:
            self._journal.change("custodian", f"reductions go over custodians: {reason}", bad=bool(reason))

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
    ) -> None:
        """All-reduce in place; `tell(None)` or `tell(error)` on some thread when it has ended."""
        with self._lock:
            if self._over is None and not self._closing:
                self._ledger.add(Entry(array, kind, op, priority, timeout_s, tell))
                if not self._frozen:
                    self._pump()
                else:
                    self._wake.set()
                return
            error = self._over or DistBackendError("the group is closed")
        tell(error)

    def _pump(self) -> None:
        """Send what may be sent; under the lock."""
        assert self._path is not None
        path = self._path
        while not self._frozen and (entry := self._ledger.may_begin()) is not None:
            self._ledger.begin(entry, time.monotonic())
            try:
                handle = path.agent.submit(entry.array, entry.op, entry.kind, entry.priority)
            except (OSError, RuntimeError) as error:
                self._fail(f"the agent takes no reduction: {error}")
                return
            handle.add_done_callback(partial(self._ended, path, entry))

    def _ended(self, path: AgentPath, entry: Entry, handle: Handle) -> None:
        """A handle of an agent has ended; on the agent's notifying thread."""
        error = handle.error()
        with self._lock:
            if path is not self._path or self._frozen or entry.done:
                return
            if error is not None:
                if "different tensors" in str(error):  # Gloo could not help
                    self._end(DistBackendError(str(error)))
                self._fail(str(error))
                return
            self._moved_s = time.monotonic()
            self._ledger.finish(entry)
            self._pump()
        self._journal.count("reductions")
        entry.tell(None)

    def _fail(self, reason: str) -> None:
        """The agents have failed: stop taking their results; the thread does the rest. Under the lock."""
        if not self._frozen:
            self._frozen, self._trouble = True, reason
        self._wake.set()

    # --- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(TICK_S)
            self._wake.clear()
            try:
                self._tick(time.monotonic())
            except PeerLostError as error:
                self._end(error)
            except Exception as error:
                if not self._closing:
                    self._end(DistBackendError(f"the exchange between workers failed: {error}"))
            if self._over is not None:
                return

    def _tick(self, now_s: float) -> None:
        if self._path is not None and not self._frozen:
            self._watch(now_s)
        if self._path is not None and self._frozen:
            self._leave_agents()
        while self._path is None and not self._closing and self._gloo_step():
            pass
        if self._path is None:
            self._prepare_return(now_s)

    def _watch(self, now_s: float) -> None:
        """While agents work: did another worker leave them, does everyone live, does anything move?"""
        keys = self._here()
        if keys.ready("failed"):
            with self._lock:
                self._fail(keys.read("failed"))
            return
        with self._lock:
            entries = self._ledger.under_way()
        if not entries or now_s - max(entries[0].begun_s, self._moved_s) < SLOW_S:
            self._peers.forget_looks()
            return
        self._peers.look(now_s)
        oldest = entries[0]
        if now_s - oldest.begun_s > oldest.timeout_s:
            self._end(DistBackendError(self._late(oldest)))
        elif not self._peers.all_submitted(oldest.seq + 1) or self._agent_moved():
            self._moved_s = max(self._moved_s, now_s - SLOW_S)
        elif now_s - self._moved_s > STALL_S:
            with self._lock:
                self._fail(f"nothing came through the agents for {STALL_S:g} s")

    def _here(self) -> Keys:
        """The keys of this generation."""
        return self._keys.part(f"left/{self._generation}/")

    def _agent_moved(self) -> bool:
        """Whether the agent got results since the last look."""
        assert self._path is not None
        counters = self._path.agent.status()["counters"]
        results = int(counters["results"])
        moved, self._results_seen = results != self._results_seen, results
        return moved

    def _late(self, entry: Entry) -> str:
        late = [
            str(rank)
            for worker, rank in enumerate(self._peers.leaders)
            if worker != self._worker and self._peers.submitted.get(worker, 0) <= entry.seq
        ]
        who = f"rank {', '.join(late)} did not take part" if late else "all ranks took part"
        return f"all_reduce did not end within {entry.timeout_s:g} s: {who}"

    # --- over Gloo -----------------------------------------------------------------------------------------

    def _leave_agents(self) -> None:
        """Freeze, say so, and agree on the first reduction to do over Gloo."""
        keys = self._here()
        path, first = self._path, self._ledger.lowest_open
        assert path is not None
        if not keys.ready("failed"):
            keys.set("failed", self._trouble)
        keys.set(f"at/{self._worker}", str(first))
        path.close(0.0)
        self._peers.forget_looks()
        starts = [
            int(keys.get(f"at/{other}", watch=lambda: self._peers.look(time.monotonic())))
            for other in range(self._workers)
        ]
        self._gloo_seq = min(starts)
        self._path = None
        self._retry_at_s = time.monotonic() + self._retry_s
        again = first - self._gloo_seq
        self._journal.change("gloo", f"reductions go over Gloo: {self._trouble}", bad=True, done_again=again)

    def _gloo_step(self) -> bool:
        """Do the next reduction over Gloo, if it has been submitted."""
        with self._lock:
            entry = self._ledger.get(self._gloo_seq)
            if entry is None:
                return False
        source = entry.array if entry.kept is None else entry.kept
        target = np.empty_like(entry.array) if entry.done else entry.array
        ready = self._next_path is not None and self._next_path.running()
        try:
            all_ready = self._carrier.reduce(source, entry.kind, entry.op, target, ready, entry.timeout_s)
        except RuntimeError as error:
            self._blame(str(error))
            return False
        self._gloo_seq += 1
        with self._lock:
            done_before, entry.done = entry.done, True
            self._ledger.finish(entry)
            if all_ready:
                self._return()
        self._journal.count("reductions_gloo")
        if not done_before:
            entry.tell(None)
        return True

    def _blame(self, reason: str) -> None:
        """Gloo failed too: find out who is gone, or end without a name."""
        self._peers.forget_looks()
        end = time.monotonic() + DEAD_S + 4.0
        while time.monotonic() < end:
            self._peers.look(time.monotonic())
            time.sleep(TICK_S)
        raise DistBackendError(f"neither agents nor Gloo can reduce: {reason}")

    # --- and back ------------------------------------------------------------------------------------------

    def _prepare_return(self, now_s: float) -> None:
        """Make the next generation's agents, step by step."""
        if self._next_path is None:
            self._next_path = self._make_path(self._generation + 1)
        path = self._next_path
        if self._worker == 0 and now_s >= self._retry_at_s and path.ticket is None:
            self._retry_s = min(2 * self._retry_s, RETRY_S[1])
            self._retry_at_s = now_s + self._retry_s
            try:
                ticket = self._take_ticket()
            except UserError:
                return
            if ticket.admission or not ticket.wanted:
                path.publish(ticket)
        try:
            path.step()
        except (OSError, RuntimeError, UserError, ControlError) as error:
            self._journal.change("no_return", str(error), quiet=True)

    def _return(self) -> None:
        """All workers are ready: what comes after this reduction goes through the new agents. Under the lock."""
        assert self._next_path is not None
        path, self._next_path = self._next_path, None
        self._generation += 1
        self._ledger.next_to_begin = self._gloo_seq
        self._use(path, "the switch is back" if path.ticket and path.ticket.admission else "agents again")
        self._pump()

    # --- the end -------------------------------------------------------------------------------------------

    def _end(self, error: Exception) -> None:
        """Nothing can be reduced any more: everyone who waits gets the error."""
        with self._lock:
            if self._over is not None:
                return
            self._over, self._frozen = error, True
            entries = self._ledger.open_entries()
        self._journal.change("failed", str(error), bad=True)
        self._carrier.abort()
        for entry in entries:
            entry.tell(error)

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything submitted has ended."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            with self._lock:
                if self._over is not None or not self._ledger.open_entries():
                    return True
            time.sleep(0.005)
        return False

    def give_up(self, error: Exception) -> None:
        """End from outside: a rank of this worker's host is gone."""
        self._end(error)

    def status(self) -> dict[str, Any]:
        """The path, and what the agent says."""
        path = self._path
        shown: dict[str, Any] = {"path": "gloo", "workers": self._workers, "generation": self._generation}
        if self._over is not None:
            shown["path"] = "none"
        elif path is not None and path.agent is not None:
            agent = path.agent.status()
            shown |= {"path": agent.get("path", "switch"), "agent": agent}
        return shown

    def close(self) -> None:
        """Stop the thread and the agents."""
        self._closing = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(10.0)
        self._peers.close()
        for path in (self._path, self._next_path):
            if path is not None:
                path.close(None if self._over is None else 0.0)
        self._carrier.close()
