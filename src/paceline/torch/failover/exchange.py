"""All-reduces between workers: through agents, or over Gloo when those fail, and back; none lost or doubled.

The agents go from the switch to custodians and back by themselves. What this adds is the step beyond: when
agents cannot finish a reduction, all workers leave the agents together, at the same place.

**Leaving.** Whoever sees a reduction fail writes so into the Store, and every worker looks there. Each stops
its agent, then publishes the first reduction that it has no result of. From the smallest of these on, all do
all reductions again over Gloo, in order, from the inputs they kept (`ledger`); who had the result already
throws the new one away, which is bit for bit the same.

**Coming back.** The first worker asks for a place at the switch, less and less often (`seeking`). When there is
one, all prepare new agents while Gloo goes on. Each reduction over Gloo carries every worker's "ready"; the one at
which all were is the last over Gloo.

**Joining late.** A group that began without its switch looks for it too. When it is there, the group leaves its
agents for new ones in the same two moves: whatever the switch's policy and width, all begin with it at one place.

**Ending.** A worker that others wait for, and whose process has ended or whose heartbeat has stopped, ends the group
with an error that names its rank.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy.typing as npt
from torch.distributed import DistBackendError, DistNetworkError, DistStoreError

from paceline.live.agent.handle import Handle, TensorMismatchError
from paceline.torch.failover.agent_path import AgentPath, Ticket
from paceline.torch.failover.gloo_carrier import GlooCarrier
from paceline.torch.failover.gloo_replay import Detour
from paceline.torch.failover.heartbeat import PeerLostError, Peers
from paceline.torch.failover.lifelines import Lifelines
from paceline.torch.failover.pending import Entry, Ledger
from paceline.torch.failover.start import PATH_ERRORS, start_together
from paceline.torch.failover.switch_search import Comeback, Seeker
from paceline.torch.failover.watch import Watch, waits_long
from paceline.torch.journal import Journal
from paceline.torch.rendezvous import Keys

TICK_S = 0.25
JOINING = "the switch answers now"
"""Why agents are left that have not failed."""


class Exchange:
    """One worker's side."""

    def __init__(
        self,
        keys: Keys,
        worker: int,
        leaders: tuple[int, ...],
        carrier: GlooCarrier,
        make_path: Callable[[int, int], AgentPath],
        take_ticket: Callable[[], Ticket],
        journal: Journal,
        timeout_s: float,
        lifelines: Lifelines,
    ) -> None:
        self._keys, self._worker, self.workers = keys, worker, len(leaders)
        self.rank = leaders[worker]
        self._carrier, self._journal = carrier, journal
        self._ledger = Ledger()
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._generation = 0
        self._path: AgentPath | None = None
        self._frozen = True
        self._trouble = self._no_return = ""
        self._over: Exception | None = None
        self._closing = False
        self._seeker = Seeker(take_ticket)
        self._comeback = Comeback(make_path, self._seeker if worker == 0 else None)
        self._detour = Detour(carrier, self._ledger, self._lock)
        self._watching = Watch(worker, time.monotonic())
        self._begin(make_path(0, 0), take_ticket, timeout_s)
        self._peers = Peers(
            keys.part("peers/"),
            worker,
            leaders,
            lifelines,
            lambda: self._ledger.next_seq,
            self.end,
        )
        self._thread = threading.Thread(target=self._run, name="paceline-exchange", daemon=True)
        self._thread.start()

    # --- the beginning -------------------------------------------------------------------------------------

    def _begin(self, path: AgentPath, take_ticket: Callable[[], Ticket], timeout_s: float) -> None:
        """The first generation, all workers together; if one cannot, all begin over Gloo."""
        trouble = start_together(self._keys, self._worker, self.workers, path, take_ticket, timeout_s)
        if trouble:
            path.close(0.0)
            self._journal.change("gloo", f"agents cannot be used: {trouble}", bad=True)
            return
        self._use(path, path.ticket.reason if path.ticket else "")

    def _use(self, path: AgentPath, reason: str) -> None:
        """Reductions that have not begun go through this path from now on."""
        self._path, self._frozen, self._trouble = path, False, ""
        self._watching.moved(time.monotonic())
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
                if isinstance(error, TensorMismatchError):  # Gloo could not help
                    self.end(DistBackendError(str(error)))
                else:
                    self._fail(str(error))
                return
            self._watching.moved(time.monotonic())
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
        while not self._closing and self._over is None:
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
        if self._path is not None and not self._frozen:
            self._watch(now_s)
        if self._path is not None and self._frozen:
            self._leave_agents()
        while self._path is None and not self._closing:
            if not self._detour.step(self._comeback.ready(), self._check_alive, self._after_gloo):
                break
        if self._path is None:
            try:
                self._comeback.prepare(self._generation + 1)
            except PATH_ERRORS as error:
                if str(error) != self._no_return:
                    self._no_return = str(error)
                    self._journal.change("no_return", self._no_return, quiet=True)

    def _watch(self, now_s: float) -> None:
        """While agents work: did another worker leave them, are they all right, is the switch there now?"""
        keys, path = self._here(), self._path
        assert path is not None
        with self._lock:
            entries = self._ledger.under_way()
        trouble = keys.read("failed") if keys.ready("failed") else ""
        trouble = trouble or self._watching.look(entries, self._peers, path.agent, now_s)
        if not trouble and self._comeback.may_join(path):
            trouble = JOINING
        if trouble:
            with self._lock:
                self._fail(trouble)

    def _here(self) -> Keys:
        """The keys of this generation."""
        return self._keys.part(f"left/{self._generation}/")

    # --- over Gloo, and back -------------------------------------------------------------------------------

    def _leave_agents(self) -> None:
        """Freeze, say so, and agree on the first reduction to do over Gloo."""
        keys, path, first = self._here(), self._path, self._ledger.lowest_open
        assert path is not None
        if not keys.ready("failed"):
            keys.set("failed", self._trouble)
        keys.set(f"at/{self._worker}", str(first))
        path.close(0.0)
        self._peers.forget_looks()
        again = first - self._detour.agree(keys, self.workers, self._check_alive)
        self._path = None
        bad = self._trouble != JOINING
        self._journal.change("gloo", f"reductions go over Gloo: {self._trouble}", bad=bad, done_again=again)

    def _check_open(self) -> None:
        if self._over is not None or self._closing:
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
        path = self._comeback.take()
        self._generation += 1
        self._ledger.next_to_begin = self._detour.seq
        self._use(path, "the switch is there" if path.ticket and path.ticket.admission else "agents again")
        self._pump()

    # --- the end -------------------------------------------------------------------------------------------

    def end(self, error: Exception) -> None:
        """Nothing can be reduced any more, or a rank of this host is gone: everyone who waits gets the error."""
        with self._lock:
            if self._over is not None:
                return
            self._over, self._frozen = error, True
            entries = self._ledger.open_entries()
        self._journal.change("failed", str(error), bad=True)
        self._carrier.abort()
        for entry in entries:
            entry.tell(error)

    def _open(self) -> list[Entry]:
        with self._lock:
            return self._ledger.open_entries()

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything submitted has ended."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if self._over is not None or not self._open():
                return True
            time.sleep(0.005)
        return False

    def status(self) -> dict[str, Any]:
        """The path, and what the agent says."""
        path = self._path
        shown: dict[str, Any] = {"path": "gloo", "workers": self.workers, "generation": self._generation}
        if self._over is not None:
            shown["path"] = "none"
        elif path is not None and path.agent is not None:
            agent = path.agent.status()
            shown |= {"path": agent.get("path", "switch"), "agent": agent}
        return shown

    def close(self, at_once: bool = False) -> None:
        """Stop the thread and the agents; whoever still waits is told. `at_once`: help nobody to finish."""
        self._closing = True
        self._wake.set()
        if self._open():
            self._carrier.abort()  # nobody else takes part in what is still open
        if threading.current_thread() is not self._thread:
            self._thread.join(10.0)
        self._seeker.close()
        self._peers.close()
        linger_s = 0.0 if at_once or self._over is not None else None
        if self._path is not None:
            self._path.close(linger_s)
        self._comeback.close(linger_s)
        self._carrier.close()
        for entry in self._open() if self._over is None else []:
            entry.tell(DistBackendError(f"rank {self.rank} has closed the group"))
