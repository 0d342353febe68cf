"""A job over two switches: the bits of one switch and of none, whichever of them is killed, late, weak or full.

Tensors are large enough to be cut, so agents and switches run compiled.
"""

import hashlib
import random
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("uvicorn")

from tests.torch.ranks import Ranks, run_ranks
from tests.torch.test_switch import Switch, _wait_for

HERE = "tests.torch.test_several_switches"
RANKS = 3
APART = {"PACELINE_HOST_REDUCE": "0"}


def reduce_steps(rank: int, notes: str = "", steps: int = 20, until: str = "") -> dict[str, Any]:
    """The same tensors in every run, cut and whole, of all forms; a digest of each step's sums."""
    import torch
    import torch.distributed as dist

    import paceline.torch

    dist.init_process_group("paceline")
    digests, gaps, paths = [], [], []
    end, before = time.monotonic() + 150, time.monotonic()
    while True:
        generator = torch.Generator().manual_seed(1000 * rank + len(digests))
        spread = 2.0 ** torch.randint(-8, 8, (150_000,), generator=generator)
        tensors = [
            torch.randn(150_000, generator=generator) * spread,
            torch.randn(5, generator=generator),
            (torch.randn(90_000, generator=generator) * spread[:90_000]).bfloat16(),
            torch.randint(-(2**31), 2**31 - 1, (80_000,), generator=generator, dtype=torch.int32),
            torch.randn(700, generator=generator),
        ]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        digest = hashlib.sha256()
        for work, tensor in zip(works, tensors, strict=True):
            assert work is not None
            work.wait()
            plain = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
            digest.update(plain.numpy().tobytes())
        digests.append(digest.hexdigest())
        paths.append(paceline.torch.status()[0]["path"])
        gaps.append(time.monotonic() - before)
        before = time.monotonic()
        if notes:
            Path(notes, f"at-{rank}").write_text(f"{len(digests)} {paths[-1].replace(' ', '_')}")
        enough = len(digests) >= steps and (not until or Path(notes, until).exists())
        last = torch.tensor([float(enough or time.monotonic() > end)], dtype=torch.float64)
        dist.all_reduce(last, op=dist.ReduceOp.MIN)
        if last.item():
            break
        time.sleep(0.01)
    status = paceline.torch.status()[0]
    dist.destroy_process_group()
    agent = status.get("agent", {})
    return {
        "digests": digests,
        "paths": paths,
        "longest_s": max(gaps[1:]),
        "generation": status["generation"],
        "switches": [
            {"switch": one["switch"], "weight": one["weight"], "results": one["counters"]["results"]}
            for one in agent.get("switches", [])
        ],
        "results": agent.get("counters", {}).get("results"),
        "events": [event["event"] for event in status["events"]],
    }


def reduce_steps_and_fail(rank: int, bad_rank: int, **more: Any) -> dict[str, Any]:
    """The agent of one rank at the second switch says that its 40th part failed, when others have its result."""
    import functools

    from paceline.live.agent.agent import Agent, ReductionError
    from paceline.torch.failover import switch_search
    from paceline.torch.reduce import network

    made: list[Agent] = []

    class Unlucky(Agent):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

        def submit(self, *args: Any, **more: Any) -> Any:
            handle = super().submit(*args, **more)
            if rank == bad_rank and self is made[1] and handle.ticket == 40:
                handle.wait(60)
                handle.error = lambda: ReductionError("made to fail")  # type: ignore[method-assign]
            return handle

    switch_search.RETRY_S = (1.0, 1.0)
    network.AgentPath = functools.partial(network.AgentPath, make_agent=Unlucky)  # type: ignore[misc, assignment]
    return reduce_steps(rank, **more)


def switches(stack: ExitStack, folder: Path, *options: tuple[str, ...]) -> list[Switch]:
    """Switches that are not started yet; all are killed at the end."""
    made = []
    for number, option in enumerate(options):
        (folder / f"switch-{number}").mkdir()
        made.append(Switch(folder / f"switch-{number}", *option, compiled=True))
        stack.callback(made[-1].kill)
    return made


def named(*several: Switch) -> dict[str, str]:
    return {**APART, "PACELINE_SWITCH": ", ".join(switch.address for switch in several)}


