"""Scheduling policies behind one protocol: `policy.plan(problem, objective)` gives a plan or a schedule.

A policy that decides everything beforehand returns a `Plan`; one that decides as time passes (it preempts,
or looks at who runs now) drives a `Timeline` and returns the `Schedule` itself. `online` says that the
policy never looks at jobs that have not arrived, so it needs no re-planning when jobs arrive over time.
"""

from collections.abc import Callable
from typing import Protocol

from paceline.errors import UserError
from paceline.schedule.model import Problem
from paceline.schedule.plan import Objective, Plan, Schedule


class Policy(Protocol):
    """What every policy offers."""

    @property
    def name(self) -> str: ...

    @property
    def online(self) -> bool: ...

    def plan(self, problem: Problem, objective: Objective) -> Plan | Schedule: ...


NAMES = ("sjf-bco", "bco-plus", "ls", "ff", "rand", "lwf-kappa", "tiresias")
"""What `all` stands for; `exact` is asked for by name, being for small cases only."""


def by_name(name: str, *, seed: int = 0, budget_s: float = 2.0) -> Policy:
    """The policy of that name at its default settings."""
    from paceline.schedule.exact import Exact
    from paceline.schedule.policies.bco_plus import BcoPlus
    from paceline.schedule.policies.first_fit import FirstFit
    from paceline.schedule.policies.list_scheduling import ListScheduling
    from paceline.schedule.policies.lwf import LwfKappa
    from paceline.schedule.policies.random import Random
    from paceline.schedule.policies.sjf_bco import SjfBco
    from paceline.schedule.policies.tiresias import Tiresias

    makers: dict[str, Callable[[], Policy]] = {
        "sjf-bco": SjfBco,
        "sjf-bco-printed": lambda: SjfBco(fa_ffp="printed"),
        "sjf-bco-one-server": lambda: SjfBco(fa_ffp="one-server"),
        "bco-plus": lambda: BcoPlus(seed=seed, budget_s=budget_s),
        "ls": ListScheduling,
        "ff": FirstFit,
        "rand": lambda: Random(seed=seed),
        "lwf-kappa": LwfKappa,
        "tiresias": Tiresias,
        "exact": lambda: Exact(budget_s=max(60.0, budget_s)),
    }
    if name not in makers:
        raise UserError(f"there is no policy {name!r}; known: {', '.join(makers)}, all", place="--policy")
    return makers[name]()
