"""The tables of docs/sa-atp.md, from a finished run:

python -m paceline.experiments.sa_atp.figures out/sa-atp docs/sa-atp.md

rewrites what is between the page's two markers.
"""

import csv
import json
import sys
from pathlib import Path

from paceline.experiments.sweep.harness import put_tables

BEGIN = "<!-- figures: sa-atp -->"
_NAMES = {
    "iteration_cut_n8_f2.5": "iteration time cut, N = 8, f = 2.5",
    "iteration_cut_n8_f4": "iteration time cut, N = 8, f = 4",
    "training_speedup_best": "training, times as fast, at best",
    "bound_ratio_n8_min": "takeover's bound over our time, N = 8, at worst",
    "other_jobs_jct_gain": "other jobs' JCT, times better with custody",
    "idle_cost": "cost when nobody straggles",
}
_MODES = (
    ("atp", "off"), ("esa", "off"), ("ring", "off"), ("atp", "custody"), ("atp", "takeover"), ("atp", "both"),
    ("atp", "backup"), ("atp", "timeout"),
)  # fmt: skip


def claims_table(folder: Path) -> str:
    """What was claimed, and what came out."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    lines = ["| figure | paper | ours | where |", "|---|---|---|---|"]
    for key, entry in summary.items():
        paper = "-" if entry["paper"] is None else f"{entry['paper']:g}"
        lines.append(f"| {_NAMES[key]} | {paper} | {entry['ours']} | {entry['setting']} |")
    return "\n".join(lines)


def times_table(folder: Path) -> str:
    """Iteration times of eight workers, one slow; then spells and contended links."""
    rows = list(csv.DictReader((folder / "rows.csv").read_text(encoding="utf-8").splitlines()))
    by_setting: dict[str, dict[tuple[str, str], dict[str, str]]] = {}
    for row in rows:
        if row["workers"] == "8" and row["pattern"] not in ("four jobs", "nobody"):
            by_setting.setdefault(row["setting"], {})[row["policy"], row["straggler"]] = row
    head = ["ms an iteration", "atp", "esa", "ring", "custody", "takeover", "both", "backup*", "timeout*"]
    lines = [
        "| " + " | ".join([*head, "C_s + G/B_s", "takeover bound", "ratio of both"]) + " |",
        "|" + "---|" * (len(head) + 3),
    ]
    for setting, found in by_setting.items():
        cells = [_ms(found.get(mode), "iteration_ms") for mode in _MODES]
        both = found[("atp", "both")]
        ratio = both["bound_ratio"]
        ends = [
            _ms(both, "bound_custody_ms"),
            _ms(both, "bound_takeover_ms"),
            f"{float(ratio):.3f}" if ratio else "-",
        ]
        lines.append("| " + " | ".join([setting, *cells, *ends]) + " |")
    return "\n".join(lines) + "\n\n\\* INEXACT: the slow worker's contributions are left out."


def _ms(row: dict[str, str] | None, key: str) -> str:
    return f"{float(row[key]):.1f}" if row and row[key] else "-"


def write(folder: Path, page: Path) -> None:
    """Put the tables into the page."""
    put_tables(page, BEGIN, claims_table(folder), times_table(folder))


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
