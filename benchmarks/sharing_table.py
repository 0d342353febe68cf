"""What was measured by `benchmarks.sharing`, kept in a file over several calls, and the table that is made of it.

Runs of one setting are pooled, ours and Gloo's alike: a job's rate is that of all its runs. The file holds every step
of every run, so that a table can be made again, and judged by another rule.
"""

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.sharing_run import Measured, Setting

COLLAPSED = 10.0
"""A step of so many medians is a collapse."""
LEAST_OVER_GLOO = {200e6: 1.5, 1e9: 1.2}
"""What is aimed at, by rate, for policies that release early."""
WORST_MOST = 3.0
JAIN_LEAST = 0.95
ERROR_MOST = 0.15
EARLY = ("esa", "esa-plus")


@dataclass
class Records:
    """Runs of each setting, and what the simulator said, by the setting's name."""

    runs: dict[str, list[Measured]] = field(default_factory=dict)
    settings: dict[str, Setting] = field(default_factory=dict)
    simulated: dict[str, float] = field(default_factory=dict)

    def add(self, setting: Setting, measured: Measured) -> None:
        self.settings[setting.name] = setting
        self.runs.setdefault(setting.name, []).append(measured)

    def beside(self, gloo: Setting) -> int:
        """How many runs were measured that are compared with these of Gloo."""
        like = [name for name, s in self.settings.items() if s != gloo and s.like_gloo().name == gloo.name]
        return sum(len(self.runs[name]) for name in like)

    def save(self, path: Path) -> None:
        document = {
            "runs": [
                {"name": name, "setting": asdict(self.settings[name]), "measured": asdict(run)}
                for name, runs in self.runs.items()
                for run in runs
            ],
            "simulated": self.simulated,
        }
        path.write_text(json.dumps(document, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Records":
        """What earlier calls wrote; nothing if the file is not there."""
        records = cls()
        if path.exists():
            document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            for run in document["runs"]:
                records.add(Setting(**run["setting"]), Measured(**run["measured"]))
            records.simulated.update(document["simulated"])
        return records

    def rows(self, order: Iterable[Setting]) -> "list[Row]":
        """A line for each setting that was measured together with Gloo."""
        made = []
        for setting in order:
            ours, gloo = self.runs.get(setting.name, []), self.runs.get(setting.like_gloo().name, [])
            if ours and gloo:
                made.append(judge(self.settings[setting.name], ours, gloo, self.simulated.get(setting.name)))
        return made


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    setting: Setting
    runs: int
    gloo_runs: int
    step_s: float
    gloo_s: float
    median_s: float
    worst: float
    over_gloo: float
    least_over_gloo: float
    jain: float
    line: float
    fallback: float
    cores: float
    wrong: int
    simulated_s: float | None

    @property
    def error(self) -> float | None:
        return None if self.simulated_s is None else self.simulated_s / self.step_s - 1.0


def _job_means(runs: list[Measured]) -> list[float]:
    """Seconds a step of each job, over all of its runs."""
    return [statistics.mean(s for run in runs for s in run.steps[job]) for job in range(len(runs[0].steps))]


def _jain(steps: list[list[float]]) -> float:
    rates = [1.0 / statistics.mean(of_job) for of_job in steps]
    return sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates))


def judge(setting: Setting, ours: list[Measured], gloo: list[Measured], simulated_s: float | None) -> Row:
    """From what was measured to a line of the table.

    Rates are over all steps, the first ones included, of ours and of Gloo's. `least` is the worst job of any one run;
    fairness is that of the least fair run.
    """
    gloo_rate = statistics.mean(1.0 / mean for mean in _job_means(gloo))
    rates = [1.0 / mean for mean in _job_means(ours)]
    each = [of_job for run in ours for of_job in run.steps]
    bits = 8.0 * setting.gradient_bytes * setting.jobs
    return Row(
        setting,
        len(ours),
        len(gloo),
        statistics.mean(statistics.mean(of_job) for of_job in each),
        statistics.mean(_job_means(gloo)),
        statistics.mean(statistics.median(of_job) for of_job in each),
        max(max(of_job) / statistics.median(of_job) for of_job in each),
        statistics.mean(rates) / gloo_rate,
        min(1.0 / statistics.mean(of_job) for of_job in each) / gloo_rate,
        min(_jain(run.steps) for run in ours),
        statistics.mean(
            bits * len(run.steps[0]) / setting.rate_bps / max(sum(of_job) for of_job in run.steps)
            for run in ours
        ),
        statistics.mean(run.fallback for run in ours),
        statistics.mean(run.cores for run in ours),
        sum(run.wrong for run in (*ours, *gloo)),
        simulated_s,
    )


