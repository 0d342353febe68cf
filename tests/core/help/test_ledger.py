"""The ledger of micro-batches: claims, leases, second claims, commits, deaths; shares that are a partition."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.bits import ALL_SHARES, share_bits
from paceline.core.help import ledger as books
from paceline.core.help.ledger import NOBODY

LEASE_NS = 100


def test_the_owner_claims_from_the_head_and_helpers_from_the_tail() -> None:
    ledger = books.new_ledger(0, 4, LEASE_NS)
    assert [books.claim(ledger, worker, 0) for worker in (0, 1, 2, 0)] == [0, 3, 2, 1]


def test_when_nothing_is_free_the_oldest_claim_gets_a_second() -> None:
    ledger = books.new_ledger(0, 2, LEASE_NS)
    assert books.claim(ledger, 0, 10) == 0
    assert books.claim(ledger, 1, 20) == 1
    assert books.claim(ledger, 2, 30) == 0
    assert books.claim(ledger, 3, 40) == 1
    assert books.claim(ledger, 4, 50) == NOBODY


@pytest.mark.parametrize("winner", [0, 2])
def test_the_first_of_two_claims_to_finish_counts_and_the_other_is_fenced(winner: int) -> None:
    ledger = books.new_ledger(0, 1, LEASE_NS)
    books.claim(ledger, 0, 0)
    books.claim(ledger, 2, 1)
    numbers = {worker: books.claim_number(ledger, 0, worker) for worker in (0, 2)}
    assert books.finish(ledger, 0, numbers[winner])
    assert not books.finish(ledger, 0, numbers[2 - winner])
    assert books.freeze(ledger)
    assert [books.share_of(ledger, worker) for worker in (winner, 2 - winner)] == [ALL_SHARES, 0]


def test_a_lease_that_runs_out_fences_the_late_worker() -> None:
    ledger = books.new_ledger(0, 1, LEASE_NS)
    books.claim(ledger, 1, 0)
    late = books.claim_number(ledger, 0, 1)
    assert books.claim(ledger, 2, LEASE_NS) == 0
    assert not books.renew(ledger, 0, late, LEASE_NS)
    assert not books.finish(ledger, 0, late)
    assert books.finish(ledger, 0, books.claim_number(ledger, 0, 2))


def test_a_renewed_lease_holds() -> None:
    ledger = books.new_ledger(0, 1, LEASE_NS)
    books.claim(ledger, 1, 0)
    number = books.claim_number(ledger, 0, 1)
    assert books.renew(ledger, 0, number, LEASE_NS - 1)
    assert books.claim(ledger, 1, LEASE_NS) == NOBODY
    assert books.finish(ledger, 0, number)


def test_what_a_dead_helper_had_computed_is_free_again_before_the_freeze() -> None:
    ledger = books.new_ledger(0, 2, LEASE_NS)
    m = books.claim(ledger, 1, 0)
    assert books.finish(ledger, m, books.claim_number(ledger, m, 1))
    assert books.leave(ledger, 1) == 1
    assert books.claim(ledger, 2, 1) == m


def test_nothing_may_be_sent_before_the_freeze_and_only_a_death_changes_it() -> None:
    ledger = books.new_ledger(0, 1, LEASE_NS)
    books.claim(ledger, 1, 0)
    assert not books.freeze(ledger)
    books.finish(ledger, 0, books.claim_number(ledger, 0, 1))
    assert int(books.share_of(ledger, 1)) == 0
    assert books.freeze(ledger)
    assert books.leave(ledger, 3) == 0
    assert books.claim(ledger, 2, 5) == NOBODY
    assert books.share_of(ledger, 1) == ALL_SHARES


def test_a_helper_that_dies_after_the_freeze_thaws_the_ledger() -> None:
    ledger = books.new_ledger(0, 4, LEASE_NS)
    for worker in (0, 1, 2, 1):
        m = books.claim(ledger, worker, 0)
        assert books.finish(ledger, m, books.claim_number(ledger, m, worker))
    assert books.freeze(ledger)
    kept = books.share_of(ledger, 2)
    assert books.leave(ledger, 1) == 2
    assert not books.freeze(ledger)
    assert books.share_of(ledger, 2) == 0
    assert books.adopt(ledger, 3, 1) == 2
    for m in (1, 3):
        assert books.finish(ledger, m, books.claim_number(ledger, m, 3))
    assert books.freeze(ledger)
    assert books.share_of(ledger, 2) == kept
    assert books.share_of(ledger, 3) == share_bits(1, 4) | share_bits(3, 4)
    assert books.share_of(ledger, 1) == 0


def test_a_committed_micro_batch_gets_no_second_claim_and_its_lease_does_not_run_out() -> None:
    ledger = books.new_ledger(0, 1, LEASE_NS)
    books.claim(ledger, 1, 0)
    number = books.claim_number(ledger, 0, 1)
    assert books.commit(ledger, 0, number)
    assert books.claim(ledger, 2, 10 * LEASE_NS) == NOBODY
    assert books.freeze(ledger)
    assert books.share_of(ledger, 1) == ALL_SHARES
    assert books.renew(ledger, 0, number, 0)
    assert books.finish(ledger, 0, number)


@pytest.mark.parametrize("winner", [1, 2])
def test_the_first_of_two_claims_to_commit_fences_the_other(winner: int) -> None:
    ledger = books.new_ledger(0, 1, LEASE_NS)
    books.claim(ledger, 1, 0)
    books.claim(ledger, 2, 0)
    numbers = {worker: books.claim_number(ledger, 0, worker) for worker in (1, 2)}
    assert books.commit(ledger, 0, numbers[winner])
    assert not books.commit(ledger, 0, numbers[3 - winner])
    assert not books.finish(ledger, 0, numbers[3 - winner])
    assert not books.renew(ledger, 0, numbers[3 - winner], 0)


def test_the_owner_keeps_its_first_micro_batches_while_it_lives() -> None:
    ledger = books.new_ledger(0, 3, LEASE_NS, keep=1)
    assert [books.claim(ledger, helper, helper) for helper in (1, 2, 3)] == [2, 1, 2]
    assert books.claim(ledger, 0, 4) == 0
    assert books.claim(ledger, 4, 5) == 1
    assert books.claim(ledger, 5, 6) == NOBODY
    books.leave(ledger, 0)
    assert books.claim(ledger, 5, 7) == 0


def test_one_helper_adopts_all_that_a_dead_worker_had() -> None:
    ledger = books.new_ledger(4, 5, LEASE_NS, keep=1)
    m = books.claim(ledger, 4, 0)
    books.finish(ledger, m, books.claim_number(ledger, m, 4))
    books.leave(ledger, 4)
    assert books.adopt(ledger, 2, 0) == 5
    for m in range(5):
        assert books.finish(ledger, m, books.claim_number(ledger, m, 2))
    assert books.freeze(ledger)
    assert books.share_of(ledger, 2) == ALL_SHARES
    assert books.adopt(ledger, 3, 0) == 0


@pytest.mark.parametrize("count", [0, 65])
def test_a_ledger_has_at_most_a_mask_of_micro_batches(count: int) -> None:
    with pytest.raises(ValueError, match="micro-batches"):
        books.new_ledger(0, count, LEASE_NS)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_micro_batch_is_in_exactly_one_share_whatever_happens(data: st.DataObject) -> None:
    """Random claims, renewals, results, late results, deaths: the frozen shares are a partition."""
    workers, batches = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 8))
    ledger = books.new_ledger(0, batches, LEASE_NS)
    held: list[tuple[int, int, int]] = []
    accepted: dict[int, int] = {}
    now = 0
    for _ in range(data.draw(st.integers(0, 60))):
        now += data.draw(st.integers(0, LEASE_NS))
        action = data.draw(
            st.sampled_from(["claim", "claim", "finish", "finish", "renew", "commit", "leave", "freeze"])
        )
        worker = data.draw(st.integers(0, workers - 1))
        if action == "claim":
            m = books.claim(ledger, worker, now)
            if m != NOBODY:
                held.append((worker, m, books.claim_number(ledger, m, worker)))
        elif action == "leave":
            books.leave(ledger, worker)
            accepted = {m: owner for m, owner in accepted.items() if owner != worker}
        elif action == "freeze":
            books.freeze(ledger)
        elif held:
            owner, m, number = held[data.draw(st.integers(0, len(held) - 1))]
            if action == "renew":
                books.renew(ledger, m, number, now)
            elif action == "commit":
                if books.commit(ledger, m, number):
                    assert m not in accepted
                    accepted[m] = owner
            elif books.finish(ledger, m, number):
                assert accepted.get(m, owner) == owner
                accepted[m] = owner
    while not books.freeze(ledger):
        now += LEASE_NS
        m = books.claim(ledger, workers, now)
        assert m != NOBODY
        assert books.finish(ledger, m, books.claim_number(ledger, m, workers))
        accepted[m] = workers
    shares = {worker: int(books.share_of(ledger, worker)) for worker in range(workers + 1)}
    assert sum(shares.values()) == int(ALL_SHARES)
    for m, owner in accepted.items():
        assert shares[owner] & int(share_bits(m, batches)) == int(share_bits(m, batches))
