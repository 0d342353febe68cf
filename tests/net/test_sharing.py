"""Two jobs on one live switch and the same limited links: the short form of `benchmarks.sharing`."""

import statistics

import pytest

from benchmarks.sharing_run import measure, small
from tests.emulation.test_namespaces import needs_root


@needs_root
@pytest.mark.parametrize(
    "changes",
    [
        {"memory": "512KiB"},
        {"rate_bps": 1e9, "policy": "atp", "loss": 0.005},
        {"memory": "1MiB", "racks": 2},
        {"memory": "64KiB", "rate_bps": 1e9, "policy": "switchml", "jobs": 5},
    ],
    ids=["little memory", "atp, loss", "two racks", "more pools than there are by default"],
)
def test_every_job_ends_no_step_stands_out_and_sums_are_right(changes: dict[str, object]) -> None:
    setting = small(**changes)
    seen = measure(setting)
    assert len(seen.steps) == setting.jobs
    assert seen.wrong == 0
    for steps in seen.steps:
        assert max(steps) <= 10 * statistics.median(steps)
