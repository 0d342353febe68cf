"""The commands, one module each; none imports an engine before it runs."""

from collections.abc import Callable
from typing import Any

from paceline.commands.bench import allreduce as bench_allreduce
from paceline.commands.models import models as models_command
from paceline.commands.plan import plan as plan_command
from paceline.commands.report import report as report_command
from paceline.commands.reproduce_esa import esa as reproduce_esa
from paceline.commands.reproduce_joint import joint as reproduce_joint
from paceline.commands.reproduce_sa_atp import sa_atp as reproduce_sa_atp
from paceline.commands.reproduce_sjf_bco import sjf_bco as reproduce_sjf_bco
from paceline.commands.run import run as run_command
from paceline.commands.simulate import simulate as simulate_command
from paceline.commands.switch import switch as switch_command

COMMANDS: dict[str, Callable[..., Any]] = {
    "models": models_command,
    "plan": plan_command,
    "report": report_command,
    "run": run_command,
    "simulate": simulate_command,
    "switch": switch_command,
}
REPRODUCTIONS: dict[str, Callable[..., Any]] = {
    "esa": reproduce_esa,
    "joint": reproduce_joint,
    "sa-atp": reproduce_sa_atp,
    "sjf-bco": reproduce_sjf_bco,
}
BENCHMARKS: dict[str, Callable[..., Any]] = {
    "allreduce": bench_allreduce,
}
