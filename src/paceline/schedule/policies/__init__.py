"""Scheduling policies behind one protocol: `policy.plan(problem, objective)` gives a plan or a schedule.

A policy that decides everything beforehand returns a `Plan`; one that decides as time passes (it preempts,
or looks at who runs now) drives a `Timeline` and returns the `Schedule` itself. `online` says that the
policy never looks at jobs that have not arrived, so it needs no re-planning when jobs arrive over time.
"""

from collections.abc import Callable
from typing import Protocol

from paceline import plugins
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


CAP_S = 60.0
"""The longest that a policy searches, unless somebody asks for another time."""


def by_name(
    name: str,
    *,
    seed: int = 0,
    budget_s: float | None = CAP_S,
    work: int | None = None,
    no_later: float | None = None,
) -> Policy:
    """The policy of that name; `work` evaluations for those that search, and at most `budget_s` by the clock.

    `no_later`: for bco-plus, how many times as late as under first fit a job may end.
    """
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
        "bco-plus": lambda: BcoPlus(seed=seed, budget_s=budget_s, evaluations=work, no_later=no_later),
        "ls": ListScheduling,
        "ff": FirstFit,
        "rand": lambda: Random(seed=seed),
        "lwf-kappa": LwfKappa,
        "tiresias": Tiresias,
        "exact": lambda: Exact(budget_s=max(60.0, budget_s or 0.0)),
    }
    if plugins.is_plugin(name, plugins.SCHEDULING):
        made: Policy = plugins.make(
            name, plugins.SCHEDULING, ("name", "online", "plan"), seed=seed, budget_s=budget_s, work=work
        )
        return made
    if name not in makers:
        names = ", ".join([*makers, *plugins.known(plugins.SCHEDULING)])
        raise UserError(
            f"there is no policy {name!r}; known: {names}, all; your own: module:Class", place="--policy"
        )
    return makers[name]()
