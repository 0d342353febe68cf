"""Homes: which aggregators a job uses, once the switch has said who shares them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core import wire
from paceline.core.homes import HOME, SHARERS_MAX, home_index, home_word, is_home, sharers_in
from paceline.core.switch import program as sw
from paceline.core.switch.state import MEMORY_NS, SHARES_NS, SIDE_BY_SIDE_NS
from tests.core.headers import Bench, Out, header, mask_of


@given(st.integers(1, 300), st.integers(1, 400))
def test_homes_of_different_jobs_have_no_aggregator_in_common_where_there_are_enough(
    sharers: int, slots: int
) -> None:
    size = max(1, slots // sharers)
    homes = [
        {home_index(home_word(place, sharers), slots, chunk) for chunk in range(2 * size)}
        for place in range(sharers)
    ]
    assert all(home <= set(range(slots)) for home in homes)
    assert all(len(home) == size for home in homes)
    if sharers <= slots:
        assert len(set.union(*homes)) == sharers * size


def test_a_job_does_not_meet_itself_in_its_home() -> None:
    word = home_word(1, 2)
    for first in range(1_000_000, 1_000_044):
        assert len({home_index(word, 44, first + k) for k in range(22)}) == 22


@given(st.integers(0, 2**32 - 1))
def test_whatever_an_offer_says_the_index_is_one_of_the_memory(offer: int) -> None:
    if is_home(offer):
        assert 0 <= home_index(offer, 44, 12_345) < 44
        assert 0 < sharers_in(offer) <= SHARERS_MAX


def test_who_only_asks_has_no_home_and_an_index_is_none() -> None:
    assert not is_home(HOME)
    assert not is_home(43)


# --- the switch ----------------------------------------------------------------------------------------------------


def _sum(bench: Bench, job: int, chunk: int, index: int, offer: int = HOME) -> Out:
    bench.gradient(0, job=job, chunk=chunk, index=index, offer=offer)
    return bench.gradient(1, job=job, chunk=chunk, index=index, offer=offer)


@pytest.mark.parametrize("policy", ["esa", "esa-plus"])
def test_results_tell_where_the_home_begins_and_how_many_jobs_share(policy: str) -> None:
    bench = Bench(policy, jobs=3, slots=8)
    assert _sum(bench, 2, 0, 0).packet.offer == HOME
    _sum(bench, 0, 0, 1)
    bench.now_ns += SIDE_BY_SIDE_NS // 2
    assert _sum(bench, 2, 1, 0).packet.offer == home_word(1, 2)
    assert _sum(bench, 0, 1, 1).packet.offer == home_word(0, 2)
    bench.now_ns += 2 * SHARES_NS
    assert _sum(bench, 2, 2, 0).packet.offer == HOME


def test_jobs_that_send_one_after_the_other_have_all_of_the_memory_each() -> None:
    """Half of them side by side, now and then, are enough for homes; those are remembered for a while."""
    bench = Bench("esa-plus", jobs=3, slots=8)
    for job in range(3):
        _sum(bench, job, 0, job)
    assert _sum(bench, 0, 1, 0).packet.offer == home_word(0, 3)
    said = []
    for turn in range(1, 16):
        bench.now_ns += MEMORY_NS // 4
        said.append(is_home(_sum(bench, turn % 3, 1 + turn, 0).packet.offer))
    assert said == 9 * [True] + 6 * [False]


def test_who_does_not_ask_is_told_nothing() -> None:
    assert _sum(Bench("esa-plus"), 0, 0, 0, offer=0).packet.offer == 0


def test_a_job_that_has_left_has_no_home() -> None:
    bench = Bench("esa-plus", slots=8)
    _sum(bench, 0, 0, 0)
    assert _sum(bench, 1, 0, 1).packet.offer == home_word(1, 2)
    sw.release_job(bench.switch, 0, 0)
    assert _sum(bench, 1, 1, 1).packet.offer == HOME


def test_a_partial_that_loses_its_place_says_where_its_own_job_is_at_home() -> None:
    """Not where the one is that took it."""
    bench = Bench("always-preempt", slots=8)
    _sum(bench, 0, 0, 3)
    _sum(bench, 1, 0, 4)
    bench.gradient(0, job=0, chunk=1, index=0, offer=HOME)
    out = bench.gradient(0, job=1, chunk=1, index=0, offer=HOME)
    assert (out.verdict, out.packet.job) == (sw.TO_CUSTODIAN, 0)
    assert out.packet.offer == home_word(0, 2)


def test_a_result_that_is_given_again_tells_the_home_too() -> None:
    bench = Bench("esa-plus", slots=8)
    _sum(bench, 1, 0, 1)
    _sum(bench, 0, 0, 0)
    out = bench.put(
        header(wire.QUERY, chunk=0, index=0, count=0, mask=mask_of(1), worker=1, flag=0, offer=HOME)
    )
    assert (out.verdict, out.packet.kind) == (sw.TO_WORKER, wire.RESULT)
    assert out.packet.offer == home_word(0, 2)


def test_the_home_is_on_the_wire() -> None:
    data = np.zeros(wire.HEADER_BYTES, dtype=np.uint8)
    packet, back = (
        header(offer=home_word(SHARERS_MAX - 1, SHARERS_MAX), count=0),
        wire.new_packets(1)[0],
    )
    length = wire.encode_at(packet, data, 0)
    assert wire.decode_at(data, 0, length, back) == wire.OK
    assert back.offer == packet.offer
