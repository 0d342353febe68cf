"""`paceline bench allreduce` as a user meets it: rows, JSON, exit codes, one-line errors, nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.commands.command_line import paceline

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
TIMEOUT_S = 420
COMMAND = [sys.executable, "-c", "from paceline.cli import main; main()", "bench", "allreduce"]

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def refusal(patch: Patch, captured: Captured, *arguments: str) -> str:
    """The one line of a user's mistake."""
    assert paceline(patch, "bench", "allreduce", *arguments) == 2
    streams = captured.readouterr()
    assert streams.out == ""
    assert len(streams.err.splitlines()) == 1, streams.err
    return streams.err


def measured(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [*COMMAND, "--json", "-", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_gloo_alone_on_loopback() -> None:
    document = measured("--backend", "gloo", "--workers", "2", "--sizes", "4B,100kB", "--repeat", "2")
    assert [(row["backend"], row["size_bytes"], row["count"]) for row in document["rows"]] == [
        ("gloo", 4, 1),
        ("gloo", 100_000, 25_000),
    ]
    for row in document["rows"]:
        assert row["wrong"] == 0
        assert row["time_us"] > 0
        assert row["algbw_GBps"] == pytest.approx(row["size_bytes"] / row["time_us"] / 1e3)
        assert row["busbw_GBps"] == pytest.approx(row["algbw_GBps"])
        assert row["repetitions"] == 2
    assert document["ratio_to_line"] == document["ratio_to_peer"] == {}


@needs_root
def test_gloo_alone_over_limited_links_is_no_faster_than_a_ring_can_be() -> None:
    document = measured(
        *("--backend", "gloo", "--workers", "3", "--sizes", "4MB", "--rate", "200mbit", "--repeat", "1")
    )
    (row,) = document["rows"]
    ring_s = 4e6 * 2 * 2 / 3 * 8 / 200e6
    burst_s = 2 * 131072 * 8 / 200e6
    assert row["time_us"] / 1e6 > ring_s - burst_s
    assert row["wrong"] == 0


def test_several_switches_on_loopback_have_the_bits_of_one() -> None:
    document = measured(
        *("--workers", "2", "--switches", "2", "--no-host-reduce", "--peer", "none"),
        *("--sizes", "4B,1MB", "--repeat", "1"),
    )
    assert [(row["backend"], row["size_bytes"], row["wrong"]) for row in document["rows"]] == [
        ("paceline", 4, 0),
        ("paceline/1", 4, 0),
        ("paceline", 1_000_000, 0),
        ("paceline/1", 1_000_000, 0),
    ]
    assert document["status"]["path"] == "switch x2"
    assert set(document["ratio_to_one"]) == {"4", "1000000"}


@needs_root
def test_switches_with_links_of_their_own_are_no_faster_than_these() -> None:
    document = measured(
        *("--workers", "3", "--switches", "2", "--rate", "100mbit", "--peer", "none"),
        *("--sizes", "2MB", "--repeat", "1"),
    )
    both, one = document["rows"]
    assert (both["wrong"], one["wrong"]) == (0, 0)
    burst_s = 2 * 131072 * 8 / 100e6
    assert both["time_us"] / 1e6 > 2e6 * 3 / 2 * 8 / 100e6 - burst_s
    assert one["time_us"] / 1e6 > 2e6 * 3 * 8 / 100e6 - burst_s


@needs_root
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(number: signal.Signals) -> None:
    command = [*COMMAND, "--backend", "gloo", "--workers", "2", "--sizes", "100MB", "--rate", "20mbit"]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def own() -> list[Path]:
        return list(Path("/run/netns").glob(f"pl-{run.pid}-*"))

    until = time.monotonic() + 60
    while len(own()) < 3 and time.monotonic() < until:
        time.sleep(0.1)
    assert len(own()) == 3
    time.sleep(1)
    run.send_signal(number)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "Traceback" not in errors
    assert own() == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--sizes", "many"], "--sizes: 'many' is not a size"),
        (["--rate", "fast"], "--rate: 'fast' is not a rate"),
        (["--rate", "10bit"], "--rate: '10bit' is not between"),
        (["--dtype", "float64"], "--dtype: 'float64' is not one of"),
        (["--peer", "nccl"], "--peer: 'nccl' is not one of"),
        (["--backend", "mpi"], "--backend: 'mpi' is not one of"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], reason: str, monkeypatch: Patch, capsys: Captured
) -> None:
    assert reason in refusal(monkeypatch, capsys, *arguments)


def test_limited_links_need_root(monkeypatch: Patch, capsys: Captured) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "--rate: limited links are made of network namespaces, which needs root" in refusal(
        monkeypatch, capsys, "--rate", "200mbit"
    )
