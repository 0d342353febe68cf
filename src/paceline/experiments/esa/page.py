"""The page of the ESA experiment: claims, every workload beside its ceiling, what each part is worth alone and last."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.experiments.esa.points import ALONE, BARE, CEILING, LAST, ON_TOP
from paceline.experiments.esa.workloads import bdp_slots
from paceline.generated import table
from paceline.report.chart import Chart
from paceline.report.page import Page

Row = dict[str, Any]

_ORDER = ("esa-plus", "esa", "always-preempt", "coin-flip", "never", "atp", "switchml", "ring", "ps")
_TITLES = {
    "like": "Jobs of a kind",
    "ratio": "Communication over computation",
    "workers": "Workers a job",
    "skewed": "One slow uplink a job",
    "lengths": "Jobs of different lengths",
    "server": "One server for all jobs",
    "racks": "Four racks",
    "loss": "Loss",
}
_NAMES = {
    "esa": "ESA",
    "esa_plus": "ESA-plus",
    "atp": "ATP",
    "switchml": "SwitchML",
    "always_preempt": "always-preempt",
    "always": "always-preempt",
    "coin_flip": "coin-flip",
    "never": "never",
    "ring": "ring all-reduce",
    "ps": "a parameter server",
}


def claim(key: str) -> str:
    """A key of the summary in words."""
    if "_over_" not in key:
        return {
            "priority_gain_short_jobs": "short jobs, with priorities over equal ones, at best",
            "ceiling_share_mean": "share of the ceiling that ESA-plus reaches, mean",
        }[key]
    better, rest = key.split("_over_")
    other, end = rest.rsplit("_", 1)
    return f"{_NAMES[better]} over {_NAMES[other]}, at {end}"


def write_page(
    path: Path, rows: Sequence[Row], pairs: Sequence[Row], summary: dict[str, Row], quick: bool
) -> None:
    """One self-contained file."""
    mode = (
        "quick: smaller models, few workloads, two seeds, a short search"
        if quick
        else "two seeds a workload, twelve with loss"
    )
    page = Page(
        "ESA: switch memory shared by preemption and priority",
        f"Average job completion time, every policy at its best settings at every workload ({mode}).",
    )
    page.heading("Claim and measurement")
    page.table(
        ["average JCT, times better", "paper", "ours", "where"],
        [[claim(key), entry["paper"], entry["ours"], entry["setting"]] for key, entry in summary.items()],
    )
    page.text(
        "The paper's abstract says up to 1.35 and names no baseline, simulator or topology: its figure stands beside "
        "the best of ours for want of anything better to compare."
    )
    for sweep, title in _TITLES.items():
        part = [pair for pair in pairs if pair["sweep"] == sweep]
        if part:
            page.heading(title)
            page.figure(_figure([row for row in rows if row["sweep"] == sweep]), "Average completion time.")
            page.table(*_others(part))
    page.heading("What each part is worth")
    page.text(
        "Early release: never over ATP. Preemption: always-preempt over never. Then each part alone (ESA-plus without "
        "any rule over it with this one) and last (ESA-plus without it over ESA-plus), all with ESA-plus's settings. "
        "Above 1 it helps. Urgent layers first is the hosts' own order of sending, which no policy has above."
    )
    page.table(*_parts(pairs))
    page.heading("Priority and short jobs")
    page.table(*_short_jobs(pairs))
    page.heading("What is the paper's, what is ours")
    page.items(_OURS)
    page.heading("All rows")
    columns = ["sweep", "setting", "policy", "avg_jct_ms", "short_jct_ms", "utilisation", "preemptions"]
    columns += ["fallbacks", "reminders", "resent", "settings", "at_edge"]
    page.table(columns, [[row[column] for column in columns] for row in rows])
    page.write(path)


_OURS = [
    "The paper's (abstract): aggregators sit idle while they wait for synchronisation; allocate them preemptively and "
    "schedule them by priority in the data plane; average JCT up to 1.35 times better.",
    "Ours in ESA, since no code or mechanism was to be had: the swap on a higher priority, the downgrade on a failed "
    "try, reminders and pulls, the formula of the priority, results multicast by the switch, and all parameters here.",
    "Ours in ESA-plus: the loser's mark and the rest of a split chunk, preemption weighed by its cost, priority on "
    "links where jobs meet, answers by the switch to those whose contribution was lost.",
    "ATP and SwitchML follow their public implementations. Ours in ATP: an aggregator untouched for 10 ms may be "
    "taken. Ours in SwitchML: a slot remembers its chunk, which makes it exact under reordering. Strawmen: never "
    "takes no aggregator, always-preempt takes it every time, coin-flip every second time.",
    f"One bandwidth-delay product (BDP) is {bdp_slots()} aggregators a job. The ceiling is the better of ESA-plus "
    "and SwitchML on a switch of unlimited memory.",
    "The next forward pass of a layer waits for that layer's result alone, but where a workload says ddp: there it "
    "waits for all.",
    "Tuning: window, window rule, timers, reordering, recovery, copies of results and the custodians' patience, from "
    "coarse to fine, with a seed that is not measured; the column at_edge names settings at a physical limit. "
    "What was found for ESA-plus and always-preempt is tried by esa, never and coin-flip as well, beside a coarse grid "
    "of their own; variants of ESA-plus have its settings.",
]


def _others(pairs: Sequence[Row]) -> tuple[list[str], list[list[object]]]:
    others = [policy for policy in _ORDER if policy != "esa-plus"]
    present = [name for name in others if any(pair.get(f"{name} / esa-plus") is not None for pair in pairs)]
    return ["workload", *[f"{name} / esa-plus" for name in present], "ceiling / esa-plus"], [
        [pair["setting"], *[pair.get(f"{name} / esa-plus") for name in (*present, CEILING)]] for pair in pairs
    ]


def _parts(pairs: Sequence[Row]) -> tuple[list[str], list[list[object]]]:
    alone = [variant.name for variant in ALONE]
    last = [variant.name for variant in LAST]
    columns = ["workload", "early release", "preemption", *alone, *last, ON_TOP.name]
    return columns, [
        [
            pair["setting"],
            _ratio(pair, "atp", "never"),
            _ratio(pair, "never", "always-preempt"),
            *[_ratio(pair, BARE.name, name) for name in alone],
            *[pair.get(f"{name} / esa-plus") for name in last],
            _ratio(pair, "esa-plus", ON_TOP.name),
        ]
        for pair in pairs
    ]


def _short_jobs(pairs: Sequence[Row]) -> tuple[list[str], list[list[object]]]:
    short, average = "short jobs, priorities equal / esa-plus", "priorities equal / esa-plus"
    columns = ["workload", "short jobs: equal priorities / ESA-plus", "all jobs: equal priorities / ESA-plus"]
    return columns, [
        [pair["setting"], pair[short], pair[average]] for pair in pairs if pair[short] is not None
    ]


def write_tables(path: Path, rows: Sequence[Row], pairs: Sequence[Row], summary: dict[str, Row]) -> None:
    """The page's tables as Markdown, for documents; best and worst of ours in whole, and what stands at a limit."""
    times = {row["setting"]: row["avg_jct_ms"] for row in rows if row["policy"] == "esa-plus"}
    columns, others = _others(pairs)
    everyone = [[line[0], times[str(line[0])], *line[1:]] for line in others]
    edges = [[row["setting"], row["policy"], row["at_edge"]] for row in rows if row["at_edge"]]
    parts = {
        "claims": (
            ["average JCT, times better", "paper", "ours", "where"],
            [[claim(key), entry["paper"], entry["ours"], entry["setting"]] for key, entry in summary.items()],
        ),
        "workloads": ([columns[0], "ESA-plus, ms", *columns[1:]], everyone),
        "parts": _parts(pairs),
        "short jobs": _short_jobs(pairs),
        "settings at a physical limit": (["workload", "policy", "setting"], edges),
    }
    texts = [
        f"## {name}\n\n{table(head, [[_shown(cell) for cell in line] for line in lines])}\n"
        for name, (head, lines) in parts.items()
    ]
    path.write_text("\n".join(texts), encoding="utf-8")


def _shown(cell: object) -> str:
    if cell is None:
        return "-"
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)


def _ratio(pair: Row, slower: str, quicker: str) -> float | None:
    above, below = pair.get(slower), pair.get(quicker)
    return None if above is None or below is None else above / below


def _figure(rows: Sequence[Row]) -> Chart:
    chart = Chart("average JCT", y="ms")
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    for policy in (*_ORDER, CEILING):
        times = {row["setting"]: row["avg_jct_ms"] for row in rows if row["policy"] == policy}
        chart.bars(policy, settings, [times.get(setting) for setting in settings])
    return chart
