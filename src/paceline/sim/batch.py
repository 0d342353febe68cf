"""Several runs of a scenario at once: its policies and seeds, in processes.

Each run depends on its own seed alone, so that results are the same however many processes there are. They are forked
from this one after everything is compiled: none loads or compiles again, and a rule that is a function needs no name.
"""

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from typing import Any

from paceline.core.priority import PriorityRule, priority
from paceline.errors import UserError
from paceline.sim.results import RunResult
from paceline.sim.run import simulate, warm_up
from paceline.sim.scenario import Scenario

LOOK_S = 0.1
"""How often the processes' progress is read."""
_LONG = {"ring": 0, "ps": 1, "atp": 2}
"""Policies whose runs have the most packets."""
Tell = Callable[[int, int, int], None]
"""Which run, how many worker-iterations of it are done, and of how many."""


@dataclass(frozen=True)
class BatchRun:
    """One of the runs."""

    policy: str
    """As results name it."""
    seed: int
    """Of everything that is drawn at random."""
    base: str = ""
    """The compiled policy, where its name is another."""
    rule: PriorityRule = priority
    """How packets get their priority."""


_work: tuple[Scenario, Sequence[BatchRun], bool, Any] | None = None
"""What forked processes are to do: inherited, not sent."""


def simulate_all(
    scenario: Scenario,
    runs: Sequence[BatchRun],
    *,
    check: bool = False,
    processes: int | None = None,
    tell: Tell | None = None,
) -> list[RunResult]:
    """Results in the order of the runs; `processes`: by default one a core."""
    count = min(processes or os.cpu_count() or 1, len(runs))
    if count <= 1:
        return [_simulate(scenario, run, check, number, tell) for number, run in enumerate(runs)]
    warm_up()
    news = multiprocessing.get_context("fork").SimpleQueue()
    with _as_work(scenario, runs, check, news):
        pool = ProcessPoolExecutor(count, multiprocessing.get_context("fork"))
        waiting: dict[Future[RunResult], int] = {}
        found: dict[int, RunResult] = {}
        try:
            for number in longest_first(runs):
                waiting[pool.submit(_simulate_number, number)] = number
            while waiting:
                done, _ = wait(waiting, timeout=LOOK_S, return_when=FIRST_COMPLETED)
                while not news.empty():
                    told = news.get()
                    if tell is not None:
                        tell(*told)
                for future in done:
                    found[waiting.pop(future)] = future.result()
        except BrokenProcessPool:
            raise UserError(
                "a process of the simulation was killed (out of memory?); try fewer with --jobs"
            ) from None
        finally:
            for process in list((pool._processes or {}).values()) if waiting else ():
                process.terminate()
            pool.shutdown(wait=True, cancel_futures=True)
    return [found[number] for number in range(len(runs))]


def longest_first(runs: Sequence[BatchRun]) -> list[int]:
    """The order in which they begin: what takes long must not begin last, when the other cores have nothing left.

    Without aggregation all packets cross the whole network; under ATP sums go by a server and back.
    """
    return sorted(range(len(runs)), key=lambda k: _LONG.get(runs[k].base or runs[k].policy, len(_LONG)))


def _simulate(scenario: Scenario, run: BatchRun, check: bool, number: int, tell: Tell | None) -> RunResult:
    def progress(done: int, total: int) -> None:
        if tell is not None:
            tell(number, done, total)

    result = simulate(
        scenario, run.base or run.policy, seed=run.seed, check=check, rule=run.rule, progress=progress
    )
    progress(1, 1)
    return replace(result, policy=run.policy)


def _simulate_number(number: int) -> RunResult:
    assert _work is not None
    scenario, runs, check, news = _work
    try:
        return _simulate(scenario, runs[number], check, number, lambda *told: news.put(told))
    except UserError as error:
        # Its kinds take other arguments, and would not come through.
        raise UserError(error.message, place=error.place) from None


@contextlib.contextmanager
def _as_work(scenario: Scenario, runs: Sequence[BatchRun], check: bool, news: Any) -> Iterator[None]:
    global _work
    _work = scenario, runs, check, news
    try:
        yield
    finally:
        _work = None
