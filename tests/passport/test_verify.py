"""Passports written, read and compared: the same, the first difference of each kind, damaged files."""

from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.passport.records import HEADER_BYTES_MAX, RECORD, Owner, PassportWriter, read_passport
from paceline.passport.verify import read_run, verify

Result = tuple[int, int, str, str, int]


def _results(count: int) -> list[Result]:
    """Two tensors a step."""
    return [(i, 100 + i % 2, "float32", "avg", 1000 + i) for i in range(count)]


def _write(
    folder: Path, results: list[Result], rank: int = 0, job: str = "a", group: str = "0", restart: int = 0
) -> Path:
    writer = PassportWriter(folder, Owner(job, group, rank, 2, restart))
    for result in results:
        writer.note(*result)
    writer.close()
    writer.close()
    return writer.path


def test_the_same_bits_in_another_order(tmp_path: Path) -> None:
    for rank in range(2):
        _write(tmp_path / "x", _results(10), rank)
        _write(tmp_path / "y", list(reversed(_results(10))), rank, job="b")
    verdict = verify(read_run(tmp_path / "x"), read_run(tmp_path / "y"))
    assert verdict.same
    assert (verdict.jobs, verdict.ranks, verdict.reductions) == (1, 2, 20)
    assert verify(read_run(tmp_path / "x")).same


def test_where_two_runs_first_part(tmp_path: Path) -> None:
    changed = _results(10)
    changed[7] = (*changed[7][:4], 5)
    changed[9] = (*changed[9][:4], 6)
    for rank in range(2):
        _write(tmp_path / "x", _results(10), rank)
        _write(tmp_path / "y", changed, rank)
    (found,) = verify(read_run(tmp_path / "x"), read_run(tmp_path / "y")).differences
    assert (found.reduction, found.rank, found.ranks, found.occurrence) == (7, 0, (0, 1), 4)
    assert found.tensor == "101 x float32, avg"
    assert "the bits differ" in found.what


def test_other_tensors_missing_results_and_a_shorter_run(tmp_path: Path) -> None:
    whole = _results(6)
    _write(tmp_path / "x", whole)
    for name, results, reduction, told in (
        ("tensor", [*whole[:3], (3, 77, "float32", "avg", 1), *whole[4:]], 3, "different tensors"),
        ("hole", [*whole[:2], *whole[3:]], 2, "one run has no result of it"),
        ("short", whole[:4], 4, "only the first run goes on"),
    ):
        _write(tmp_path / name, results)
        (found,) = verify(read_run(tmp_path / "x"), read_run(tmp_path / name)).differences
        assert (found.reduction, told in found.what) == (reduction, True), found


def test_ranks_that_disagree_within_a_run(tmp_path: Path) -> None:
    other = _results(5)
    other[2] = (*other[2][:4], 9)
    _write(tmp_path, _results(5), 0)
    _write(tmp_path, other, 1)
    (found,) = verify(read_run(tmp_path)).differences
    assert (found.reduction, found.rank) == (2, 1)
    assert "in the run ranks 0 and 1 disagree" in found.what


def test_ranks_jobs_and_groups_of_one_side_only(tmp_path: Path) -> None:
    for job in ("a", "b"):
        _write(tmp_path / "x", _results(3), 0, job)
        _write(tmp_path / "x", _results(3), 1, job)
    _write(tmp_path / "y", _results(3), 0, "a")
    _write(tmp_path / "y", _results(3), 0, "c")
    told = [each.what for each in verify(read_run(tmp_path / "x"), read_run(tmp_path / "y")).differences]
    assert sorted(told) == [
        "job 'b' is in the first run only",
        "job 'c' is in the second run only",
        "rank 1 has a passport in the first run only",
    ]


def test_the_last_attempt_of_each_job_counts(tmp_path: Path) -> None:
    for attempt, digest in ((2, 5), (9, 6), (10, 7)):
        _write(tmp_path / f"attempts/a.{attempt}/passport", [(0, 1, "int32", "sum", digest)])
    _write(tmp_path / "attempts/b.1/passport", _results(2), job="b")
    run = read_run(tmp_path)
    assert sorted(run) == ["a", "b"]
    (passport,) = run["a"].values()
    assert passport.records["digest"].tolist() == [7]


def test_a_record_that_was_written_half_is_left_out(tmp_path: Path) -> None:
    path = _write(tmp_path, _results(3))
    path.write_bytes(path.read_bytes()[:-5])
    assert len(read_passport(path).records) == 2


def test_damaged_files_are_told_in_a_line(tmp_path: Path) -> None:
    path = _write(tmp_path, _results(2))
    good = path.read_bytes()
    header, _, body = good.partition(b"\n")
    for bad in (
        b"",
        b"{}\n",
        b"[]\n" + body,
        b"\xff\xfe\n" + body,
        b"x" * (HEADER_BYTES_MAX + 10),
        header.replace(b'"format": 1', b'"format": 2') + b"\n" + body,
        header.replace(b'"rank": 0', b'"rank": "0"') + b"\n" + body,
        header + b"\n" + b"\xff" * RECORD.itemsize,
        header + b"\n" + body[: RECORD.itemsize] * 2,
    ):
        path.write_bytes(bad)
        with pytest.raises(UserError, match=r"passport|damaged"):
            read_run(tmp_path)
    with pytest.raises(UserError, match="is not there"):
        read_run(tmp_path / "nowhere")
    path.unlink()
    with pytest.raises(UserError, match="has no passport"):
        read_run(tmp_path)
    with pytest.raises(UserError, match="cannot be written"):
        PassportWriter(Path("/proc/none"), Owner("a", "0", 0, 1))


def test_two_runs_in_one_folder_are_told_apart(tmp_path: Path) -> None:
    for name in ("x", "y"):
        _write(tmp_path / name, _results(2))
    with pytest.raises(UserError, match="are of one rank: give the folder of one run"):
        read_run(tmp_path)
