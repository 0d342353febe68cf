"""Ranks that are done compute micro-batches of a slow one; the sum is exact synchronous SGD.

    takeover = Takeover(model)
    for step in range(steps):
        takeover.run(my_micro_batches(step), accumulate)   # accumulate(indices): loss(indices).backward()
        takeover.reduce()                                  # the mean over all micro-batches of all ranks, in .grad
        optimizer.step()

Every rank gives the micro-batches that are its own, as indices that any rank can load, and a function that
computes one of them and leaves its gradient in `.grad`, as `backward` does. Who computes which one is settled
while the iteration runs (`core/help/takeover.py`); each counts exactly once. A micro-batch's gradient is kept
apart until the keeper has said that it counts, so that one that came second can be thrown away. Where all ranks were
alike in the iteration before, each computes its own without a question, until somebody waits for it (`keeper`).
"""

import contextlib
import os
import secrets
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from paceline.core.bits import MICRO_BATCHES_MAX
from paceline.core.help.ledger import Claim
from paceline.live.hostmem.group import host_identity
from paceline.torch.takeover.client import KeeperClient, TakeoverError
from paceline.torch.takeover.keeper import KeeperServer

Gradient = list[Tensor | None]
"""One entry a parameter."""
STRAGGLER_TIMES = 1.3
"""A rank is called a straggler if a micro-batch takes it so many times as long as the others."""


@dataclass(frozen=True)
class Report:
    """One iteration: who computed what, and why."""

    step: int
    rank: int
    shares: list[list[int]]
    """`shares[owner][m]`: the rank whose gradient of the owner's micro-batch `m` counts."""
    reasons: list[dict[str, Any]]
    """Every help, race, wait and loss: `{rank, owner, micro_batch, reason}`."""
    gone: list[int]
    """Ranks that were lost."""
    thrown_away: int
    """Gradients that came second."""
    paces_s: list[float]
    """Seconds a micro-batch takes each rank."""
    seconds: float
    """That the iteration took, without the reduction."""

    @property
    def total(self) -> int:
        return sum(len(share) for share in self.shares)

    @property
    def taken_over(self) -> int:
        """How many were computed by another rank than their own."""
        return sum(rank != owner for owner, share in enumerate(self.shares) for rank in share)

    def straggler(self) -> tuple[int, str] | None:
        """The rank that is clearly slower than the others and was helped, and why it is taken for slow."""
        lost = [sum(by != owner for by in share) for owner, share in enumerate(self.shares)]
        if not any(lost) or len(self.paces_s) < 2:
            return None
        slow = max(range(len(lost)), key=lambda rank: self.paces_s[rank])
        others = statistics.median(pace for rank, pace in enumerate(self.paces_s) if rank != slow)
        if self.paces_s[slow] < STRAGGLER_TIMES * others or not lost[slow]:
            return None
        return slow, (
            f"a micro-batch takes it {self.paces_s[slow] * 1e3:.3g} ms, the others {others * 1e3:.3g} ms; "
            f"{lost[slow]} of its {len(self.shares[slow])} were taken over"
        )

    def computed_by(self, rank: int) -> list[tuple[int, int]]:
        """The (owner, micro-batch) pairs in a rank's gradient."""
        return [(o, m) for o, share in enumerate(self.shares) for m, by in enumerate(share) if by == rank]


class TakenOverError(Exception):
    """Raised inside a micro-batch that somebody else has finished meanwhile; let it pass."""


