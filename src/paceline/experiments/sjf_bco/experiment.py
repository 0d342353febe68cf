"""The SJF-BCO paper's experiment (arXiv 2207.07817, figures 4-7), repeated over many seeds.

The paper shows one draw; here each scheduler runs on the same draws, and the gaps are paired means with 95 %
bootstrap intervals. What the paper does not publish is swept: the size of the exchange beside the
computation, the form of time, and the load limit of FF. `DIR/summary.json` holds the comparison for scripts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.experiments.sjf_bco.points import FULL, QUICK, SERVERS, SjfBcoPoint, all_points, run_point
from paceline.experiments.sweep import HERE, Sweep, run_points, write_csv, write_summary

Rows = list[dict[str, Any]]

PAPER_MAKESPAN: dict[int, dict[str, float]] = {
    10: {"sjf-bco": 939, "ls": 1160, "ff": 1404, "rand": 1488},
    15: {"sjf-bco": 715, "ls": 870, "ff": 963, "rand": 1260},
    20: {"sjf-bco": 535, "ls": 595, "ff": 719, "rand": 1128},
}
PAPER_JCT: dict[str, float] = {"sjf-bco": 178, "ls": 187, "ff": 452, "rand": 261}
PAPER_KAPPA: dict[int, float] = {1: 626, 2: 564, 4: 541, 8: 535, 10: 700, 16: 749, 32: 736}
FINER = ("sjf-bco grid", "ls", "ff grid")


@dataclass(frozen=True)
class Mean:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float

    def percent(self) -> str:
        return f"{self.mean:.1%} ({self.low:.1%} to {self.high:.1%})"


def mean_of(values: Sequence[float]) -> Mean:
    """Mean with a percentile bootstrap interval; the resampling has a fixed seed."""
    data = np.asarray(values, dtype=np.float64)
    picks = np.random.default_rng(0).integers(len(data), size=(4000, len(data)))
    low, high = np.percentile(data[picks].mean(axis=1), [2.5, 97.5])
    return Mean(float(data.mean()), float(low), float(high))


def collect(listed: Sequence[SjfBcoPoint], sweep: Sweep = HERE) -> dict[str, Rows]:
    """Run the points; rows by kind."""
    results = run_points(run_point, listed, "reproduce sjf-bco", sweep)
    rows: dict[str, Rows] = {}
    for point, result in zip(listed, results, strict=True):
        rows.setdefault(point.kind, []).extend(result)
    return rows


def column(rows: Rows, key: str, keep: Callable[[dict[str, Any]], bool] = lambda row: True) -> list[float]:
    """One figure of the rows kept, in their order: by seed, so that columns pair."""
    return [row[key] for row in rows if keep(row)]


def main_column(rows: Rows, servers: int, policy: str, key: str = "makespan") -> list[float]:
    """A figure of one scheduler at one number of servers, by seed."""
    return column(rows, key, lambda row: row["servers"] == servers and row["policy"] == policy)


def paired_gap(ours: Sequence[float], theirs: Sequence[float]) -> Mean:
    """How much smaller ours is, seed by seed: 1 - ours / theirs."""
    return mean_of([1.0 - a / b for a, b in zip(ours, theirs, strict=True)])


def paper_gap(servers: int, other: str) -> float:
    return 1.0 - PAPER_MAKESPAN[servers]["sjf-bco"] / PAPER_MAKESPAN[servers][other]


def kappa_means(rows: Rows, servers: int) -> dict[int, float]:
    kappas = sorted({row["kappa"] for row in rows})
    return {
        kappa: float(
            np.mean(column(rows, "makespan", lambda r, k=kappa: r["kappa"] == k and r["servers"] == servers))  # type: ignore[misc]
        )
        for kappa in kappas
    }


def is_u_shape(rows: Rows, servers: int) -> bool:
    """The least mean lies inside the range, and both ends lie above it beyond the paired interval."""

    def at(kappa: int) -> list[float]:
        return column(rows, "makespan", lambda r: r["kappa"] == kappa and r["servers"] == servers)

    means = kappa_means(rows, servers)
    kappas = sorted(means)
    lowest = min(kappas, key=lambda kappa: means[kappa])
    if lowest in (kappas[0], kappas[-1]):
        return False
    excess = [
        mean_of([a - b for a, b in zip(at(end), at(lowest), strict=True)]) for end in (kappas[0], kappas[-1])
    ]
    return all(each.low > 0 for each in excess)


def summary(rows: dict[str, Rows]) -> dict[str, dict[str, Any]]:
    """`{paper, ours, setting}` for each comparison."""
    main, entries = rows["main"], {}
    seeds = len({row["seed"] for row in main})
    for other in ("ls", "ff"):
        for servers in SERVERS:
            ours = main_column(main, servers, "sjf-bco")
            gap = paired_gap(ours, main_column(main, servers, other))
            fine = paired_gap(
                main_column(main, servers, "sjf-bco grid"),
                main_column(main, servers, "ff grid" if other == "ff" else "ls"),
            )
            entries[f"makespan_gap_{other}_{servers}"] = {
                "paper": paper_gap(servers, other),
                "ours": gap.mean,
                "setting": f"paired mean of 1 - sjf-bco/{other} over {seeds} seeds, {servers} servers, the"
                f" paper's bisection of theta for both; 95 % interval {gap.low:.3f} to {gap.high:.3f}; with"
                f" the finer search of theta for both {fine.mean:.3f}",
            }
    for servers in SERVERS:
        means = {name: np.mean(main_column(main, servers, name)) for name in ("sjf-bco", "ls", "ff", "rand")}
        entries[f"makespan_order_{servers}"] = {
            "paper": ["sjf-bco", "ls", "ff", "rand"],
            "ours": sorted(means, key=lambda name: means[name]),
            "setting": f"mean makespans, {servers} servers: "
            + ", ".join(f"{name} {value:.0f}" for name, value in means.items())
            + "; with the finer search of theta: "
            + ", ".join(f"{name} {np.mean(main_column(main, servers, name)):.0f}" for name in FINER),
        }
    kappa_seeds = len({row["seed"] for row in rows["kappa"]})
    kappas = {servers: kappa_means(rows["kappa"], servers) for servers in SERVERS}
    entries["kappa_u_shape"] = {
        "paper": True,
        "ours": all(is_u_shape(rows["kappa"], servers) for servers in SERVERS),
        "setting": "least mean makespan strictly inside the kappas, both ends above it beyond the paired 95 %"
        " interval, at 10, 15 and 20 servers",
    }
    entries["kappa_makespans_20"] = {
        "paper": {str(kappa): value for kappa, value in PAPER_KAPPA.items()},
        "ours": {str(kappa): value for kappa, value in kappas[20].items()},
        "setting": f"mean over {kappa_seeds} seeds, 20 servers; kappa 8 and 10 are one plan, no job being between",
    }
    return entries | _our_entries(rows, seeds)


def _our_entries(rows: dict[str, Rows], seeds: int) -> dict[str, dict[str, Any]]:
    main, exact = rows["main"], rows["exact"]
    gaps = {servers: mean_of(main_column(main, servers, "bco-plus", "gap")) for servers in SERVERS}
    every = mean_of([gap for servers in SERVERS for gap in main_column(main, servers, "bco-plus", "gap")])
    worse = sum(
        plus > own
        for servers in SERVERS
        for name in ("sjf-bco", "sjf-bco grid")
        for plus, own in zip(
            main_column(main, servers, "bco-plus"), main_column(main, servers, name), strict=True
        )
    )
    excess = mean_of([row["bco-plus"] / row["exact"] - 1.0 for row in exact])
    holds = all(row["ratio_holds"] for row in exact) and all(
        row["ratio_holds"] for row in main if row["policy"].startswith("sjf-bco")
    )
    return {
        "bco_plus_gap_mean": {
            "paper": None,
            "ours": every.mean,
            "setting": f"gap to the best lower bound over {seeds} seeds at each of 10, 15 and 20 servers: "
            + ", ".join(f"{gap.mean:.4f} at {servers}" for servers, gap in gaps.items()),
        },
        "bco_plus_worse_than_sjf_bco": {
            "paper": None,
            "ours": worse,
            "setting": "cases in which bco-plus has the larger makespan, of all seeds and servers",
        },
        "exact_excess_mean": {
            "paper": None,
            "ours": excess.mean,
            "setting": f"bco-plus over the exact optimum, {len(exact)} small random cases,"
            f" {sum(row['proved'] for row in exact)} proved optimal; largest"
            f" {max(row['bco-plus'] / row['exact'] - 1.0 for row in exact):.4f}",
        },
        "approximation_ratio_holds": {
            "paper": True,
            "ours": holds,
            "setting": "sjf-bco against n_g*phi*u/l times the lower bound (all seeds) and the optimum (small"
            " cases)",
        },
    }


def reproduce(out: Path, quick: bool, sweep: Sweep = HERE) -> dict[str, dict[str, Any]]:
    """Run everything and write CSV, page and summary to `out`."""
    from paceline.experiments.sjf_bco.page import write_page

    size = QUICK if quick else FULL
    rows = collect(all_points(size), sweep)
    for kind, listed in rows.items():
        write_csv(out / f"{kind}.csv", listed)
    entries = summary(rows)
    write_summary(out, entries)
    write_page(out / "index.html", rows, entries, size)
    return entries
