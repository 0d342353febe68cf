"""How long computing takes with help: the keeper of the ledgers, as PyTorch's ranks have it, in virtual time.

The simulator's own takeover is another driver of the same policy: it names stragglers first, cuts iterations only where
that is expected to pay, and lets gradients leave while others compute. In PyTorch every ledger is open, every iteration
is cut, and one all-reduce comes after all. So computing is found here, rank by rank, and sending by packets.
"""

import functools
import heapq
from dataclasses import dataclass, field

from paceline.core.help.takeover import Grant, Paces
from paceline.torch.takeover.keeper import TICK_S, Iteration

ASK_S = 1e-3
"""From a question to its answer, over a limited link."""
STEPS = 12
_LEASE_NS = 10**13
_NS = 1e9


@dataclass
class HelpedIteration:
    """Ranks of given speeds in one iteration; claims ahead, races and fences included."""

    paces_s: tuple[float, ...]
    micro_batches: int
    layers: int
    """A micro-batch that somebody else has finished is left at the next layer."""
    known: Paces
    asking: set[int] = field(default_factory=set)
    """Ranks that wait for a claim."""
    queued: dict[int, Grant] = field(default_factory=dict)
    """What a rank computes after its present one."""
    ends: list[tuple[float, int, int, Grant]] = field(default_factory=list)
    """When a rank ends a micro-batch, and which; the second number tells ends that are no longer true."""
    began: dict[int, tuple[float, int, Grant]] = field(default_factory=dict)
    """When a rank began its present one, and the number of its end."""
    count: int = 0

    def run_s(self) -> float:
        """Until all is computed."""
        ranks = range(len(self.paces_s))
        ledgers = Iteration(len(ranks), _LEASE_NS, self.known, 0)
        for rank in ranks:
            ledgers.begin(rank, list(range(self.micro_batches)), 0)
        self.asking.update(ranks)
        now_s = 0.0
        self._serve(ledgers, now_s)
        while not ledgers.freeze():
            tick_s = (int(now_s / TICK_S) + 1) * TICK_S
            if self.ends and (not self.asking or self.ends[0][0] <= tick_s):
                now_s, number, rank, grant = heapq.heappop(self.ends)
                if self.began[rank][1] == number:
                    self._end(ledgers, rank, grant, now_s)
            else:
                now_s = tick_s
            self._serve(ledgers, now_s)
        return now_s

    def _serve(self, ledgers: Iteration, now_s: float) -> None:
        for rank in sorted(self.asking, key=self.known.of):
            grant = ledgers.claim(rank, int(now_s * _NS))
            if grant is not None:
                self.asking.discard(rank)
                self._start(ledgers, rank, grant, now_s + ASK_S)

    def _start(self, ledgers: Iteration, rank: int, grant: Grant, now_s: float) -> None:
        ahead = ledgers.claim(rank, int(now_s * _NS), ahead=True)
        if ahead is not None:
            self.queued[rank] = ahead
        self._ends_at(rank, grant, now_s, now_s + self.paces_s[rank])

    def _ends_at(self, rank: int, grant: Grant, began_s: float, end_s: float) -> None:
        self.count += 1
        self.began[rank] = began_s, self.count, grant
        heapq.heappush(self.ends, (end_s, self.count, rank, grant))

    def _end(self, ledgers: Iteration, rank: int, grant: Grant, now_s: float) -> None:
        took_ns = int((now_s - self.began[rank][0]) * _NS)
        _, fenced = ledgers.finish(rank, grant.claim, took_ns, int(now_s * _NS))
        for loser, number in fenced:
            began_s, _, held = self.began[loser]
            if held.number == number and loser != rank:
                layer_s = self.paces_s[loser] / self.layers
                done = int((now_s - began_s) / layer_s) + 1
                self._ends_at(loser, held, began_s, began_s + min(done, self.layers) * layer_s)
        if rank in self.queued:
            self._start(ledgers, rank, self.queued.pop(rank), now_s)
        else:
            self.asking.add(rank)


@functools.lru_cache(maxsize=1024)
def helped_compute_s(paces_s: tuple[float, ...], micro_batches: int, layers: int) -> float:
    """Computing of an iteration with help, mean over the first ones: speeds are learned in the first."""
    known = Paces()
    times = [HelpedIteration(paces_s, micro_batches, layers, known).run_s() for _ in range(STEPS)]
    return sum(times) / len(times)