class Takeover:
    """Made by all ranks of the group together; `model` is a module, bare or wrapped by DDP.

    `lease_s`: a rank that is not heard of for so long loses its claims. `timeout_s`: the longest wait for a
    micro-batch or for the end of an iteration. `keeper`: the rank of the group whose thread holds the ledgers. `help`:
    without it every rank computes its own micro-batches, for comparison. `stop_early`: a micro-batch that somebody
    else has finished is left at the next layer.
    """

    def __init__(
        self,
        model: nn.Module,
        group: dist.ProcessGroup | None = None,
        *,
        help: bool = True,
        keeper: int = 0,
        lease_s: float = 10.0,
        timeout_s: float = 600.0,
        silence_s: float = 30.0,
        stop_early: bool = True,
    ) -> None:
        self.model, self.group, self.help = model, group, help
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.last: Report | None = None
        self.taken_over_total = 0
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._timeout_s = timeout_s
        self._step = 0
        self._whole = False  # whether this iteration begins without claims
        self._computing: tuple[int, int, int] | None = None  # step, owner and number of the claim at work
        self._hooks: list[Any] = []
        self._keeper: KeeperServer | None = None
        self._client: KeeperClient | None = None
        if help:
            self._client = self._meet(keeper, lease_s, silence_s)
        if help and stop_early:
            self._watch()

    def run(self, micro_batches: Sequence[Any], accumulate: Callable[[Any], object]) -> Report:
        """Compute this rank's micro-batches and what it takes over; its part of the sum is then in `.grad`.

        `micro_batches`: 1 to 64 of them, each made of what JSON knows (or a tensor of indices). Begins like
        `zero_grad()`. Ends when everybody's micro-batches are computed.
        """
        listed = [_as_plain(indices) for indices in micro_batches]
        if not 1 <= len(listed) <= MICRO_BATCHES_MAX:
            raise ValueError(
                f"an iteration has 1 to {MICRO_BATCHES_MAX} micro-batches a rank, not {len(listed)}"
            )
        self._step += 1
        self._set_gradient([None] * len(self._parameters))
        with self._without_sync():
            if self._client is None:
                self.last = self._run_alone(listed, accumulate)
            else:
                try:
                    self.last = self._run_together(self._client, listed, accumulate)
                except BaseException:
                    with contextlib.suppress(TakeoverError):
                        self._client.tell("abandon", self._step)
                    raise
        self.taken_over_total += self.last.taken_over
        return self.last

    def _run_alone(self, listed: list[Any], accumulate: Callable[[Any], object]) -> Report:
        began = time.monotonic()
        for indices in listed:
            accumulate(indices)
        counts: list[Any] = [None] * self.ranks
        dist.all_gather_object(counts, len(listed), group=self.group)
        shares = [[owner] * count for owner, count in enumerate(counts)]
        seconds = time.monotonic() - began
        return Report(self._step, self.rank, shares, [], [], 0, [], seconds)

    def _run_together(
        self, client: KeeperClient, listed: list[Any], accumulate: Callable[[Any], object]
    ) -> Report:
        total: Gradient = [None] * len(self._parameters)
        kept: list[tuple[int, int]] = []
        pending: tuple[Future[dict[str, Any]], Claim, Gradient] | None = None
        ahead: Future[dict[str, Any]]

        def settle() -> None:
            nonlocal pending
            if pending is not None:
                answer, claim, gradient = pending
                if client.wait_for(answer, self._timeout_s)["kept"]:
                    kept.append(claim[:2])
                    _add(total, gradient)
                pending = None

        def next_claim(asked: "Future[dict[str, Any]]") -> dict[str, Any]:
            nonlocal ahead
            settle()
            answer = client.wait_for(asked, self._timeout_s)
            if "claim" in answer:
                ahead = client.ask("claim", self._step, ahead=True)
            return answer

        # Messages that belong together are one: each wakes two threads, on machines whose cores have other work.
        if self._whole:
            recalled = self._run_whole(client, listed, accumulate, total, kept)
            if recalled is not None:
                claim, gradient, took_ns = recalled
                verdict = client.ask("finish", self._step, more=True, claim=claim, took_ns=took_ns)
                pending = (verdict, claim, gradient)
                client.release(claim)
            answer = next_claim(client.ask("claim", self._step, ahead=False))
        else:
            client.tell("begin", self._step, more=True, micro_batches=listed)
            asked = client.ask("claim", self._step, more=True, ahead=False)
            ahead = client.ask("claim", self._step, ahead=True)
            answer = client.wait_for(asked, self._timeout_s)
        while "frozen" not in answer:
            claim = _as_claim(answer["claim"])
            client.hold(self._step, claim)
            indices = listed[claim[1]] if claim[0] == self.rank else answer["indices"]
            gradient, took_ns = self._compute(client, claim, indices, accumulate)
            settle()
            # The next claim came while this one was computed; the one after it comes during the next, and so does
            # the verdict on this one.
            following = client.wait_for(ahead, self._timeout_s)
            verdict = client.ask("finish", self._step, more=True, claim=claim, took_ns=took_ns)
            asked = client.ask("claim", self._step, ahead="claim" in following)
            client.release(claim)
            pending = (verdict, claim, gradient)
            if "claim" in following:
                answer, ahead = following, asked
            else:
                answer = next_claim(asked)
        self._whole = answer["whole"]
        report = Report(self._step, self.rank, **answer["frozen"])
        if sorted(kept) != report.computed_by(self.rank):
            raise TakeoverError("this rank's gradient is not what the ledgers say; it was taken for dead")
        self._set_gradient(total)
        return report

    def _run_whole(
        self,
        client: KeeperClient,
        listed: list[Any],
        accumulate: Callable[[Any], object],
        total: Gradient,
        kept: list[tuple[int, int]],
    ) -> tuple[Claim, Gradient, int] | None:
        """All of this rank's own, without a claim; what it was at work on when the rest was recalled."""
        client.begin_whole(self._step, listed)
        for m, indices in enumerate(listed):
            if not client.start_own():
                return None
            claim = (self.rank, m, m + 1)  # as the ledger numbers it, should it come to that
            gradient, took_ns = self._compute(client, claim, indices, accumulate)
            if not client.end_own(took_ns):
                return claim, gradient, took_ns
            kept.append(claim[:2])
            _add(total, gradient)
        client.end_whole()
        return None

    def _compute(
        self,
        client: KeeperClient,
        claim: Claim,
        indices: Any,
        accumulate: Callable[[Any], object],
    ) -> tuple[Gradient, int]:
        """One micro-batch's gradient, apart from all others."""
        self._computing = (self._step, claim[0], claim[2])
        began = time.monotonic_ns()
        with contextlib.suppress(TakenOverError):
            accumulate(indices)
        if self._parameters and self._parameters[0].is_cuda:
            # The time of a micro-batch is that of its computation, not of its launch.
            torch.cuda.synchronize(self._parameters[0].device)
        self._computing = None
        gradient: Gradient = [p.grad for p in self._parameters]
        self._set_gradient([None] * len(gradient))
        return gradient, time.monotonic_ns() - began

    def reduce(self, group: dist.ProcessGroup | None = None, divide_by: float | None = None) -> None:
        """Sum `.grad` over the ranks in one all-reduce, and divide: by default by the number of micro-batches.

        A parameter that no micro-batch used keeps `.grad` None, as in one process.
        """
        if self.last is None:
            raise RuntimeError("reduce() comes after run()")
        scale = 1.0 / (self.last.total if divide_by is None else divide_by)
        kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
        for parameter in self._parameters:
            kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
        for (dtype, device), parameters in kinds.items():
            _reduce_flat(parameters, dtype, device, scale, group or self.group)

    def as_progress(self) -> dict[str, Any]:
        """For a job's progress line, as `paceline run` keeps it and `paceline report` shows it."""
        told: dict[str, Any] = {"taken_over_total": self.taken_over_total}
        if self.last is not None and self.last.paces_s:
            told["paces_s"] = [round(pace_s, 6) for pace_s in self.last.paces_s]
        straggler = self.last.straggler() if self.last is not None else None
        if straggler is not None:
            told["straggler"], told["straggler_reason"] = straggler
        return told

    def close(self) -> None:
        """Leave; the keeper ends with its rank."""
        for hook in self._hooks:
            hook.remove()
        if self._client is not None:
            self._client.close()
        if self._keeper is not None:
            self._keeper.close()

    def _set_gradient(self, gradient: Gradient) -> None:
        for parameter, value in zip(self._parameters, gradient, strict=True):
            parameter.grad = value

    @contextlib.contextmanager
    def _without_sync(self) -> Iterator[None]:
        if isinstance(self.model, DistributedDataParallel):
            # Ranks run unlike numbers of forward passes: none may start a collective.
            self.model.require_forward_param_sync = False
            with self.model.no_sync():
                yield
        else:
            yield

    def _meet(self, keeper: int, lease_s: float, silence_s: float) -> KeeperClient:
        """Start the keeper on its rank, and connect to it: its address and token come over the group."""
        hosts: list[Any] = [None] * self.ranks
        # Not the host's name: network namespaces of one machine share it, and do not share 127.0.0.1.
        dist.all_gather_object(hosts, host_identity(), group=self.group)
        found: list[Any] = [None]
        if self.rank == keeper:
            one_host = len(set(hosts)) == 1
            token = secrets.token_hex(16)
            # One family of addresses: on all of them, each would get a port of its own.
            self._keeper = KeeperServer("127.0.0.1" if one_host else "0.0.0.0", token, self.ranks, lease_s)
            names = ["127.0.0.1"] if one_host else _own_names()
            found = [([(name, self._keeper.port) for name in names], token)]
        source = dist.get_global_rank(self.group, keeper) if self.group is not None else keeper
        dist.broadcast_object_list(found, src=source, group=self.group)
        addresses, token = found[0]
        return KeeperClient(addresses, token, self.rank, lease_s, silence_s)

    def _watch(self) -> None:
        """Leave a micro-batch that is not wanted any more at the next layer, forward or backward."""

        def check(*_: Any) -> None:
            if self._computing is not None and self._client and self._computing in self._client.fenced:
                raise TakenOverError("somebody else has finished this micro-batch")

        for module in self.model.modules():
            if not list(module.children()):
                self._hooks.append(module.register_forward_pre_hook(check))
        for parameter in self._parameters:
            hooked: Any = parameter
            self._hooks.append(hooked.register_post_accumulate_grad_hook(check))


