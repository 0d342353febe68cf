"""`PACELINE_WIRE=16`: float32 in 16 bits, and what rounding took comes with the tensor's next sum."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from paceline.core.numbers.layout import FLOAT32, LAYOUT, lay_out
from paceline.core.numbers.residual import GivenPart
from paceline.torch.failover.pending import PendingReduction, ReductionQueue
from paceline.torch.feedback import Feedback, FeedbackStore, memory_of
from tests.torch.ranks import run_ranks

HERE = "tests.torch.test_feedback"
NUMBERS = 20_000
STEPS = 12


# --- whose contribution is the one before --------------------------------------------------------------------


def test_a_tensor_is_known_by_its_storage_place_and_shape() -> None:
    store = FeedbackStore()
    tensor = torch.zeros(4, NUMBERS)

    def known(part: Any) -> Feedback:
        memory = memory_of(part)
        assert memory is not None
        return store.of(memory)

    assert known(tensor[1]) is known(tensor.view(-1)[NUMBERS : 2 * NUMBERS]), "the same numbers"
    others = [tensor[2], tensor, tensor.t(), tensor.view(2, 2 * NUMBERS), tensor.clone()]
    assert len({id(known(part)) for part in (*others, tensor[1])}) == 6
    whole = memory_of(tensor)
    assert whole is not None
    assert store.of(whole.part(0)) is not store.of(whole.part(NUMBERS))


def test_what_is_small_or_of_another_format_has_none() -> None:
    assert memory_of(torch.zeros(16_384)) is None
    assert memory_of(torch.zeros(NUMBERS, dtype=torch.bfloat16)) is None
    assert memory_of(torch.zeros(NUMBERS, dtype=torch.int32)) is None


def test_a_tensor_made_anew_is_another_one_even_at_the_same_address() -> None:
    store, tensor = FeedbackStore(), torch.zeros(NUMBERS)
    memory = memory_of(tensor)
    assert memory is not None
    first = store.of(memory)
    del tensor, memory
    assert first.over()
    tensors = [torch.zeros(NUMBERS) for _ in range(3)]
    for tensor in tensors:
        memory = memory_of(tensor)
        assert memory is not None
        assert store.of(memory) is not first
    assert len(store) == 3, "what is no more is forgotten"


# --- what is kept --------------------------------------------------------------------------------------------


def _agreed(size: int, exponent: int) -> GivenPart:
    """As if all patches had steps of two to the exponent."""
    layouts: Any = np.zeros(1, LAYOUT).view(np.recarray)
    lay_out(layouts[0], size, FLOAT32, 0, 352, 1, 16)
    return GivenPart(size, np.full(layouts[0].blocks + layouts[0].patches, exponent + 1024, np.int32), 352, 1)


def _entry(value: float, feedback: Feedback | None) -> PendingReduction:
    array = np.full(NUMBERS, value, np.float32)
    return PendingReduction(array, "float32", "sum", 128, 60.0, lambda _error: None, 16, feedback)


def test_a_residual_goes_into_what_is_sent_and_kept() -> None:
    queue, feedback = ReductionQueue(), Feedback(None)
    for value, sent in ((1.3, 1.3), (1.3, 1.6), (1.3, 0.9), (0.0, -0.1)):
        entry = _entry(value, feedback)
        queue.add(entry)
        queue.begin(entry, 0.0)
        assert entry.kept is not None
        for array in (entry.array, entry.kept):
            np.testing.assert_allclose(array, sent, rtol=1e-5)
        entry.array[:] = 99  # the result
        queue.begin(entry, 1.0)  # again: from what was sent
        np.testing.assert_allclose(entry.array, sent, rtol=1e-5)
        queue.finish(entry, [_agreed(NUMBERS, 0)])
        queue.finish(entry, [_agreed(NUMBERS, 0)])  # as after Gloo has done it again


def test_done_again_is_not_the_latest() -> None:
    """A worker that has later results already throws those of Gloo away, and their place in the order."""
    queue, feedback = ReductionQueue(), Feedback(None)
    entries = [_entry(value, feedback) for value in (1.25, 0.5)]
    for entry in entries:
        queue.add(entry)
        queue.begin(entry, 0.0)
        queue.finish(entry, [_agreed(NUMBERS, 1)])
    queue.finish(entries[0], [_agreed(NUMBERS, 1)])
    assert feedback.seq == 1
    last = _entry(0.0, feedback)
    queue.add(last)
    queue.begin(last, 0.0)
    assert (last.array == -0.25).all(), "1.25 = 2 - 0.75; 0.5 - 0.75 = 0 - 0.25"


def test_no_other_reduction_gets_memory_that_is_still_needed() -> None:
    queue = ReductionQueue(count_max=2)
    kept: dict[int, Any] = {}
    feedbacks = [Feedback(None) for _ in range(3)]
    made = []
    for step in range(30):
        feedback = feedbacks[step % 3] if step % 4 else None
        entry = _entry(float(step), feedback)
        queue.add(entry)
        queue.begin(entry, 0.0)
        assert entry.kept is not None
        assert not any(one.holds(entry.kept) for one in feedbacks)
        assert all(
            np.shares_memory(entry.kept, other.kept) is False for other in made if other.kept is not None
        )
        made.append(entry)
        queue.finish(entry, [_agreed(NUMBERS, 0)])
        if feedback is not None:
            kept[id(feedback)] = entry.kept.copy()
        for one in feedbacks:
            if one._given is not None:
                assert (one._given.values == kept[id(one)]).all()
    addresses = {entry.array.ctypes.data for entry in made}
    assert len(queue._pool[4 * NUMBERS]) <= 4, "memory is used again"
    assert addresses


# --- with ranks ----------------------------------------------------------------------------------------------


def steps(rank: int, bad_rank: int = -1, servers: bool = False, made_anew: bool = False) -> dict[str, Any]:
    """Two tensors a step, in memory that lasts; the agent of one rank says that a reduction failed."""
    import functools
    import os
    import time

    import torch.distributed as dist

    import paceline.torch
    from paceline.live.agent.agent import Agent, ReductionError
    from paceline.torch.failover import switch_search
    from paceline.torch.reduce import network

    failed: list[int] = []

    class Unlucky(Agent):
        def submit(self, *args: Any, **more: Any) -> Any:
            handle = super().submit(*args, **more)
            if rank == bad_rank and handle.ticket == 7 and not failed:
                failed.append(1)
                handle.wait(60)
                handle.error = lambda: ReductionError("made to fail")  # type: ignore[method-assign]
            return handle

    os.environ |= {"PACELINE_SERVER": f"server {rank // 2}"} if servers else {"PACELINE_HOST_REDUCE": "0"}
    switch_search.RETRY_S = (0.2, 0.2)
    network.AgentPath = functools.partial(network.AgentPath, make_agent=Unlucky)  # type: ignore[misc, assignment]
    dist.init_process_group("paceline")
    tensors = [torch.zeros(NUMBERS), torch.zeros(2 * NUMBERS)]
    lost, digests, paths = torch.zeros(3 * NUMBERS, dtype=torch.float64), [], []
    for step in range(STEPS):
        fresh = [torch.randn(t.numel(), generator=_generator(rank, 0)) for t in tensors]
        if made_anew:
            tensors = [torch.empty_like(t) for t in tensors]
        for tensor, gradient in zip(tensors, fresh, strict=True):
            tensor.copy_(gradient)
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            assert work is not None
            work.wait()
        true = [torch.zeros(t.numel(), dtype=torch.float64) for t in tensors]
        for other in range(dist.get_world_size()):
            for total in true:
                total += torch.randn(total.numel(), generator=_generator(other, 0)).double()
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(tensor.numpy().tobytes())
        digests.append(digest.hexdigest())
        lost += torch.cat(tensors).double() - torch.cat(true)
        paths.append(paceline.torch.status()[0]["path"])
        time.sleep(0.1 if bad_rank >= 0 and step > 3 else 0.0)
    dist.destroy_process_group()
    return {"digests": digests, "paths": paths, "lost": float(lost.norm() / lost.numel() ** 0.5)}


def _generator(rank: int, step: int) -> Any:
    return torch.Generator().manual_seed(100 * step + rank)


def _run(ranks: int, folder: Path, **more: Any) -> list[Any]:
    folder.mkdir()
    results = run_ranks(ranks, f"{HERE}:steps", folder, {"PACELINE_WIRE": "16"}, **more)
    if not more.get("servers"):
        assert all(result["digests"] == results[0]["digests"] for result in results)
    return results


def test_errors_do_not_add_up_and_no_path_changes_a_bit(tmp_path: Path) -> None:
    plain = _run(2, tmp_path / "plain")[0]
    failing = _run(2, tmp_path / "failing", bad_rank=1)[0]
    anew = _run(2, tmp_path / "anew", made_anew=True)[0]
    assert "gloo" in failing["paths"]
    assert failing["digests"] == plain["digests"]
    assert anew["digests"][0] == plain["digests"][0]
    assert anew["lost"] > 4 * plain["lost"], "the same error twelve times, and not once"


def test_ranks_of_a_server_have_the_residual_of_their_sum(tmp_path: Path) -> None:
    plain = _run(4, tmp_path / "plain", servers=True)[0]
    anew = _run(4, tmp_path / "anew", servers=True, made_anew=True)[0]
    assert anew["lost"] > 4 * plain["lost"]


def train(rank: int) -> dict[str, Any]:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import paceline.torch  # noqa: F401 (registers the backend)
    from paceline.torch.process_group import GROUPS

    dist.init_process_group("paceline")
    torch.manual_seed(3)
    layers = [module for _ in range(3) for module in (torch.nn.Linear(200, 200), torch.nn.Tanh())]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data, known, steps_of = torch.Generator().manual_seed(rank), [], []
    (store,) = [group.reducer._feedbacks for group in GROUPS]
    for _ in range(50):
        optimizer.zero_grad()
        model(torch.randn(6, 200, generator=data)).square().mean().backward()
        optimizer.step()
        known.append(len(store))
        steps_of.append(sorted(one.seq for one in store._known.values()))
    digest = hashlib.sha256(
        torch.cat([p.detach().flatten() for p in model.parameters()]).numpy().tobytes()
    ).hexdigest()
    dist.destroy_process_group()
    return {"known": known, "steps": steps_of, "digest": digest}


def test_buckets_that_are_formed_anew_begin_anew(tmp_path: Path) -> None:
    results = run_ranks(2, f"{HERE}:train", tmp_path, {"PACELINE_WIRE": "16", "PACELINE_HOST_REDUCE": "0"})
    assert results[0]["digest"] == results[1]["digest"]
    for result in results:
        assert result["known"][0] == 1, "one bucket for all"
        assert result["steps"][1] == [0, 1, 2, 3]
        assert result["steps"][2] == [0, 4, 5, 6], "three, and the first step's, which nobody follows"
        # Its memory lives until no worker can ask for its sum any more.
        assert result["known"][-1] == 3
        assert result["steps"][-1] == [145, 146, 147]