def misses(row: Row, switchml: Row | None) -> list[str]:
    """What a line misses of the targets, in words; `switchml`: the line of static pools with the same memory."""
    missed = []
    setting = row.setting
    if row.wrong:
        missed.append(f"{row.wrong} wrong numbers")
    if row.worst > COLLAPSED:
        missed.append(f"collapse: a step of {row.worst:.1f} medians")
    if row.error is not None and abs(row.error) > ERROR_MOST:
        missed.append(f"simulated {row.error:+.0%}")
    if setting.policy not in EARLY:
        return missed
    aim = LEAST_OVER_GLOO.get(setting.rate_bps, 1.0)
    if setting.jobs > 1 and row.over_gloo < aim:
        missed.append(f"{row.over_gloo:.2f} of {aim} times Gloo")
    if row.least_over_gloo < 1.0:
        missed.append(f"a job at {row.least_over_gloo:.2f} times Gloo")
    if COLLAPSED >= row.worst > WORST_MOST:
        missed.append(f"worst step of {row.worst:.1f} medians")
    if row.jain < JAIN_LEAST:
        missed.append(f"Jain {row.jain:.3f}")
    if switchml is not None and row.step_s > switchml.step_s / 0.97:
        missed.append(f"{switchml.step_s / row.step_s:.2f} times switchml")
    return missed


HEAD = (
    f"{'':52s} {'s/step':>7s} {'median':>6s} {'worst':>6s} {'x Gloo':>7s} {'least':>6s} {'Jain':>6s} {'line':>6s} "
    f"{'fallbk':>7s} {'cores':>6s} {'runs':>6s}  simulated"
)


def show(row: Row) -> str:
    """A line for the terminal."""
    predicted = "" if row.simulated_s is None else f"{row.simulated_s:6.2f} ({row.error:+.0%})"
    wrong = f"  WRONG: {row.wrong} numbers" if row.wrong else ""
    return (
        f"{row.setting.name:52s} {row.step_s:7.2f} {row.median_s:6.2f} {row.worst:6.1f} "
        f"{row.over_gloo:7.2f} {row.least_over_gloo:6.2f} {row.jain:6.3f} {row.line:6.2f} "
        f"{row.fallback:7.1%} {row.cores:6.1f} {row.runs:>3d}/{row.gloo_runs:<2d}  {predicted}{wrong}"
    )


def markdown(rows: list[Row]) -> str:
    """The table for the documentation, and what it misses."""
    lines = [
        "| setting | s/step | Gloo | worst | x Gloo | least | Jain | line | fallback | cores | runs | simulated |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    pools = {
        (row.setting.jobs, row.setting.rate_bps, row.setting.memory): row
        for row in rows
        if row.setting.policy == "switchml" and not row.setting.loss
    }
    missed = []
    for row in rows:
        predicted = "" if row.simulated_s is None else f"{row.simulated_s:.2f} ({row.error:+.0%})"
        lines.append(
            f"| {row.setting.name} | {row.step_s:.2f} | {row.gloo_s:.2f} | {row.worst:.1f} | {row.over_gloo:.2f} "
            f"| {row.least_over_gloo:.2f} | {row.jain:.3f} | {row.line:.2f} | {row.fallback:.1%} | {row.cores:.1f} "
            f"| {row.runs}/{row.gloo_runs} | {predicted} |"
        )
        pool = pools.get((row.setting.jobs, row.setting.rate_bps, row.setting.memory))
        if words := misses(row, None if row.setting.loss or row.setting.racks > 1 else pool):
            missed.append(f"- {row.setting.name}: {'; '.join(words)}")
    return "\n".join([*lines, "", "Missed:", "", *(missed or ["- nothing"])])
