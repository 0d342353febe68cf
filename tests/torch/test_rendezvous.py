"""Who is on which host: workers are numbered by their first rank."""

import pytest

pytest.importorskip("torch")

import torch.distributed as dist

from paceline.torch.rendezvous import StorePrefix, find_rank_place, rank_place


def test_ranks_of_one_host_are_one_worker() -> None:
    place = rank_place(2, ["a", "b", "a", "b", "c"])
    assert (place.worker, place.workers, place.first_ranks, place.local, place.local_rank) == (
        0,
        3,
        (0, 1, 4),
        (0, 2),
        1,
    )
    assert rank_place(4, ["a", "b", "a", "b", "c"]).worker == 2


def test_one_rank_that_does_not_share_and_none_does() -> None:
    keys = StorePrefix(dist.HashStore(), "test/", 5.0)
    keys.set("host/1", "0same")
    place = find_rank_place(keys, 0, 2, "same", True)
    assert (place.workers, place.local) == (2, (0,))


def test_a_key_that_nobody_sets_is_named() -> None:
    keys = StorePrefix(dist.HashStore(), "test/", 0.1)
    with pytest.raises(TimeoutError, match=r"nobody set lost in the job's store within 0\.1 s"):
        keys.get("lost")
    part = keys.part("below/")
    part.set("key", "value")
    assert part.get("key") == "value"
    assert part.add("count") == 1