@pytest.fixture(scope="module")
def digests(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of a run over one switch."""
    folder = tmp_path_factory.mktemp("one")
    with ExitStack() as stack:
        (one,) = switches(stack, folder, ())
        one.start()
        results = run_ranks(RANKS, f"{HERE}:reduce_steps", folder, named(one))
    assert all(set(result["paths"]) == {"switch"} for result in results)
    return _same(results)


def _same(results: list[Any]) -> list[str]:
    for result in results[1:]:
        assert result["digests"] == results[0]["digests"], "the ranks have other bits"
    return list(results[0]["digests"])


def _check(results: list[Any], digests: list[str]) -> None:
    found = _same(results)
    both = min(len(found), len(digests))
    assert both >= 20
    assert found[:both] == digests[:both], "other bits than those of one switch"


def test_two_switches_share_the_work_and_give_the_bits_of_one(tmp_path: Path, digests: list[str]) -> None:
    with ExitStack() as stack:
        both = switches(stack, tmp_path, (), ())
        for switch in both:
            switch.start()
        results = run_ranks(RANKS, f"{HERE}:reduce_steps", tmp_path, named(*both))
        assert [switch.jobs() for switch in both] == [[], []], "the job has left both"
    _check(results, digests)
    for result in results:
        assert set(result["paths"]) == {"switch x2"}
        assert result["events"] == ["switch x2"]
        assert [one["switch"] for one in result["switches"]] == [switch.address for switch in both]
        assert [one["weight"] for one in result["switches"]] == [result["switches"][0]["weight"]] * 2
        first, second = (one["results"] for one in result["switches"])
        assert first + second == result["results"]
        assert 0.8 < first / second < 1.25


def test_loss_and_doubled_packets_change_no_bit(tmp_path: Path, digests: list[str]) -> None:
    faults = ("--drop", "0.02", "--duplicate", "0.02")
    with ExitStack() as stack:
        both = switches(stack, tmp_path, faults, ())
        for switch in both:
            switch.start()
        results = run_ranks(RANKS, f"{HERE}:reduce_steps", tmp_path, named(*both))
    _check(results, digests)
    assert all("gloo" not in result["paths"] for result in results)


def test_custodians_alone_give_the_same_bits(tmp_path: Path, digests: list[str]) -> None:
    _check(run_ranks(RANKS, f"{HERE}:reduce_steps", tmp_path, APART), digests)


def test_each_and_both_are_killed_and_no_step_is_lost(tmp_path: Path, digests: list[str]) -> None:
    chance = random.Random(17)
    with ExitStack() as stack:
        both = switches(stack, tmp_path, (), ())
        for switch in both:
            switch.start()
        with Ranks(
            RANKS, f"{HERE}:reduce_steps", tmp_path, named(*both), notes=str(tmp_path), until="enough"
        ) as ranks:
            step = _wait_for(tmp_path, RANKS, 3, "switch_x2")
            for killed, path in (
                ((1,), "switch,_custodian"),
                ((0,), "switch,_custodian"),
                ((0, 1), "custodian"),
            ):
                time.sleep(chance.uniform(0.0, 0.2))
                for number in killed:
                    both[number].kill()
                step = _wait_for(tmp_path, RANKS, step + 1, path)
                step = _wait_for(tmp_path, RANKS, step + 3, path)
                for number in killed:
                    both[number].start()
                step = _wait_for(tmp_path, RANKS, step + 1, "switch_x2")
            (tmp_path / "enough").touch()
            results = ranks.results()
            logs = [ranks.log(rank) for rank in range(RANKS)]
    _check(results, digests)
    for result, log in zip(results, logs, strict=True):
        assert "gloo" not in result["paths"]
        assert result["generation"] == 0
        assert result["longest_s"] < 20
        assert f"switch {both[1].address}: contributions now go by the custodian" in log


def test_a_switch_that_comes_late_is_used_beside_the_other(tmp_path: Path, digests: list[str]) -> None:
    with ExitStack() as stack:
        both = switches(stack, tmp_path, (), ())
        both[1].start()
        with Ranks(
            RANKS, f"{HERE}:reduce_steps", tmp_path, named(*both), notes=str(tmp_path), until="enough"
        ) as ranks:
            step = _wait_for(tmp_path, RANKS, 3, "switch")
            both[0].start()
            step = _wait_for(tmp_path, RANKS, step + 1, "switch_x2")
            _wait_for(tmp_path, RANKS, step + 5, "switch_x2")
            assert [len(switch.jobs()) for switch in both] == [1, 1]
            (tmp_path / "enough").touch()
            results = ranks.results()
    _check(results, digests)
    for result in results:
        assert result["events"] == ["switch", "gloo", "switch x2"]
        assert result["generation"] == 1


def test_an_agent_that_fails_at_one_switch_costs_no_step(tmp_path: Path, digests: list[str]) -> None:
    """All leave both agents for Gloo, do again what was under way at either, and come back to both."""
    with ExitStack() as stack:
        both = switches(stack, tmp_path, (), ())
        for switch in both:
            switch.start()
        with Ranks(
            *(RANKS, f"{HERE}:reduce_steps_and_fail", tmp_path, named(*both)),
            bad_rank=1,
            notes=str(tmp_path),
            until="enough",
        ) as ranks:
            _wait_for(tmp_path, RANKS, 1, "gloo")
            step = _wait_for(tmp_path, RANKS, 2, "switch_x2")
            _wait_for(tmp_path, RANKS, step + 5, "switch_x2")
            (tmp_path / "enough").touch()
            results = ranks.results()
        assert [switch.jobs() for switch in both] == [[], []]
    _check(results, digests)
    for result in results:
        assert result["events"] == ["switch x2", "gloo", "switch x2"]
        assert result["generation"] == 1


def test_a_switch_with_less_room_gets_less(tmp_path: Path, digests: list[str]) -> None:
    with ExitStack() as stack:
        both = switches(stack, tmp_path, (), ("--memory", "256KiB"))
        for switch in both:
            switch.start()
        results = run_ranks(RANKS, f"{HERE}:reduce_steps", tmp_path, named(*both))
    _check(results, digests)
    for result in results:
        large, small = result["switches"]
        assert 0.1 < small["weight"] / large["weight"] < 0.4
        assert small["results"] < 0.6 * large["results"]


def test_a_switch_that_is_full_is_done_without(tmp_path: Path, digests: list[str]) -> None:
    with ExitStack() as stack:
        both = switches(stack, tmp_path, (), ("--jobs", "1"))
        for switch in both:
            switch.start()
        # Another job has its only place.
        with Ranks(
            2, f"{HERE}:reduce_steps", tmp_path, named(both[1]), notes=str(tmp_path), until="enough"
        ) as ranks:
            _wait_for(tmp_path, 2, 1, "switch")
            folder = tmp_path / "other"
            folder.mkdir()
            results = run_ranks(RANKS, f"{HERE}:reduce_steps", folder, named(*both))
            (tmp_path / "enough").touch()
            ranks.results()
    _check(results, digests)
    for result in results:
        assert result["events"] == ["switch"]
