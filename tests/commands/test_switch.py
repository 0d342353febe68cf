"""`paceline switch` as a process: what it prints, how it ends, what it refuses."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.live.processes import PACELINE, process
from tests.live.workers import Workers, ask

START_S = 240


def _events(made: "subprocess.Popen[str]") -> list[dict[str, object]]:
    _, text = made.communicate(timeout=60)
    return [json.loads(line) for line in text.splitlines()]


def test_it_serves_a_job_and_sigterm_ends_it_when_the_job_has_left() -> None:
    with process("--memory", "4MiB", "--mtu", "1500", "--drop", "0.01") as (made, port):
        workers = Workers([port], [0, 0], count=352)
        workers.run(100)
        workers.check(100)
        made.send_signal(signal.SIGTERM)
        workers.run(120)
        workers.check(120)
        workers.leave()
        workers.close()
        events = _events(made)
        assert made.returncode == 0
        assert [event["event"] for event in events] == [
            "admitted", "bound", "bound", "draining", "left", "ended",
        ]  # fmt: skip


def test_its_exit_code_says_that_jobs_were_left() -> None:
    with process("--drain-timeout", "0.2") as (made, port):
        ask(port, "POST", "/v1/jobs", {"name": "stays", "workers": 1})
        made.send_signal(signal.SIGTERM)
        events = _events(made)
        assert made.returncode == 3
        assert events[-1]["jobs"] == 1


def test_a_second_signal_ends_it_at_once() -> None:
    with process("--drain-timeout", "600") as (made, port):
        ask(port, "POST", "/v1/jobs", {"name": "stays", "workers": 1})
        made.send_signal(signal.SIGINT)
        assert made.stderr is not None
        for line in made.stderr:
            if json.loads(line)["event"] == "draining":
                break
        made.send_signal(signal.SIGTERM)
        made.communicate(timeout=60)
        assert made.returncode == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--policy", "best"], "--policy: unknown policy 'best'"),
        (["--listen", "nonsense:x"], "--listen: 'nonsense:x' is not HOST:PORT"),
        (["--listen", "0.0.0.0:0"], "--listen: 0.0.0.0 can be reached from outside: give --token-file"),
        (["--token-file", "missing"], "missing: cannot be read: No such file"),
        (["--lease", "inf"], "--lease: has to be at most 1e+08 (given 'inf')"),
        (["--drain-timeout", "inf"], "--drain-timeout: has to be at most"),
        (["--memory", "1e400GB"], "--memory: '1e400GB' is not a size"),
        (["--memory", "lots"], "--memory: 'lots' is not a size"),
        (["--mtu", "50"], "50 is no MTU: 576 (what every IPv4 host takes) to 65535"),
        (["--pcap", "/nowhere/x.pcap"], "/nowhere/x.pcap: cannot be written"),
        (["--pcap", "/dev/null"], "/dev/null: is no file that could be written anew"),
        (["--lease", "nan"], "--lease: has to be at most 1e+08 (given 'nan')"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(words: list[str], told: str, tmp_path: Path) -> None:
    command = [*PACELINE, "switch", *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=START_S, cwd=tmp_path)
    assert ended.returncode == 2
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_token_or_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o644)
    for words in (["--token-file", str(path)], ["--tls-cert", str(path), "--tls-key", str(path)]):
        command = [*PACELINE, "switch", *words]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
        assert ended.returncode == 2
        assert f"others may read or change {path} (-rw-r--r--)" in ended.stderr
        assert len(ended.stderr.splitlines()) == 1


def test_a_token_that_is_too_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("short\n")
    path.chmod(0o600)
    command = [*PACELINE, "switch", "--token-file", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
    assert (ended.returncode, "at least 16 printable" in ended.stderr) == (2, True)
