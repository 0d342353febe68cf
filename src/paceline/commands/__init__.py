"""The commands, one module each; none imports an engine before it runs."""

from collections.abc import Callable
from typing import Any

from paceline.commands.bench import allreduce as bench_allreduce
from paceline.commands.cluster import from_nodes, from_ray, from_slurm
from paceline.commands.dashboard import dashboard as dashboard_command
from paceline.commands.doctor import doctor as doctor_command
from paceline.commands.drill import drill as drill_command
from paceline.commands.metrics import alerts, grafana, listed
from paceline.commands.models import models as models_command
from paceline.commands.plan import plan as plan_command
from paceline.commands.profile import profile as profile_command
from paceline.commands.report import report as report_command
from paceline.commands.reproduce import esa, fidelity, joint, live, sa_atp, sjf_bco
from paceline.commands.run import run as run_command
from paceline.commands.simulate import simulate as simulate_command
from paceline.commands.status import logs as logs_command
from paceline.commands.status import status as status_command
from paceline.commands.steer import add as add_command
from paceline.commands.steer import cancel as cancel_command
from paceline.commands.steer import pause as pause_command
from paceline.commands.steer import priority as priority_command
from paceline.commands.steer import unpause as unpause_command
from paceline.commands.switch import switch as switch_command
from paceline.commands.top import top as top_command
from paceline.commands.verify import verify as verify_command
from paceline.commands.why import why as why_command

COMMANDS: dict[str, Callable[..., Any]] = {
    "simulate": simulate_command,
    "plan": plan_command,
    "models": models_command,
    "profile": profile_command,
    "run": run_command,
    "switch": switch_command,
    "dashboard": dashboard_command,
    "doctor": doctor_command,
    "status": status_command,
    "logs": logs_command,
    "top": top_command,
    "why": why_command,
    "report": report_command,
    "cancel": cancel_command,
    "priority": priority_command,
    "pause": pause_command,
    "unpause": unpause_command,
    "add": add_command,
    "verify": verify_command,
    "drill": drill_command,
}
PANELS = {
    "Look ahead": ("simulate", "plan", "models", "profile", "cluster"),
    "Run": ("run", "switch", "dashboard", "doctor"),
    "See a run, and steer it": (
        "status", "logs", "top", "why", "report", "cancel", "priority", "pause", "unpause", "add", "metrics",
    ),
    "Check and measure": ("verify", "drill", "reproduce", "bench"),
}  # fmt: skip
"""The headings of `paceline --help`."""
REPRODUCTIONS: dict[str, Callable[..., Any]] = {
    "esa": esa,
    "fidelity": fidelity,
    "joint": joint,
    "live": live,
    "sa-atp": sa_atp,
    "sjf-bco": sjf_bco,
}
BENCHMARKS: dict[str, Callable[..., Any]] = {
    "allreduce": bench_allreduce,
}
METRICS: dict[str, Callable[..., Any]] = {
    "alerts": alerts,
    "grafana": grafana,
    "list": listed,
}
CLUSTERS: dict[str, Callable[..., Any]] = {
    "from-nodes": from_nodes,
    "from-ray": from_ray,
    "from-slurm": from_slurm,
}