def _reduce_flat(
    parameters: list[nn.Parameter], dtype: torch.dtype, device: torch.device, scale: float, group: Any
) -> None:
    """One all-reduce of all gradients, and of one flag a parameter: whether anybody has a gradient for it."""
    sizes = [parameter.numel() for parameter in parameters]
    gradients = []
    for parameter, size in zip(parameters, sizes, strict=True):
        if parameter.grad is None:
            gradients.append(torch.zeros(size, dtype=dtype, device=device))
        elif parameter.grad.is_sparse:
            raise TakeoverError("sparse gradients are not supported; use sparse=False")
        else:
            gradients.append(parameter.grad.reshape(-1))
    held = [parameter.grad is not None for parameter in parameters]
    flat = torch.cat([*gradients, torch.tensor(held, dtype=dtype, device=device)])
    parts, flags = torch.split(flat[: sum(sizes)], sizes), flat[sum(sizes) :]
    dist.all_reduce(flat, group=group)
    flat[: sum(sizes)].mul_(scale)
    for parameter, part, flag in zip(parameters, parts, flags.tolist(), strict=True):
        parameter.grad = part.view_as(parameter) if flag else None


def _add(total: Gradient, gradient: Gradient) -> None:
    for i, value in enumerate(gradient):
        if value is None:
            continue
        existing = total[i]
        if existing is None:
            total[i] = value
        else:
            existing.add_(value)


def _as_claim(numbers: list[int]) -> Claim:
    owner, m, number = numbers
    return owner, m, number


def _as_plain(indices: Any) -> Any:
    return indices.tolist() if hasattr(indices, "tolist") else indices


def _own_names() -> list[str]:
    """Names under which other hosts may reach this one, the likeliest first."""
    names = [socket.getfqdn(), socket.gethostname()]
    master = os.environ.get("MASTER_ADDR")
    if os.environ.get("RANK") == "0" and master:
        names.insert(0, master)
    return list(dict.fromkeys(names))
