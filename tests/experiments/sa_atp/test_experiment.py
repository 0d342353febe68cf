"""The SA-ATP experiment on a few small points: files, keys, bounds, and the direction of the claim."""

import csv
import json
from pathlib import Path

import pytest

from paceline.experiments.sa_atp import experiment as sa_atp
from paceline.experiments.sa_atp.points import (
    VARIANTS,
    SaAtpPoint,
    all_points,
    bounds_s,
    compute_s_of,
    run_point,
    send_s_of,
    tuned,
)
from paceline.experiments.sweep import Sweep

SCALE = 64


def points() -> list[SaAtpPoint]:
    """Every pattern once; the workloads are a sixty-fourth of the real ones."""
    made = [
        SaAtpPoint("one slow", "resnet50", 8, factor, 0.0, policy, mode, 2, SCALE)
        for factor in (2.5, 4.0)
        for policy, mode in VARIANTS
    ]
    made += [SaAtpPoint("spells", "resnet50", 8, 2.5, 0.1, "atp", mode, 4, SCALE) for mode in ("off", "both")]
    made += [
        SaAtpPoint("traffic from", "resnet50", 8, 1.0, 0.0, "atp", mode, 2, SCALE)
        for mode in ("off", "custody")
    ]
    made += [SaAtpPoint("nobody", "resnet50", 8, 1.0, 0.0, "atp", mode, 2, SCALE) for mode in ("off", "both")]
    made += [
        SaAtpPoint("four jobs", "resnet50", 4, 4.0, 0.0, policy, mode, 2, SCALE)
        for policy in ("atp", "esa")
        for mode in ("off", "custody")
    ]
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whole reproduction, in this process."""
    out = tmp_path_factory.mktemp("sa-atp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sa_atp, "all_points", lambda quick: points())
        sa_atp.reproduce(out, quick=True, sweep=Sweep(processes=1))
    return out


def rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "rows.csv").read_text().splitlines()))


def test_the_summary_has_what_scripts_read(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    assert list(summary) == [
        "iteration_cut_n8_f2.5",
        "iteration_cut_n8_f4",
        "training_speedup_best",
        "bound_ratio_n8_min",
        "other_jobs_jct_gain",
        "idle_cost",
    ]
    for entry in summary.values():
        assert set(entry) == {"paper", "ours", "setting"}
    assert summary["iteration_cut_n8_f4"]["paper"] == 0.57
    assert summary["training_speedup_best"]["paper"] == 1.8


def test_help_cuts_the_iteration_and_nobody_passes_the_bound_but_who_leaves_out(folder: Path) -> None:
    for row in rows(folder):
        assert row["failed"] == "", row
        if row["pattern"] != "four jobs" and row["straggler"] not in ("backup", "timeout"):
            assert float(row["bound_ratio"]) <= 1.0
    by_mode = {
        (row["policy"], row["straggler"]): float(row["iteration_ms"])
        for row in rows(folder)
        if row["pattern"] == "one slow" and row["factor"] == "4.0"
    }
    assert by_mode["atp", "both"] < 0.6 * by_mode["atp", "off"]
    assert by_mode["atp", "takeover"] < 0.6 * by_mode["atp", "off"]
    assert by_mode["atp", "custody"] == pytest.approx(by_mode["atp", "off"], rel=0.1)


def test_who_leaves_out_is_marked_in_every_row(folder: Path) -> None:
    for row in rows(folder):
        inexact = row["straggler"] in ("backup", "timeout")
        assert row["sums"].startswith("INEXACT") == inexact, row


def test_the_page_stands_alone_and_says_what_is_ours(folder: Path) -> None:
    page = (folder / "index.html").read_text()
    for word in ("INEXACT", "takeover bound", "Ours:", "backup workers"):
        assert word in page


def test_bounds_are_the_formulas() -> None:
    point = SaAtpPoint("one slow", "vgg16", 8, 2.5, 0.0, "atp", "both", 3, 1)
    custody_s, takeover_s = bounds_s(point)
    assert custody_s == pytest.approx(2.5 * compute_s_of("vgg16") + send_s_of("vgg16"))
    assert takeover_s == pytest.approx(8 * compute_s_of("vgg16") / 7.4)
    assert send_s_of("vgg16") == pytest.approx(138_357_544 * 4 * 8 / 200e9, rel=0.02)


def test_bounds_with_spells_lie_between_nobody_and_everybody_slow() -> None:
    compute_s = compute_s_of("resnet50")
    for chance in (0.0, 0.1, 0.99):
        point = SaAtpPoint("spells", "resnet50", 8, 2.5, chance, "atp", "both", 12, 1)
        custody_s, takeover_s = bounds_s(point)
        assert compute_s * 0.999 <= takeover_s <= custody_s
        assert custody_s <= 2.5 * compute_s + send_s_of("resnet50")
    assert bounds_s(SaAtpPoint("spells", "resnet50", 8, 2.5, 0.0, "atp", "both", 4, 1))[1] == pytest.approx(
        compute_s
    )


def test_the_full_experiment_covers_what_was_asked() -> None:
    full = all_points(quick=False)
    slow = {(p.model, p.workers, p.factor) for p in full if p.pattern == "one slow"}
    assert slow == {
        (m, n, f) for m in ("vgg16", "resnet50", "bert-base") for n in (4, 8, 16) for f in (1.5, 2, 2.5, 4)
    }
    assert {p.chance for p in full if p.pattern == "spells"} >= {0.02, 0.16}
    assert {p.pattern for p in full} == {
        "one slow",
        "spells",
        "traffic to",
        "traffic from",
        "nobody",
        "four jobs",
    }
    assert tuned.cache_info().maxsize is None


LATE = [
    SaAtpPoint("spells", "resnet50", 8, 2.5, 0.16, "atp", "both", 24, 16),
    SaAtpPoint("traffic to", "bert-base", 8, 1.0, 0.0, "atp", "both", 8, 16),
    SaAtpPoint("traffic to", "vgg16", 8, 1.0, 0.0, "atp", "takeover", 8, 16),
]


@pytest.mark.parametrize("point", LATE, ids=lambda point: f"{point.pattern} {point.model}")
def test_help_comes_near_its_bound_whatever_makes_a_worker_late(point: SaAtpPoint) -> None:
    row = run_point(point)
    assert row["bound_ratio"] > 0.93
    assert row["failed"] is None
