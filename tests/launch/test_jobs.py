import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.launch import jobs
from paceline.launch.jobs import ProgressTail, load_run_jobs, parse_progress
from paceline.launch.launchers.protocol import job_environment
from tests.launch.scenes import Scene


def test_jobs_beside_a_switch_are_planned_as_in_network_unless_they_say_otherwise(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"s0": 2}).job("plain").job("says", exchange="ring")
    assert [each.job.exchange for each in load_run_jobs(scene.jobs_file)] == ["ring", "ring"]
    beside = load_run_jobs(scene.jobs_file, exchange="in-network")
    assert [each.job.exchange for each in beside] == ["in-network", "ring"]


@pytest.mark.parametrize(
    ("env", "switch", "backend"),
    [({}, "10.0.0.1:7070", "auto"), ({"PACELINE_BACKEND": "off"}, "10.0.0.1:7070", "off"), ({}, "", None)],
)
def test_beside_a_switch_jobs_get_the_backend_unless_they_say_otherwise(
    env: dict[str, str], switch: str, backend: str | None
) -> None:
    found = job_environment(
        env,
        run_id="r",
        job="a",
        token="t",
        shares=(),
        remaining_s=1.0,
        iterations=1,
        folder="/f",
        switch=switch,
    )
    assert found.get("PACELINE_BACKEND") == backend


def test_a_line_counts_once_it_is_whole(tmp_path: Path) -> None:
    tail = ProgressTail(tmp_path)
    log = tmp_path / "rank-0.log"
    assert tail.read() is None
    log.write_text('hello\nPACELINE_STATUS {"iteration": 1}\nPACELINE_STATUS {"itera')
    found = tail.read()
    assert found is not None
    assert (found.iteration, found.rate, found.path) == (1.0, None, None)
    assert tail.read() is None
    with log.open("a") as file:
        file.write('tion": 2, "rate": 0.5, "path": "custodian", "loss": 3}\n')
    found = tail.read()
    assert found is not None
    assert (found.iteration, found.rate, found.path, found.rest) == (2.0, 0.5, "custodian", {"loss": 3})


def test_the_file_goes_before_the_log_and_its_last_whole_line_counts(tmp_path: Path) -> None:
    tail = ProgressTail(tmp_path)
    (tmp_path / "rank-0.log").write_text('PACELINE_STATUS {"iteration": 1}\n')
    (tmp_path / "status-0").write_text('{"iteration": 5}\n{"iteration": 6}\n{"itera')
    found = tail.read()
    assert found is not None
    assert found.iteration == 6
    assert tail.read() is None, "nothing new was said"


def test_a_long_log_is_read_to_its_end_and_a_line_without_end_does_not_grow(tmp_path: Path) -> None:
    tail = ProgressTail(tmp_path)
    with (tmp_path / "rank-0.log").open("w") as file:
        for i in range(30_000):
            file.write(f'a line of padding for the log\nPACELINE_STATUS {{"iteration": {i}}}\n')
        file.write("x" * (3 * jobs.CHUNK_BYTES))
    found = tail.read()
    assert found is not None
    assert found.iteration == 29_999
    assert len(tail._rest) <= jobs.LINE_BYTES_MAX


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=())), inner),
)
KEYS = st.sampled_from(("iteration", "rate", "path", "loss", "straggler", "\ud800"))


def refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


@given(st.text() | VALUES.map(json.dumps) | st.dictionaries(KEYS, VALUES).map(json.dumps))
@example('{"loss": NaN, "iteration": Infinity, "rate": 1e-320}')
@example('{"x": ' + "[" * 900 + "]" * 900 + "}")
@example('{"x": ' + "9" * 4000 + "}")
@example('{"x": "' + "y" * 60_000 + '"}')
def test_anything_is_progress_that_can_be_stored_and_shown_or_nothing(text: str) -> None:
    found = parse_progress(text)
    if found is not None:
        json.loads(json.dumps(found.all), parse_constant=refuse)
        str(found).encode()
        json.dumps(found.all, ensure_ascii=False).encode()
        assert len(str(found.all)) < 2 * len(text)
        assert found.rate is None or found.rate == 0.0 or 1e-9 <= found.rate <= 1e9


def test_values_of_other_kinds_are_not_taken() -> None:
    found = parse_progress('{"iteration": true, "rate": "fast", "path": "a\\nline", "x": 1}')
    assert found is not None
    assert (found.iteration, found.rate, found.path) == (None, None, None)
    assert jobs.progress_of({"iteration": 10**400, "rate": 1e308}).iteration is None
    assert parse_progress('{"path": "gloo"}') == jobs.Progress(None, None, "ring", {"path": "gloo"})
    assert parse_progress('{"rate": NaN}') == jobs.Progress(
        None, None, None, parse_progress('{"rate": NaN}').all
    )  # type: ignore[union-attr]


def test_what_was_counted_fills_what_the_job_does_not_tell(tmp_path: Path) -> None:
    tail = ProgressTail(tmp_path)
    counted = tmp_path / "progress-0"
    counted.write_text('{"iteration": 7, "rate": 2.0, "path": "gloo", "counted": "optimizer steps"}\n')
    found = tail.read()
    assert found is not None
    assert (found.iteration, found.rate, found.path) == (7, 2.0, "ring")
    assert tail.read() is None, "nothing new was counted"
    (tmp_path / "rank-0.log").write_text('PACELINE_STATUS {"iteration": 3, "straggler": 1}\n')
    found = tail.read()
    assert found is not None
    assert (found.iteration, found.rate, found.path) == (3, 2.0, "ring"), "its own word goes first"
    with (tmp_path / "rank-0.log").open("a") as log:
        log.write('PACELINE_STATUS {"iteration": 4}\n')
    found = tail.read()
    assert found is not None
    assert "straggler" not in found.rest, "a job's line stands for itself"
    counted.write_text('{"iteration": 9, "rate": 2.5, "path": "switch"}\n')
    found = tail.read()
    assert found is not None
    assert (found.iteration, found.rate, found.path) == (4, 2.5, "switch")


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ('workdir = "a\\u0000b"', "is no folder"),
        ('workdir = "~nobody-at-all/x"', "is no folder"),
        (f'workdir = "{"x" * 5000}"', "is no folder"),
        ('env = { A = "x\\u0000" }', "with a null character"),
        ('command = ["a\\u0000"]', "with a null character"),
        (f'name = "{"ü" * 150}"', "has at most 200 bytes"),
    ],
)
def test_what_could_not_be_started_is_refused_in_a_line(entry: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    rest = "" if entry.startswith("command") else 'command = "true"\n'
    path.write_text(f'[[jobs]]\ngpus = 1\niterations = 1\nbackward = "1 ms"\n{rest}{entry}\n')
    with pytest.raises(UserError, match=told) as refused:
        load_run_jobs(path)
    assert len(str(refused.value)) < len(str(path)) + 250
