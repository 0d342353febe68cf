"""The speed table of the live data plane: all_reduce through the `paceline` backend, and Gloo's, in one run.

Each line is one run of `paceline bench allreduce` with both backends taking turns; the target is a ratio. The lines
with limited links need root, and are left out without.

    python -m benchmarks.allreduce [--only NAME ...] [--json FILE|-] [--repeat N]
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.allreduce_simulated import simulated_s
from paceline.bench.measurement import OURS, PEER, MeasuredRow, Measurement, Outcome
from paceline.bench.processes import ChildError
from paceline.bench.run import run
from paceline.units import format_size

MB = 1_000_000
LARGE = (25 * MB, 100 * MB)
BOTH = (OURS, PEER)
LINKS = Measurement(workers=8, sizes=LARGE, backends=BOTH, rate_bps=200e6)
HOST = Measurement(workers=4, sizes=(4, 100 * MB), backends=BOTH)

SETTINGS = {
    "8 workers, 200 Mbit/s": LINKS,
    "4 workers, 200 Mbit/s": replace(LINKS, workers=4),
    "8 workers, 200 Mbit/s, 1 % loss": replace(LINKS, backends=(OURS,), loss=0.01),
    "2 workers, 200 Mbit/s, busy main thread": replace(
        LINKS, workers=2, sizes=LARGE[:1], backends=(OURS,), spin=True
    ),
    "4 workers, one host, shared memory": HOST,
    "4 workers, one host, UDP": replace(HOST, host_reduce=False),
}


@dataclass(frozen=True)
class Target:
    """A ratio that a line of the table should reach."""

    setting: str
    size_bytes: int
    what: str
    at_least: float
    measure: Callable[[dict[str, Outcome], "Target"], float | None]


def _to_peer(outcomes: dict[str, Outcome], target: Target) -> float | None:
    return outcomes[target.setting].ratio_to_peer().get(target.size_bytes)


def _to_line(outcomes: dict[str, Outcome], target: Target) -> float | None:
    return outcomes[target.setting].ratio_to_line().get(target.size_bytes)


def _spinning(outcomes: dict[str, Outcome], target: Target) -> float | None:
    return outcomes[target.setting].ratio_spinning().get(target.size_bytes)


def _to_lossless(outcomes: dict[str, Outcome], target: Target) -> float | None:
    lossless = outcomes.get(target.setting.removesuffix(", 1 % loss"))
    clean = lossless.time_us(OURS, target.size_bytes) if lossless else None
    lossy = outcomes[target.setting].time_us(OURS, target.size_bytes)
    return clean / lossy if clean and lossy else None


TARGETS = [
    *(Target("8 workers, 200 Mbit/s", size, "times Gloo's algbw", 1.6, _to_peer) for size in LARGE),
    *(Target("8 workers, 200 Mbit/s", size, "of the line", 0.9, _to_line) for size in LARGE),
    *(Target("4 workers, 200 Mbit/s", size, "times Gloo's algbw", 1.4, _to_peer) for size in LARGE),
    *(
        Target("8 workers, 200 Mbit/s, 1 % loss", size, "of the speed without", 0.7, _to_lossless)
        for size in LARGE
    ),
    Target("2 workers, 200 Mbit/s, busy main thread", LARGE[0], "of the speed without", 0.9, _spinning),
    Target("4 workers, one host, shared memory", LARGE[1], "times Gloo's algbw", 1.5, _to_peer),
    Target("4 workers, one host, shared memory", 4, "times Gloo's speed", 2.0, _to_peer),
    Target("4 workers, one host, UDP", LARGE[1], "times Gloo's algbw", 0.6, _to_peer),
    Target("4 workers, one host, UDP", 4, "times Gloo's speed", 2.0, _to_peer),
]


def measure(names: list[str], repeat: int, say: Callable[[str], None]) -> dict[str, Outcome]:
    """Run the plans, one after the other; one that fails is told and left out."""
    outcomes = {}
    for name in names:
        say(f"# {name}")

        def row_came(row: MeasuredRow) -> None:
            say(
                f"  {row.backend:<14} {format_size(row.size_bytes):>7} {row.time_us / 1e3:>10.2f} ms  wrong {row.wrong}"
            )

        started = time.perf_counter()
        try:
            outcomes[name] = run(replace(SETTINGS[name], repeat=repeat), row_came)
        except ChildError as error:
            say(f"  failed: {error}")
        say(f"  ({time.perf_counter() - started:.0f} s)")
    return outcomes


def table(outcomes: dict[str, Outcome]) -> list[dict[str, Any]]:
    """Each target beside what was measured."""
    rows = []
    for target in TARGETS:
        if target.setting not in outcomes:
            continue
        ratio = target.measure(outcomes, target)
        outcome = outcomes[target.setting]
        rows.append(
            {
                "setting": target.setting,
                "size_bytes": target.size_bytes,
                "ours_us": outcome.time_us(OURS, target.size_bytes),
                "gloo_us": outcome.time_us(PEER, target.size_bytes),
                "what": target.what,
                "ratio": ratio,
                "target": target.at_least,
                "reached": ratio is not None and ratio >= target.at_least,
            }
        )
    return rows


def simulated(outcomes: dict[str, Outcome]) -> list[dict[str, Any]]:
    """Simulated and measured time of the limited, loss-free settings."""
    rows = []
    for name, outcome in outcomes.items():
        if outcome.measurement.rate_bps is None or outcome.measurement.loss:
            continue
        for size in outcome.measurement.sizes:
            live_us = outcome.time_us(OURS, size)
            if live_us is not None:
                sim_us = simulated_s(outcome.measurement, size) * 1e6
                row = {"setting": name, "size_bytes": size, "simulated_us": sim_us, "live_us": live_us}
                rows.append({**row, "difference": live_us / sim_us - 1})
    return rows


def show(document: dict[str, Any]) -> None:
    """The tables, in Markdown."""
    print("| setting | size | ours | Gloo | ratio | | target | |\n|---|---|---|---|---|---|---|---|")
    for row in document["targets"]:
        gloo = f"{row['gloo_us'] / 1e3:.2f} ms" if row["gloo_us"] else ""
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
        print(
            f"| {row['setting']} | {format_size(row['size_bytes'])} | {row['ours_us'] / 1e3:.2f} ms | {gloo} "
            f"| **{ratio}** | {row['what']} | {row['target']} | {'yes' if row['reached'] else 'no'} |"
        )
    if document["simulated"]:
        print("\n| setting | size | simulated | live | difference |\n|---|---|---|---|---|")
    for row in document["simulated"]:
        print(
            f"| {row['setting']} | {format_size(row['size_bytes'])} | {row['simulated_us'] / 1e3:.1f} ms "
            f"| {row['live_us'] / 1e3:.1f} ms | {row['difference']:+.1%} |"
        )
    wrong = sum(row["wrong"] for run_ in document["runs"].values() for row in run_["rows"])
    print(f"\n{wrong} wrong elements.")


def main() -> None:
    parser = argparse.ArgumentParser(description="all_reduce beside Gloo: the whole speed table.")
    parser.add_argument(
        "--only", nargs="+", metavar="WORD", default=[], help="settings whose name has the word"
    )
    parser.add_argument("--json", metavar="FILE|-", help="write everything as JSON; - is stdout, alone")
    parser.add_argument("--repeat", type=int, default=0, help="repetitions; 0: by what a size costs")
    options = parser.parse_args()
    names = [name for name in SETTINGS if not options.only or any(word in name for word in options.only)]
    if os.geteuid() != 0:
        print("not root: the settings with limited links are left out", file=sys.stderr)
        names = [name for name in names if SETTINGS[name].rate_bps is None]
    outcomes = measure(names, options.repeat, lambda text: print(text, file=sys.stderr, flush=True))
    document = {
        "targets": table(outcomes),
        "simulated": simulated(outcomes),
        "runs": {name: outcome.to_json() for name, outcome in outcomes.items()},
    }
    if options.json == "-":
        print(json.dumps(document, indent=1))
        return
    if options.json:
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    show(document)


if __name__ == "__main__":
    main()
