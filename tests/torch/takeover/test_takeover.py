"""Takeover among real processes: exact synchronous SGD, exactly once, a killed helper, a lost keeper."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from paceline.torch.takeover import Report, TakeoverError  # noqa: E402
from paceline.torch.takeover.client import KeeperClient  # noqa: E402
from paceline.torch.takeover.keeper import KeeperServer  # noqa: E402
from tests.torch.ranks import rank_command  # noqa: E402
from tests.torch.takeover.ranks import COUNTS, build, loss_of, micro_batches, reference  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]


def run_ranks(scene: str, folder: Path, ranks: int = 3, dying: int | None = None) -> dict[int, Any]:
    """What every rank left behind; one that was killed left nothing. A scene with a dying rank goes on after it."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    script = Path(__file__).with_name("ranks.py")
    started = [
        subprocess.Popen(
            rank_command([str(script), scene, str(rank), str(ranks), str(folder)], {}), env=environment
        )
        for rank in range(ranks)
    ]
    try:
        if dying is not None:
            assert started[dying].wait(timeout=180) == 7
            (folder / "ended").touch()
        for process in started:
            process.wait(timeout=180)
    finally:
        for process in started:
            process.kill()
    files = {rank: folder / f"{rank}.json" for rank in range(ranks)}
    return {rank: json.loads(path.read_text()) for rank, path in files.items() if path.exists()}


@pytest.mark.parametrize("scene", ["speeds", "stuck", "turns slow"])
def test_weights_are_those_of_synchronous_sgd(scene: str, tmp_path: Path) -> None:
    found = run_ranks(scene, tmp_path)
    assert set(found) == {0, 1, 2}
    wanted = [parameter.detach() for parameter in reference(3, 5).parameters()]
    for rank, result in found.items():
        # Bitwise the same on all ranks; the reference has summed in another order.
        assert result["weights"] == found[0]["weights"]
        for ours, theirs in zip(result["weights"], wanted, strict=True):
            torch.testing.assert_close(
                torch.tensor(ours, dtype=torch.float64), theirs, rtol=1e-10, atol=1e-12
            )
        assert result["unused"], "a parameter that nobody used has no gradient"
        assert result["reports"] == found[0]["reports"], rank
    for step in range(5):
        everything = sorted(tuple(pair) for result in found.values() for pair in result["computed"][step])
        assert everything == [(owner, m) for owner in range(3) for m in range(COUNTS[owner])]
    if scene == "turns slow":
        # It begins the third iteration with all of its own; what is left of them is recalled.
        assert len(found[2]["computed"][2]) < COUNTS[2]
    if scene == "stuck":
        # Rank 1 sleeps half a second in its first layer each time; the others leave it little of its 5 a step.
        assert sum(len(pairs) for pairs in found[1]["computed"][1:]) < 4 * 4
        assert any("helps worker 1" in e["reason"] for r in found[0]["reports"] for e in r["reasons"])


def gradient_of(pairs: list[tuple[int, int]]) -> list[Any]:
    model = build()
    for owner, m in pairs:
        loss_of(model, micro_batches(owner, 0)[m]).backward()
    return [None if p.grad is None else p.grad for p in model.parameters()]


def test_what_a_killed_helper_held_comes_back(tmp_path: Path) -> None:
    found = run_ranks("helper", tmp_path, dying=2)
    assert set(found) == {0, 1}
    pairs = [(owner, m) for owner in range(3) for m in range(COUNTS[owner])]
    assert found[0]["gone"] == [2]
    assert {rank for share in found[0]["shares"] for rank in share} == {0, 1}
    assert any("worker 2 is gone" in entry["reason"] for entry in found[0]["reasons"])
    for part, whole in enumerate(gradient_of(pairs)):
        parts = [found[rank]["gradient"][part] for rank in (0, 1)]
        if whole is None:
            assert parts == [None, None]
        else:
            total = sum(torch.tensor(p, dtype=torch.float64) for p in parts if p is not None)
            torch.testing.assert_close(total, whole, rtol=1e-10, atol=1e-12)


def test_a_lost_keeper_is_a_clear_error(tmp_path: Path) -> None:
    found = run_ranks("keeper", tmp_path, dying=0)
    assert set(found) == {1, 2}
    for result in found.values():
        assert "the keeper is lost" in result["error"]
        assert result["seconds"] < 30


