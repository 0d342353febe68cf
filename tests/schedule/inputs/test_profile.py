"""Profiles in job lists: what a job takes from one, and mistakes with their places."""

from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.schedule.inputs.jobs import load_jobs

PROFILE = """\
workers = 4
samples = 32
steps = 20
forward = "1 ms"
backward = "2 ms"
jitter = 0.05
gradient = 3000

[[layers]]
name = "out"
size = 1000
released = "0.5 ms"

[[layers]]
name = "in"
size = 2000
released = "2 ms"
"""


def write(folder: Path, profile: str = PROFILE, more: str = "") -> Path:
    (folder / "mlp.toml").write_text(profile, encoding="utf-8")
    jobs = folder / "jobs.toml"
    text = f'[[jobs]]\nname = "a"\ngpus = 4\niterations = 10\nprofile = "mlp.toml"\nexchange = "in-network"\n{more}'
    jobs.write_text(text, encoding="utf-8")
    return jobs


def test_a_job_takes_times_and_releases_from_its_profile(tmp_path: Path) -> None:
    (job,) = load_jobs(write(tmp_path))
    assert job.compute_s == pytest.approx(3e-3)
    assert job.gradient_bytes == 3000
    assert job.releases == ((0.5e-3, 1000), (2e-3, 2000))
    assert job.jitter == 0.05
    released, left = job.parts
    assert (0.5e-3, 1.0) in zip(released, left, strict=True)
    assert any(
        time == pytest.approx(2e-3) and share == pytest.approx(2 / 3)
        for time, share in zip(released, left, strict=True)
    )


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (PROFILE.replace("size = 1000", "size = 900"), "2900 bytes together, not gradient = 3000"),
        (PROFILE.split("[[layers]]")[0], "mlp.toml"),
        (PROFILE.replace('"0.5 ms"', '"3 ms"'), "not in the order"),
        (PROFILE.replace('forward = "1 ms"\n', ""), "forward"),
        ("not toml", "not valid TOML"),
    ],
)
def test_a_profile_that_is_not_whole_is_refused(tmp_path: Path, profile: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_jobs(write(tmp_path, profile))
    assert "mlp.toml" in str(caught.value)


def test_a_profile_and_a_time_are_one_too_many(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="either profile or forward"):
        load_jobs(write(tmp_path, more='forward = "1 ms"\n'))


def test_a_missing_profile_is_named(tmp_path: Path) -> None:
    jobs = write(tmp_path)
    (tmp_path / "mlp.toml").unlink()
    with pytest.raises(UserError, match="no such file"):
        load_jobs(jobs)
