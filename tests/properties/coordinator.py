"""A small coordinator for tests: who leads, who carries what, in every epoch and iteration.

It decides as a driver's coordinator does, only at random: any worker may be called a straggler, any micro-batch be
taken over, any dead worker be adopted. What it must keep is what the core rests on: within an epoch and an iteration
every worker's contribution is fixed, and together the contributions of the living are everyone's, each once.
"""

import random
from dataclasses import dataclass, field

import numpy as np

from paceline.core.bits import place_of, share_bits


class MissingError(RuntimeError):
    """The job cannot go on; says who is missing."""


@dataclass
class Part:
    """What a worker contributes to each chunk of an iteration: whole workers, and micro-batches of one owner."""

    whole: list[int] = field(default_factory=list)
    owner: int = -1
    batches: list[int] = field(default_factory=list)


@dataclass
class Plan:
    """An epoch: roles, and for each iteration what everyone contributes."""

    epoch: int
    custody: bool
    leaders: list[int]
    stragglers: list[int]
    fan_in: list[int]
    """By rack."""
    parts: list[dict[int, Part]]
    """By iteration, then by worker."""


class Coordinator:
    """Decides epochs for a job with workers in racks."""

    def __init__(
        self, draw: random.Random, racks: list[int], batches: int, iterations: int, help_mode: str
    ) -> None:
        self.draw, self.racks, self.batches, self.iterations = draw, racks, batches, iterations
        self.help_mode = help_mode
        self.silent = draw.random() < 0.5
        self.dead: set[int] = set()
        self.epoch = -1
        self.plan = self.decide()

    def place(self, worker: int) -> int:
        """The `owner` field that names a worker."""
        return place_of(self.racks[worker], self.racks[:worker].count(self.racks[worker]))

    def bit_of(self, worker: int) -> int:
        return 1 << self.racks[:worker].count(self.racks[worker])

    def share_of(self, batches: list[int]) -> np.uint64:
        word = np.uint64(0)
        for m in batches:
            word |= share_bits(m, self.batches)
        return np.uint64(word)

    def decide(self) -> Plan:
        """A new epoch with new roles and parts."""
        alive = [w for w in range(len(self.racks)) if w not in self.dead]
        if not alive:
            missing = ", ".join(str(w) for w in sorted(self.dead))
            raise MissingError(f"no worker is left: {missing} are missing")
        self.epoch += 1
        draw = self.draw
        most = len(alive) if draw.random() < 0.1 else 2
        stragglers = sorted(draw.sample(alive, draw.randint(0, min(most, len(alive)))))
        leaders = [w for w in alive if w not in stragglers]
        custody = bool(leaders) and bool(stragglers) and self.help_mode in ("custody", "both")
        parts = [self._parts(alive, stragglers) for _ in range(self.iterations)]
        fan_in = []
        for rack in range(max(self.racks) + 1):
            bits = sum(len(parts[0][w].whole) for w in leaders if self.racks[w] == rack)
            fan_in.append(max(1, bits) if custody else self.racks.count(rack))
        self.plan = Plan(self.epoch, custody, leaders if custody else alive, stragglers, fan_in, parts)
        return self.plan

    def _parts(self, alive: list[int], stragglers: list[int]) -> dict[int, Part]:
        draw = self.draw
        parts = {w: Part(whole=[w]) for w in alive}
        helpers = [w for w in alive if w not in stragglers] or list(alive)
        draw.shuffle(helpers)
        # The dead whom nobody of their own rack can adopt come first: they need helpers of their own.
        orphans = sorted(self.dead, key=lambda d: any(self.racks[w] == self.racks[d] for w in alive))
        for gone in orphans:
            kin = [w for w in alive if self.racks[w] == self.racks[gone]]
            if kin and (not helpers or draw.random() < 0.6):
                parts[draw.choice(kin)].whole.append(gone)
            elif helpers:
                self._share_out(parts, helpers, gone, list(range(self.batches)))
            else:
                raise MissingError(f"worker {gone} is missing, and nobody is left who could carry its part")
        if self.help_mode in ("takeover", "both"):
            for slow in stragglers:
                if draw.random() < 0.8:
                    self._take_over(parts, [h for h in helpers if h != slow], helpers, slow)
        return parts

    def _take_over(self, parts: dict[int, Part], able: list[int], helpers: list[int], slow: int) -> None:
        kept = [m for m in range(self.batches) if self.draw.random() < 0.4]
        if not kept and not (self.silent and parts[slow].whole == [slow]):
            kept = [0]
        given = [m for m in range(self.batches) if m not in kept]
        if not able or not given or parts[slow].owner >= 0:
            return
        used = self._share_out(parts, able, slow, given)
        helpers[:] = [h for h in helpers if h not in used and h != slow]
        parts[slow].whole.remove(slow)
        if kept:
            parts[slow].owner, parts[slow].batches = slow, kept

    def _share_out(
        self, parts: dict[int, Part], helpers: list[int], owner: int, given: list[int]
    ) -> list[int]:
        """Some of the helpers, who then help nobody else, get the micro-batches."""
        count = min(self.draw.randint(1, 3), len(helpers), len(given))
        used = [helpers.pop() for _ in range(count)]
        dealt = {h: [given[i]] for i, h in enumerate(used)}
        for m in given[count:]:
            dealt[self.draw.choice(used)].append(m)
        for helper, batches in dealt.items():
            parts[helper].owner, parts[helper].batches = owner, batches
        return used