def test_a_straggler_is_named_with_its_figures_and_nobody_for_jitter() -> None:
    shares = [[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 0, 1]]
    slow = Report(1, 0, shares, [], [], 0, [0.01, 0.012, 0.025], 0.1)
    assert slow.straggler() == (
        2,
        "a micro-batch takes it 25 ms, the others 11 ms; 2 of its 4 were taken over",
    )
    assert slow.taken_over == 2
    assert slow.computed_by(1) == [(1, 0), (1, 1), (1, 2), (1, 3), (2, 3)]
    assert replace(slow, paces_s=[0.01, 0.012, 0.013]).straggler() is None
    assert replace(slow, shares=[[0], [1], [2]]).straggler() is None


def test_a_stranger_is_not_let_in() -> None:
    keeper = KeeperServer("127.0.0.1", "secret", ranks=1, lease_s=5.0)
    try:
        stranger = KeeperClient([("127.0.0.1", keeper.port)], "guess", 0, lease_s=5.0, silence_s=10.0)
        with pytest.raises(TakeoverError, match="the keeper is lost"):
            stranger.wait_for(stranger.ask("claim", 1, ahead=False), 20.0)
        stranger.close()
    finally:
        keeper.close()


def test_a_keeper_that_hangs_is_lost_after_its_silence() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = KeeperClient(
            [("127.0.0.1", silent.getsockname()[1])], "token", 0, lease_s=1.0, silence_s=0.5
        )
        with pytest.raises(TakeoverError, match="said nothing for"):
            client.wait_for(client.ask("claim", 1, ahead=False), 20.0)
        client.close()


def test_a_keeper_that_closes_still_says_how_the_iteration_ended() -> None:
    keeper = KeeperServer("127.0.0.1", "secret", ranks=2, lease_s=20.0)
    try:
        clients = [
            KeeperClient([("127.0.0.1", keeper.port)], "secret", rank, 20.0, 30.0) for rank in range(2)
        ]
        for client in clients:
            client.tell("begin", 1, micro_batches=[1])
        for client in clients:
            claim = client.wait_for(client.ask("claim", 1, ahead=False), 20.0)["claim"]
            assert client.wait_for(client.ask("finish", 1, claim=claim, took_ns=1), 20.0)["kept"]
        assert "frozen" in clients[0].wait_for(clients[0].ask("claim", 1, ahead=False), 20.0)
        closing = threading.Thread(target=keeper.close)
        closing.start()
        time.sleep(0.5)
        assert "frozen" in clients[1].wait_for(clients[1].ask("claim", 1, ahead=False), 20.0)
        closing.join(10.0)
        assert not closing.is_alive()
        for client in clients:
            client.close()
    finally:
        keeper.close()


def test_a_rank_that_ends_before_it_gave_its_work_is_told() -> None:
    keeper = KeeperServer("127.0.0.1", "secret", ranks=2, lease_s=5.0)
    try:
        clients = [KeeperClient([("127.0.0.1", keeper.port)], "secret", rank, 5.0, 10.0) for rank in range(2)]
        clients[0].tell("begin", 1, micro_batches=[1])
        claim = clients[0].wait_for(clients[0].ask("claim", 1, ahead=False), 20.0)["claim"]
        clients[0].ask("finish", 1, claim=claim, took_ns=1)
        wait = clients[0].ask("claim", 1, ahead=False)
        time.sleep(0.1)
        clients[1].close()
        with pytest.raises(TakeoverError, match="rank 1 is gone, and had not given"):
            clients[0].wait_for(wait, 20.0)
        clients[0].close()
    finally:
        keeper.close()


def test_the_example_relieves_the_slow_rank_with_equal_weights() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    options = ["--steps", "4", "--micro-batches", "12", "--micro-batch-ms", "20", "--json"]
    done = subprocess.run(
        [sys.executable, *command, str(ROOT / "examples/train_takeover.py"), *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["weights_differ_relative"] < 1e-5
    assert sum(found["computed_by_rank"]) == 4 * 12
    # How much shorter the iterations are depends on what else the machine does: docs/takeover.md has the figure.
    assert found["computed_by_rank"][3] < 12
