"""SJF-BCO: smallest job first with balanced contention and overhead (arXiv 2207.07817, algorithm 1).

Jobs by GPUs ascending. For a load limit theta and a size kappa, jobs of up to kappa GPUs are packed by
FA-FFP and larger ones go to the least busy servers by LBSGF; the best (theta, kappa) by the judge's word is
kept. Loads are reset for every pair. Ours: kappa only over the sizes that occur (others give the same plan),
and the grid of limits in `load_limited.py`.

FA-FFP has three variants: `prose` packs into occupied servers, as the paper's text says; `printed` takes the
least loaded GPUs, as its listing says; `one-server` (ours) packs, but keeps a job on one server if it can.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from paceline.errors import UserError
from paceline.schedule import placement
from paceline.schedule.model import Problem
from paceline.schedule.plan import Objective, Plan
from paceline.schedule.policies import load_limited
from paceline.schedule.policies.load_limited import Rules, Trial

FaFfp = Literal["prose", "printed", "one-server"]
_SMALL: dict[str, int] = {
    "prose": placement.PACK,
    "printed": placement.LEAST,
    "one-server": placement.PACK_ONE,
}
_WORDS = {
    "prose": "packed into occupied servers",
    "printed": "given the least loaded GPUs",
    "one-server": "packed into the first occupied server with room",
}


@dataclass(frozen=True)
class SjfBco:
    """The policy; `horizon` is T in units, `kappas` the sizes tried, `sweep=0` the paper's search alone."""

    fa_ffp: FaFfp = "prose"
    spread: float = 1.0
    """lambda: LBSGF looks at the least busy servers that hold lambda * G_j GPUs together."""
    kappas: tuple[int, ...] | None = None
    horizon: float | None = None
    sweep: int | None = None
    online: bool = False

    def __post_init__(self) -> None:
        if self.spread < 1.0:
            raise UserError(f"lambda is at least 1, not {self.spread:g}", place="sjf-bco")

    @property
    def name(self) -> str:
        return "sjf-bco" if self.fa_ffp == "prose" else f"sjf-bco-{self.fa_ffp}"

    def search(self, problem: Problem, objective: Objective) -> Trial:
        """The best (theta, kappa) and its placement."""
        order = load_limited.smallest_first(problem)
        sizes = {job.gpus for j, job in enumerate(problem.jobs) if j not in problem.pinned}
        kappas = self.kappas or tuple(sorted(sizes)) or (1,)
        rules = Rules(_SMALL[self.fa_ffp], placement.BALANCED, self.spread)

        def try_limit(theta: float) -> Trial | None:
            trials = [
                trial
                for kappa in kappas
                if (trial := load_limited.attempt(problem, order, rules, theta, kappa, objective))
            ]
            return min(trials, key=lambda trial: trial.score, default=None)

        return load_limited.search_limit(problem, try_limit, self.horizon, self.sweep)

    def plan(self, problem: Problem, objective: Objective = "makespan") -> Plan:
        best = self.search(problem, objective)
        return Plan(
            load_limited.smallest_first(problem),
            best.gpus,
            np.zeros(len(problem.jobs)),
            [self._reason(problem, best, j) for j in range(len(problem.jobs))],
            {"theta": best.theta * problem.unit_s, "kappa": best.kappa, "fa_ffp": self.fa_ffp},
        )

    def _reason(self, problem: Problem, best: Trial, j: int) -> str:
        job = problem.jobs[j]
        limit = f"under the load limit {best.theta * problem.unit_s:.4g} s a GPU"
        if job.gpus <= best.kappa:
            return (
                f"FA-FFP: {job.gpus} GPUs is at most kappa = {best.kappa}, so it is {_WORDS[self.fa_ffp]}"
                f" {limit}"
            )
        return (
            f"LBSGF: {job.gpus} GPUs is above kappa = {best.kappa}, so it gets the least loaded GPUs of the"
            f" least busy servers that hold {self.spread:g} x {job.gpus} GPUs, {limit}"
        )
