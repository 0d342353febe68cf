"""The ESA experiment on two small workloads: files, keys, tuning, and the direction of the claim."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.experiments.esa import experiment as esa
from paceline.experiments.esa import points as esa_points
from paceline.experiments.esa.page import claim
from paceline.experiments.esa.points import ALONE, BARE, LAST, ON_TOP, EsaPoint, all_points
from paceline.experiments.esa.workloads import EsaWorkload, bdp_slots, full_list, quick_list
from paceline.experiments.sweep import Sweep

SCARCE = EsaWorkload("like", 0.25, 0.25, lengths=(2, 2), workers=4, size_bytes=200_000)
MIXED = EsaWorkload("lengths", 4, 4, lengths=(1, 4), workers=4, size_bytes=200_000)
PARTS = [variant.name for variant in (BARE, *ALONE, *LAST, ON_TOP)]


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whole reproduction over two workloads, in this process."""
    out = tmp_path_factory.mktemp("esa")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(esa, "all_points", lambda quick: [EsaPoint(w, True, (1,)) for w in (SCARCE, MIXED)])
        esa.reproduce(out, quick=True, sweep=Sweep(processes=1))
    return out


def test_the_summary_has_what_scripts_read(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    old = {f"esa_over_{other}_{end}" for other in ("atp", "switchml", "always_preempt", "coin_flip") for end in
           ("best", "worst")} | {"esa_over_ring_best", "esa_over_ps_best"}  # fmt: skip
    new = {
        "esa_plus_over_always_best", "esa_plus_over_always_worst", "esa_plus_over_esa_best",
        "esa_plus_over_switchml_worst", "esa_plus_over_atp_best", "priority_gain_short_jobs", "ceiling_share_mean",
    }  # fmt: skip
    assert old | new <= set(summary)
    for key, entry in summary.items():
        assert set(entry) == {"paper", "ours", "setting"}
        assert claim(key)
    assert summary["esa_over_atp_best"]["paper"] == 1.35
    assert summary["esa_over_atp_best"]["ours"] >= summary["esa_over_atp_worst"]["ours"]
    assert 0.5 < summary["ceiling_share_mean"]["ours"] < 1.2


def test_scarce_memory_is_where_early_release_pays(folder: Path) -> None:
    scarce, plenty = (float(row["atp"]) for row in read(folder / "speedups.csv"))
    assert scarce > 1.35
    assert plenty >= 0.98
    assert scarce > plenty


def test_every_policy_part_and_the_ceiling_has_a_row_with_its_settings(folder: Path) -> None:
    rows = read(folder / "rows.csv")
    for workload in (SCARCE, MIXED):
        own = [row for row in rows if row["setting"] == workload.describe()]
        expected = [*esa_points.policies_of(workload), *PARTS, "ceiling"]
        assert [row["policy"] for row in own] == expected
        assert all(float(row["avg_jct_ms"]) > 0 for row in own)
        assert all("window" in row["settings"] or row["policy"] == "ring" for row in own)
        assert bool(own[0]["short_jct_ms"]) == (workload is MIXED)


def test_the_page_stands_alone_and_blames_no_baseline_for_the_papers_figure(folder: Path) -> None:
    page = (folder / "index.html").read_text()
    assert "1.35" in page
    assert "names no baseline" in page
    assert "<script src=" not in page
    tables = (folder / "tables.md").read_text()
    assert all(f"## {name}\n" in tables for name in ("claims", "workloads", "parts", "short jobs"))
    assert all(workload.describe() in tables for workload in (SCARCE, MIXED))


def test_nobody_is_measured_on_a_seed_it_was_tuned_on() -> None:
    for quick in (True, False):
        assert not any(esa_points.TUNING_SEED in point.seeds for point in all_points(quick))


def test_workloads_cover_what_matters() -> None:
    workloads = full_list()
    assert len({workload.describe() for workload in workloads}) == len(workloads)
    assert {w.sweep for w in workloads} == {
        "like", "ratio", "workers", "skewed", "lengths", "server", "racks", "loss",
    }  # fmt: skip
    assert min(workload.memory for workload in workloads) == 0.02
    assert {0.001, 0.01} <= {workload.loss for workload in workloads}
    assert {"layers", "ddp"} == {workload.overlap for workload in workloads}
    assert {w.sweep for w in quick_list()} < {w.sweep for w in workloads}


@pytest.mark.parametrize("workload", full_list(), ids=lambda workload: workload.describe())
def test_every_workload_is_a_scenario_with_the_memory_it_names(workload: Any) -> None:
    scenario = workload.scenario({})
    assert scenario.switch.slots == max(1, round(workload.memory * len(scenario.job) * bdp_slots()))
    assert workload.scenario({}, unlimited=True).switch.slots > 50 * len(scenario.job) * bdp_slots()
    assert [job.iterations for job in scenario.job] == list(workload.lengths)
    assert {job.overlap for job in scenario.job} == {workload.overlap}


def test_a_missing_ratio_is_not_a_ratio() -> None:
    rows = [
        {"sweep": "like", "x": 1, "setting": "a", "policy": policy, "avg_jct_ms": time, "short_jct_ms": None}
        for policy, time in (("esa", 2.0), ("esa-plus", 1.0), ("switchml", None))
    ]
    (pair,) = esa.compare(rows)
    assert (pair["esa-plus"], pair["esa / esa-plus"], pair["switchml"]) == (0.5, 2.0, None)
    assert esa.summarise([pair])["esa_plus_over_switchml_worst"]["ours"] is None
