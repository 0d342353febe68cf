"""Reductions over Gloo have the bits that agents give, in every form of the wire."""

import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from torch.distributed import HashStore

from paceline.errors import UserError
from paceline.torch.failover.gloo_replay import ChunkedReduction, GlooCarrier
from paceline.torch.reduce.network import agreed_wire, wire_of
from paceline.torch.rendezvous import StorePrefix
from tests.core.numbers.reduction import reduce_all, to_bfloat16

WORKERS = 3


def _arrays(numbers: int, kind: str) -> list[Any]:
    drawn = [np.random.default_rng(seed).standard_normal(numbers) for seed in range(WORKERS)]
    if kind == "bfloat16":
        return [to_bfloat16(values) for values in drawn]
    return [(values * 1000).astype(kind) for values in drawn]


@pytest.mark.parametrize("numbers", [1, 3000, 50_001])
@pytest.mark.parametrize(
    ("kind", "wire"), [("float32", 32), ("int32", 32), ("bfloat16", 16), ("float32", 16)]
)
def test_rounds_give_what_agents_give(numbers: int, kind: str, wire: int) -> None:
    arrays = _arrays(numbers, kind)
    expected = reduce_all(arrays, kind, elements=352, wire=wire)
    reductions = [ChunkedReduction(array, kind, "sum", 352, WORKERS, wire) for array in arrays]
    target = np.empty_like(arrays[0])
    for only in reductions[0].rounds:
        buffers = [reduction.write(only).astype(np.int64) for reduction in reductions]
        sums = ((np.sum(buffers, axis=0) + 2**31) % 2**32 - 2**31).astype(np.int32)
        for reduction in reductions:
            reduction.read(only, sums, target)
        assert all(
            (array == again).all() for array, again in zip(arrays, _arrays(numbers, kind), strict=True)
        )
    assert target.tobytes() == expected.tobytes()


def test_gloo_gives_the_same_bits() -> None:
    store, arrays = HashStore(), _arrays(20_000, "bfloat16")
    expected = reduce_all(arrays, "bfloat16", elements=352, wire=16).tobytes()
    results: list[Any] = [None] * WORKERS

    def reduce(worker: int) -> None:
        carrier = GlooCarrier(store, worker, WORKERS, 352, 60.0)
        target = np.empty_like(arrays[worker])
        ready, _ = carrier.reduce(arrays[worker], "bfloat16", "sum", target, worker != 1, 60.0, 16)
        results[worker] = (ready, target.tobytes())
        carrier.close()

    threads = [threading.Thread(target=reduce, args=(worker,)) for worker in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120.0)
    assert results == [(False, expected)] * WORKERS


def test_ranks_must_agree_on_the_wire() -> None:
    def ask(wishes: list[int | None]) -> list[Any]:
        store, answers = HashStore(), [None] * len(wishes)

        def one(rank: int) -> None:
            keys = StorePrefix(store, "wire/", 30.0)
            try:
                answers[rank] = agreed_wire(keys, rank, len(wishes), wishes[rank])
            except UserError as error:
                answers[rank] = str(error)

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(wishes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
        return answers

    assert ask([32, 32]) == [32, 32]
    assert ask([None, None, None]) == [None] * 3
    told = "PACELINE_WIRE: must be the same on all ranks: it is unset on rank 0 and 32 on rank 2"
    assert ask([None, None, 32]) == [told] * 3


def test_formats_of_16_bits_travel_in_16_bits() -> None:
    assert [wire_of(kind, None) for kind in ("float32", "bfloat16", "float16")] == [32, 16, 16]
    assert [wire_of(kind, 32) for kind in ("float32", "bfloat16", "float16")] == [32, 32, 32]
