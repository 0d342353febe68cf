"""The ledger of micro-batches: claims, leases, second claims, commits, deaths; shares that are a partition."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.bits import ALL_SHARES, share_bits
from paceline.core.help.ledger import NOBODY, Ledger

LEASE_NS = 100


def _adopt(ledger: Ledger, worker: int, now_ns: int) -> set[int]:
    """One worker claims and computes all that is left."""
    done = set()
    while (m := ledger.claim(worker, now_ns)) != NOBODY:
        assert ledger.finish(m, ledger.claim_number(m, worker))
        done.add(m)
    return done


def test_the_owner_claims_from_the_head_and_helpers_from_the_tail() -> None:
    ledger = Ledger(0, 4, LEASE_NS)
    assert [ledger.claim(worker, 0) for worker in (0, 1, 2, 0)] == [0, 3, 2, 1]


def test_when_nothing_is_free_the_oldest_claim_gets_a_second() -> None:
    ledger = Ledger(0, 2, LEASE_NS)
    assert ledger.claim(0, 10) == 0
    assert ledger.claim(1, 20) == 1
    assert ledger.claim(2, 30) == 0
    assert ledger.claim(3, 40) == 1
    assert ledger.claim(4, 50) == NOBODY


@pytest.mark.parametrize("winner", [0, 2])
def test_the_first_of_two_claims_to_finish_counts_and_the_other_is_fenced(winner: int) -> None:
    ledger = Ledger(0, 1, LEASE_NS)
    ledger.claim(0, 0)
    ledger.claim(2, 1)
    numbers = {worker: ledger.claim_number(0, worker) for worker in (0, 2)}
    assert ledger.finish(0, numbers[winner])
    assert not ledger.finish(0, numbers[2 - winner])
    assert ledger.freeze()
    assert [ledger.share_of(worker) for worker in (winner, 2 - winner)] == [ALL_SHARES, 0]


def test_a_lease_that_runs_out_fences_the_late_worker() -> None:
    ledger = Ledger(0, 1, LEASE_NS)
    ledger.claim(1, 0)
    late = ledger.claim_number(0, 1)
    assert ledger.claim(2, LEASE_NS) == 0
    assert not ledger.renew(0, late, LEASE_NS)
    assert not ledger.finish(0, late)
    assert ledger.finish(0, ledger.claim_number(0, 2))


def test_a_renewed_lease_holds() -> None:
    ledger = Ledger(0, 1, LEASE_NS)
    ledger.claim(1, 0)
    number = ledger.claim_number(0, 1)
    assert ledger.renew(0, number, LEASE_NS - 1)
    assert ledger.claim(1, LEASE_NS) == NOBODY
    assert ledger.finish(0, number)


def test_what_a_dead_helper_had_computed_is_free_again_before_the_freeze() -> None:
    ledger = Ledger(0, 2, LEASE_NS)
    m = ledger.claim(1, 0)
    assert ledger.finish(m, ledger.claim_number(m, 1))
    assert ledger.leave(1) == 1
    assert ledger.claim(2, 1) == m


def test_only_a_death_changes_what_is_frozen() -> None:
    ledger = Ledger(0, 1, LEASE_NS)
    ledger.claim(1, 0)
    assert not ledger.freeze()
    ledger.finish(0, ledger.claim_number(0, 1))
    assert ledger.freeze()
    assert ledger.leave(3) == 0
    assert ledger.claim(2, 5) == NOBODY
    assert ledger.share_of(1) == ALL_SHARES


def test_a_helper_that_dies_after_the_freeze_thaws_the_ledger() -> None:
    ledger = Ledger(0, 4, LEASE_NS)
    for worker in (0, 1, 2, 1):
        m = ledger.claim(worker, 0)
        assert ledger.finish(m, ledger.claim_number(m, worker))
    assert ledger.freeze()
    kept = ledger.share_of(2)
    assert ledger.leave(1) == 2
    assert not ledger.freeze()
    assert _adopt(ledger, 3, 1) == {1, 3}
    assert ledger.freeze()
    assert ledger.share_of(2) == kept
    assert ledger.share_of(3) == share_bits(1, 4) | share_bits(3, 4)
    assert ledger.share_of(1) == 0


def test_a_committed_micro_batch_gets_no_second_claim_and_its_lease_does_not_run_out() -> None:
    ledger = Ledger(0, 1, LEASE_NS)
    ledger.claim(1, 0)
    number = ledger.claim_number(0, 1)
    assert ledger.commit(0, number)
    assert ledger.claim(2, 10 * LEASE_NS) == NOBODY
    assert ledger.freeze()
    assert ledger.share_of(1) == ALL_SHARES
    assert ledger.renew(0, number, 0)
    assert ledger.finish(0, number)


@pytest.mark.parametrize("winner", [1, 2])
def test_the_first_of_two_claims_to_commit_fences_the_other(winner: int) -> None:
    ledger = Ledger(0, 1, LEASE_NS)
    ledger.claim(1, 0)
    ledger.claim(2, 0)
    numbers = {worker: ledger.claim_number(0, worker) for worker in (1, 2)}
    assert ledger.commit(0, numbers[winner])
    assert not ledger.commit(0, numbers[3 - winner])
    assert not ledger.finish(0, numbers[3 - winner])
    assert not ledger.renew(0, numbers[3 - winner], 0)


def test_the_owner_keeps_its_first_micro_batches_while_it_lives() -> None:
    ledger = Ledger(0, 3, LEASE_NS, keep=1)
    assert [ledger.claim(helper, helper) for helper in (1, 2, 3)] == [2, 1, 2]
    assert ledger.claim(0, 4) == 0
    assert ledger.claim(4, 5) == 1
    assert ledger.claim(5, 6) == NOBODY
    ledger.leave(0)
    assert ledger.claim(5, 7) == 0


def test_one_helper_adopts_all_that_a_dead_worker_had() -> None:
    ledger = Ledger(4, 5, LEASE_NS, keep=1)
    m = ledger.claim(4, 0)
    ledger.finish(m, ledger.claim_number(m, 4))
    ledger.leave(4)
    assert _adopt(ledger, 2, 0) == {0, 1, 2, 3, 4}
    assert ledger.freeze()
    assert ledger.share_of(2) == ALL_SHARES
    assert _adopt(ledger, 3, 0) == set()


@pytest.mark.parametrize("count", [0, 65])
def test_a_ledger_has_at_most_a_mask_of_micro_batches(count: int) -> None:
    with pytest.raises(ValueError, match="micro-batches"):
        Ledger(0, count, LEASE_NS)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_micro_batch_is_in_exactly_one_share_whatever_happens(data: st.DataObject) -> None:
    """Random claims, renewals, results, late results, deaths: the frozen shares are a partition."""
    workers, batches = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 8))
    ledger = Ledger(0, batches, LEASE_NS)
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
            m = ledger.claim(worker, now)
            if m != NOBODY:
                held.append((worker, m, ledger.claim_number(m, worker)))
        elif action == "leave":
            ledger.leave(worker)
            accepted = {m: owner for m, owner in accepted.items() if owner != worker}
        elif action == "freeze":
            ledger.freeze()
        elif held:
            owner, m, number = held[data.draw(st.integers(0, len(held) - 1))]
            if action == "renew":
                ledger.renew(m, number, now)
            elif action == "commit":
                if ledger.commit(m, number):
                    assert m not in accepted
                    accepted[m] = owner
            elif ledger.finish(m, number):
                assert accepted.get(m, owner) == owner
                accepted[m] = owner
    while not ledger.freeze():
        now += LEASE_NS
        m = ledger.claim(workers, now)
        assert m != NOBODY
        assert ledger.finish(m, ledger.claim_number(m, workers))
        accepted[m] = workers
    shares = {worker: ledger.share_of(worker) for worker in range(workers + 1)}
    assert sum(shares.values()) == int(ALL_SHARES)
    for m, owner in accepted.items():
        assert shares[owner] & int(share_bits(m, batches)) == int(share_bits(m, batches))
