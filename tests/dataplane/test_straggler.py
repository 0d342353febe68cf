"""Detection and the ledger: figures by hand, and properties over random histories."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.dataplane import straggler
from paceline.dataplane.straggler import BANDWIDTH_STRAGGLER, COMPUTE_STRAGGLER, LEADING, NOBODY

LEASE_NS = 1_000


def judged(
    detection: straggler.Detection, delivered: list[int], computed: list[int] | None = None
) -> list[int]:
    """One window; the roles after it."""
    detection.workers.delivered[:] = delivered
    detection.workers.computed[:] = computed or delivered
    straggler.end_window(detection, np.zeros(len(delivered), dtype=np.int64))
    return [int(role) for role in detection.workers.role]


def test_two_windows_in_a_row_make_a_straggler() -> None:
    detection = straggler.new_detection(4, theta_chunks=10)
    assert judged(detection, [100, 100, 100, 89]) == [LEADING] * 4
    assert judged(detection, [200, 200, 200, 150])[3] == COMPUTE_STRAGGLER


def test_one_good_window_between_starts_the_count_anew() -> None:
    detection = straggler.new_detection(4, theta_chunks=10)
    judged(detection, [100, 100, 100, 50])
    judged(detection, [100, 100, 100, 95])
    assert judged(detection, [200, 200, 200, 100]) == [LEADING] * 4


def test_exactly_theta_behind_is_not_behind() -> None:
    detection = straggler.new_detection(3, theta_chunks=10, windows=1)
    assert judged(detection, [100, 100, 90]) == [LEADING] * 3
    assert judged(detection, [100, 100, 89])[2] != LEADING


def test_a_worker_that_computed_in_time_is_short_of_bandwidth() -> None:
    detection = straggler.new_detection(4, theta_chunks=10, windows=1)
    assert judged(detection, [100, 100, 100, 20], [110, 110, 110, 109])[3] == BANDWIDTH_STRAGGLER
    assert "bandwidth straggler" in straggler.explain(detection, 3)
    assert "80 behind the leaders' median of 100" in straggler.explain(detection, 3)


def test_stragglers_do_not_move_the_median() -> None:
    detection = straggler.new_detection(5, theta_chunks=10, windows=1)
    judged(detection, [100, 100, 100, 0, 0])
    judged(detection, [200, 200, 200, 0, 0])
    assert int(detection.median[0]) == 200


def test_two_clean_iterations_make_a_leader_again() -> None:
    detection = straggler.new_detection(3, theta_chunks=10, windows=1)
    judged(detection, [100, 100, 0])
    straggler.end_iteration(detection)
    judged(detection, [200, 200, 200])
    assert straggler.end_iteration(detection) == 0
    assert detection.workers[2].role == COMPUTE_STRAGGLER
    assert straggler.end_iteration(detection) == 1
    assert detection.workers[2].role == LEADING
    assert "leads" in straggler.explain(detection, 2)


def test_an_iteration_with_a_slow_window_is_not_clean() -> None:
    detection = straggler.new_detection(3, theta_chunks=10, windows=1)
    judged(detection, [100, 100, 0])
    straggler.end_iteration(detection)
    straggler.end_iteration(detection)
    judged(detection, [200, 200, 100])
    assert straggler.end_iteration(detection) == 0
    assert straggler.end_iteration(detection) == 0
    assert straggler.end_iteration(detection) == 1


def test_the_owner_claims_from_the_head_and_helpers_from_the_tail() -> None:
    ledger = straggler.new_ledger(0, 4, LEASE_NS)
    assert [straggler.claim(ledger, worker, 0) for worker in (0, 1, 2, 0)] == [0, 3, 2, 1]


def test_when_nothing_is_free_the_oldest_claim_gets_a_second() -> None:
    ledger = straggler.new_ledger(0, 2, LEASE_NS)
    assert straggler.claim(ledger, 0, 10) == 0
    assert straggler.claim(ledger, 1, 20) == 1
    assert straggler.claim(ledger, 2, 30) == 0
    assert straggler.claim(ledger, 3, 40) == 1
    assert straggler.claim(ledger, 4, 50) == NOBODY


@pytest.mark.parametrize("winner", [0, 2])
def test_the_first_of_two_claims_to_finish_counts_and_the_other_is_fenced(winner: int) -> None:
    ledger = straggler.new_ledger(0, 1, LEASE_NS)
    straggler.claim(ledger, 0, 0)
    straggler.claim(ledger, 2, 1)
    numbers = {worker: straggler.claim_number(ledger, 0, worker) for worker in (0, 2)}
    assert straggler.finish(ledger, 0, numbers[winner])
    assert not straggler.finish(ledger, 0, numbers[2 - winner])
    assert straggler.freeze(ledger)
    assert [int(straggler.share_of(ledger, worker)) for worker in (winner, 2 - winner)] == [1, 0]


def test_a_lease_that_runs_out_fences_the_late_worker() -> None:
    ledger = straggler.new_ledger(0, 1, LEASE_NS)
    straggler.claim(ledger, 1, 0)
    late = straggler.claim_number(ledger, 0, 1)
    assert straggler.claim(ledger, 2, LEASE_NS) == 0
    assert not straggler.renew(ledger, 0, late, LEASE_NS)
    assert not straggler.finish(ledger, 0, late)
    assert straggler.finish(ledger, 0, straggler.claim_number(ledger, 0, 2))


def test_a_renewed_lease_holds() -> None:
    ledger = straggler.new_ledger(0, 1, LEASE_NS)
    straggler.claim(ledger, 1, 0)
    number = straggler.claim_number(ledger, 0, 1)
    assert straggler.renew(ledger, 0, number, LEASE_NS - 1)
    assert straggler.claim(ledger, 1, LEASE_NS) == NOBODY
    assert straggler.finish(ledger, 0, number)


def test_what_a_dead_helper_had_computed_is_free_again_before_the_freeze() -> None:
    ledger = straggler.new_ledger(0, 2, LEASE_NS)
    m = straggler.claim(ledger, 1, 0)
    assert straggler.finish(ledger, m, straggler.claim_number(ledger, m, 1))
    assert straggler.leave(ledger, 1) == 1
    assert straggler.claim(ledger, 2, 1) == m


def test_nothing_may_be_sent_before_the_freeze_and_nothing_changes_after_it() -> None:
    ledger = straggler.new_ledger(0, 1, LEASE_NS)
    straggler.claim(ledger, 1, 0)
    assert not straggler.freeze(ledger)
    straggler.finish(ledger, 0, straggler.claim_number(ledger, 0, 1))
    assert int(straggler.share_of(ledger, 1)) == 0
    assert straggler.freeze(ledger)
    assert straggler.leave(ledger, 1) == 0
    assert straggler.claim(ledger, 2, 5) == NOBODY
    assert int(straggler.share_of(ledger, 1)) == 1


@pytest.mark.parametrize("count", [0, 65])
def test_a_ledger_has_at_most_a_mask_of_micro_batches(count: int) -> None:
    with pytest.raises(ValueError, match="micro-batches"):
        straggler.new_ledger(0, count, LEASE_NS)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_micro_batch_is_in_exactly_one_share_whatever_happens(data: st.DataObject) -> None:
    """Random claims, renewals, results, late results, deaths: the frozen shares are a partition."""
    workers, batches = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 8))
    ledger = straggler.new_ledger(0, batches, LEASE_NS)
    held: list[tuple[int, int, int]] = []
    accepted: dict[int, int] = {}
    now = 0
    for _ in range(data.draw(st.integers(0, 60))):
        now += data.draw(st.integers(0, LEASE_NS))
        action = data.draw(st.sampled_from(["claim", "claim", "finish", "finish", "renew", "leave"]))
        worker = data.draw(st.integers(0, workers - 1))
        if action == "claim":
            m = straggler.claim(ledger, worker, now)
            if m != NOBODY:
                held.append((worker, m, straggler.claim_number(ledger, m, worker)))
        elif action == "leave":
            straggler.leave(ledger, worker)
            accepted = {m: owner for m, owner in accepted.items() if owner != worker}
        elif held:
            owner, m, number = held[data.draw(st.integers(0, len(held) - 1))]
            if action == "renew":
                straggler.renew(ledger, m, number, now)
            elif straggler.finish(ledger, m, number):
                assert m not in accepted
                accepted[m] = owner
    while not straggler.freeze(ledger):
        now += LEASE_NS
        m = straggler.claim(ledger, workers, now)
        assert m != NOBODY
        assert straggler.finish(ledger, m, straggler.claim_number(ledger, m, workers))
        accepted[m] = workers
    shares = {worker: int(straggler.share_of(ledger, worker)) for worker in range(workers + 1)}
    assert sum(shares.values()) == 2**batches - 1
    for m, owner in accepted.items():
        assert shares[owner] >> m & 1
