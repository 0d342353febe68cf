from pathlib import Path

from paceline.launch.jobs import load_run_jobs
from tests.launch.scenes import Scene


def test_jobs_beside_a_switch_are_planned_as_in_network_unless_they_say_otherwise(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"s0": 2}).job("plain").job("says", exchange="ring")
    assert [each.job.exchange for each in load_run_jobs(scene.jobs_file)] == ["ring", "ring"]
    beside = load_run_jobs(scene.jobs_file, exchange="in-network")
    assert [each.job.exchange for each in beside] == ["in-network", "ring"]
