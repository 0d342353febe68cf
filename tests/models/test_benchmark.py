"""`benchmarks.profile`: the scenario of a profile has its layers, times and buckets, on the links asked for."""

from pathlib import Path

import pytest

from benchmarks.profile import HOSTS, scenario_of

PROFILE = """\
forward = "5 ms"
backward = "1 ms"
gradient = 1100000
bucket = 50000
layers = [
    { name = "out", size = 10000, released = "0.3 ms" },
    { name = "mid", size = 1000000, released = "0.8 ms" },
    { name = "in", size = 90000, released = "1 ms" },
]
"""


@pytest.mark.parametrize("backend", ["gloo", "paceline"])
def test_the_scenario_is_the_profiles(tmp_path: Path, backend: str) -> None:
    path = tmp_path / "ddp.toml"
    path.write_text(PROFILE)
    scenario = scenario_of(path, backend, 100e6, HOSTS, 7)
    (job,) = scenario.expanded_jobs()
    assert (job.workers, job.iterations, job.overlap) == (HOSTS, 7, "ddp")
    assert scenario.transport.bucket == 50_000
    model = job.model_profile(scenario.network.rate)
    # What is released first waits until a bucket is full.
    assert model.layer_gradient_bytes() == (90_000, 1_010_000)
    assert sum(model.backward_ns()) == pytest.approx(1e6, abs=10)
    assert 95e6 < scenario.network.rate < 105e6
