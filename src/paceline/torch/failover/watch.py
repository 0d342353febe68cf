"""Watching over agents at work: does everyone live, does anything move?"""

from typing import Any

from torch.distributed import DistBackendError

from paceline.torch.failover.heartbeat import Peers
from paceline.torch.failover.pending import Entry

SLOW_S = 1.5
"""A reduction that takes longer makes a worker look whether the others live."""
STALL_S = 10.0
"""Agents that bring nothing for this long, though every worker has submitted the reduction, have failed."""


class Watch:
    """One worker's watch; the caller tells it what is under way, and when something came."""

    def __init__(self, worker: int, now_s: float) -> None:
        self._worker = worker
        self._moved_s = now_s
        self._results_seen = -1

    def moved(self, now_s: float) -> None:
        """A reduction ended, or a path begins."""
        self._moved_s = now_s

    def look(self, entries: list[Entry], peers: Peers, agent: Any, now_s: float) -> str:
        """Why the agents have failed, or nothing; a reduction that is late or a rank that is gone is raised."""
        if not entries or now_s - max(entries[0].begun_s, self._moved_s) < SLOW_S:
            peers.forget_looks()
            return ""
        peers.look(now_s)
        oldest = entries[0]
        if now_s - oldest.begun_s > oldest.timeout_s:
            raise DistBackendError(_late(oldest, self._worker, peers))
        if not peers.all_submitted(oldest.seq + 1) or self._agent_moved(agent):
            self._moved_s = max(self._moved_s, now_s - SLOW_S)
        elif now_s - self._moved_s > STALL_S:
            return f"nothing came through the agents for {STALL_S:g} s"
        return ""

    def _agent_moved(self, agent: Any) -> bool:
        """Whether the agent got results since the last look."""
        results = int(agent.status()["counters"]["results"])
        moved, self._results_seen = results != self._results_seen, results
        return moved


def waits_long(entries: list[Entry], now_s: float) -> bool:
    """Whether somebody has waited so long that it is no wonder any more."""
    return bool(entries) and now_s - entries[0].begun_s > SLOW_S


def _late(entry: Entry, worker: int, peers: Peers) -> str:
    late = [
        str(rank)
        for other, rank in enumerate(peers.leaders)
        if other != worker and peers.submitted.get(other, 0) <= entry.seq
    ]
    who = f"rank {', '.join(late)} did not take part" if late else "all ranks took part"
    return f"all_reduce did not end within {entry.timeout_s:g} s: {who}"
