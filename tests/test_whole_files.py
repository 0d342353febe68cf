"""Odd kinds of files: devices, pipes, folders, files larger than memory. Refused in one line, and never waited for."""

import gzip
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline import toml, whole_files
from paceline.errors import UserError
from paceline.launch.jobs import ProgressTail
from paceline.models import kineto
from paceline.models.chakra import read_chakra
from paceline.models.kineto import read_kineto
from paceline.passport.verify import read_run
from paceline.report.run.logs import end_of, tail

READERS: tuple[Callable[[Path], Any], ...] = (toml.read_text, read_kineto, read_chakra, read_run)


def sparse(path: Path) -> Path:
    """A file that is larger than memory, and takes no room."""
    path.touch()
    os.truncate(path, 1 << 40)
    return path


@pytest.mark.parametrize("read", READERS)
def test_a_file_larger_than_memory_is_refused(read: Callable[[Path], Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is larger than 1024 MiB"):
        read(sparse(tmp_path / "large"))


@pytest.mark.parametrize("read", READERS)
def test_a_device_is_refused(read: Callable[[Path], Any], tmp_path: Path) -> None:
    (tmp_path / "endless").symlink_to("/dev/zero")
    with pytest.raises(UserError, match=r"is a device, not a file|has no passport"):
        read(tmp_path / "endless")


def test_a_pipe_is_read_to_its_end_and_no_further_than_is_sensible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_files, "BYTES_MAX", 1 << 21)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    for pieces, told in ((1, ""), (100, "is larger than 2 MiB")):
        writer = threading.Thread(target=_pour, args=(path, pieces), daemon=True)
        writer.start()
        if told:
            with pytest.raises(UserError, match=told):
                toml.read_text(path)
        else:
            assert toml.read_text(path) == "x\n" * 50_000
        writer.join(20)
        assert not writer.is_alive()


def _pour(path: Path, pieces: int) -> None:
    try:
        with path.open("w") as file:
            for _ in range(pieces):
                file.write("x\r\n" * 50_000)
    except BrokenPipeError:
        pass


def test_a_packed_trace_that_grows_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kineto, "BYTES_MAX", 1 << 20)
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress(bytes(1 << 24)))
    with pytest.raises(UserError, match="holds more than 1 MiB"):
        read_kineto(tmp_path / "trace.json.gz")


def test_passports_that_are_no_files_are_passed_by(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.passport")
    (tmp_path / "b.passport").symlink_to("/dev/zero")
    with pytest.raises(UserError, match="has no passport"):
        in_time(lambda: read_run(tmp_path))


def in_time(wanted: Callable[[], Any], limit_s: float = 20.0) -> Any:
    """What it gives or raises; a call that hangs is a failure."""
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(wanted())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(limit_s)
    assert found, "it hangs"
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, sparse, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("name", ["status-0", "progress-0", "rank-0.log", "status-1"])
def test_whatever_a_job_puts_in_a_files_place_nobody_waits_for_it(
    make: Callable[[Path], Any], name: str, tmp_path: Path
) -> None:
    make(tmp_path / name)
    told = "rank-0.log" if name == "status-0" else "status-0"
    (tmp_path / told).write_text('PACELINE_STATUS {"iteration": 7, "paces_s": [1.0, 2.0]}\n')
    followed = ProgressTail(tmp_path)
    if name != "rank-0.log" or make is not sparse:  # a log of zeros is read to its end, in pieces
        found = in_time(followed.read)
        assert found is not None
        assert found.iteration == 7
        assert in_time(lambda: followed.paces_s(2)) == {0: 1.0, 1: 2.0}
    assert set(in_time(lambda: end_of(tmp_path / name))) <= {"\0"}
    assert all(set(line) <= {"\0"} for line in in_time(lambda: tail(tmp_path / name, 3)))
