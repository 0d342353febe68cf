"""Who is given which micro-batch: own ones first, the neediest owner, who waits, who races, and why."""

import pytest

from paceline.core.help.ledger import Ledgers, is_whole
from paceline.core.help.takeover import (
    NOBODY,
    Fenced,
    Grant,
    Paces,
    TakeoverPolicy,
    Wait,
    choose_carriers,
    find_adoptable,
    find_orphan,
)

UNIT_NS = 1000


def policy_for(counts: dict[int, int], paces: dict[int, float] | None = None) -> TakeoverPolicy:
    """Ledgers of so many free micro-batches by owner; paces in units."""
    ledgers = Ledgers(lease_ns=1000 * UNIT_NS)
    ledgers.begin(0)
    for owner, count in counts.items():
        ledgers.create(owner, count, 0)
    known = Paces(typical_ns=UNIT_NS)
    for worker, pace in (paces or {}).items():
        known.guess(worker, pace * UNIT_NS)
    return TakeoverPolicy(ledgers, known)


def granted(decision: Grant | Wait) -> Grant:
    assert isinstance(decision, Grant), decision
    return decision


def test_a_worker_takes_its_own_from_the_head_then_others_from_the_tail() -> None:
    policy = policy_for({0: 1, 1: 4})
    assert granted(policy.claim(0, 0)).claim[:2] == (0, 0)
    helped = granted(policy.claim(0, 10))
    assert helped.claim[:2] == (1, 3)
    assert helped.reason.startswith(
        "worker 0 is done and helps worker 1, which has the most work left: 4 of its"
    )


def test_the_owner_with_most_left_for_each_of_its_helpers_is_helped() -> None:
    policy = policy_for({0: 4, 1: 4}, {0: 2.0, 1: 4.0})
    takers = [granted(policy.claim(worker, 0)).owner for worker in (2, 3, 4)]
    # 16 units at worker 1 against 8; then 12 over 5 helpers' pace is less than 8.
    assert takers == [1, 0, 1]


def test_owners_that_a_worker_may_not_take_from_are_left_alone() -> None:
    policy = policy_for({0: 4, 1: 4}, {1: 9.0})
    assert granted(policy.claim(2, 0, owners=[0])).owner == 0


@pytest.mark.parametrize(("busy_units", "waits"), [(0, True), (1, True), (4, False)])
def test_a_slow_worker_leaves_to_others_what_they_end_sooner(busy_units: int, waits: bool) -> None:
    policy = policy_for({0: 2}, {0: 4.0})
    decision = policy.claim(0, 0, coming={1: busy_units * UNIT_NS, 2: busy_units * UNIT_NS})
    assert isinstance(decision, Wait) == waits
    if waits:
        assert "worker 0 starts no other" in decision.reason
        assert "the others end all 2 free ones" in decision.reason


def test_a_helper_that_would_end_after_the_owner_is_not_sent() -> None:
    policy = policy_for({0: 2}, {0: 2.0})
    granted(policy.claim(0, 0))
    late = policy.claim(1, 0, ready_ns=4 * UNIT_NS, coming={0: 0.0})
    assert isinstance(late, Wait)
    assert granted(policy.claim(1, 0, ready_ns=UNIT_NS, coming={0: 0.0})).claim[:2] == (0, 1)


def test_a_race_pays_only_where_the_racer_is_done_clearly_sooner() -> None:
    policy = policy_for({0: 1}, {0: 4.0})
    first = granted(policy.claim(0, 0))
    assert isinstance(policy.claim(1, 3 * UNIT_NS), Wait), "the holder needs another unit, as the racer does"
    assert isinstance(policy.claim(1, 0, may_race=False), Wait)
    second = granted(policy.claim(1, 2 * UNIT_NS))
    assert second.is_race
    assert "worker 1 races worker 0, which needs another 2e-06 s" in second.reason
    assert policy.commit(second.claim) == (True, [Fenced(0, first.number)])
    assert policy.finish(0, first.claim, None) == (False, [])
    assert is_whole(policy.ledgers.share(0, 1))


def test_what_was_claimed_ahead_counts_from_its_start() -> None:
    policy = policy_for({0: 2}, {0: 4.0})
    first = granted(policy.claim(0, 0))
    ahead = granted(policy.take(0, 0, 0, ready_ns=4 * UNIT_NS))
    policy.finish(0, first.claim, None)
    policy.start(ahead.claim, 4 * UNIT_NS)
    race = granted(policy.claim(1, 5 * UNIT_NS))
    assert race.m == ahead.m
    assert "needs another 3e-06 s" in race.reason


def test_a_lease_that_has_run_out_gives_its_micro_batch_to_another() -> None:
    policy = policy_for({0: 1})
    lost = granted(policy.claim(0, 0))
    again = granted(policy.claim(1, 1000 * UNIT_NS))
    assert (again.m, again.is_race) == (0, False)
    assert policy.finish(0, lost.claim, UNIT_NS) == (False, [])
    assert policy.finish(1, again.claim, UNIT_NS) == (True, [])


def test_what_a_dead_worker_had_comes_back_and_the_reason_says_so() -> None:
    policy = policy_for({0: 3})
    done = granted(policy.claim(0, 0))
    policy.finish(0, done.claim, UNIT_NS)
    assert policy.ledgers.leave(0) == 1
    assert (
        "stands in for worker 0, which is gone, with 3 micro-batches free"
        in granted(policy.claim(1, 0)).reason
    )


def test_paces_follow_what_was_seen_and_are_forgotten_on_demand() -> None:
    paces = Paces()
    assert not paces.is_known(0)
    paces.note(0, 100.0)
    paces.note(1, 300.0)
    assert paces.of(2) == 200.0
    paces.note(0, 200.0)
    assert paces.of(0) == pytest.approx(130.0)
    paces.guess(0, 5.0)
    assert paces.of(0) == pytest.approx(130.0)
    paces.forget(0)
    assert not paces.is_known(0)


def ledgers_of_the_dead(*dead: int) -> Ledgers:
    ledgers = Ledgers(lease_ns=1000)
    ledgers.begin(0)
    for owner in dead:
        ledgers.create(owner, 2, 0)
        ledgers.leave(owner)
    return ledgers


def test_a_dead_worker_that_nobody_else_will_help_is_adopted_whole() -> None:
    ledgers = ledgers_of_the_dead(3, 4)
    assert find_adoptable(ledgers, 0, {3, 4}, lambda owner: owner == 3) == 4
    ledgers.take(4, 1, 0)
    assert find_adoptable(ledgers, 0, {3, 4}, lambda owner: owner == 3) == NOBODY, "worker 1 has some of it"
    assert find_adoptable(ledgers, 1, {3, 4}, lambda owner: owner == 3) == 4


def test_a_straggler_adopts_only_where_nobody_else_comes_and_ends_what_it_began() -> None:
    ledgers = ledgers_of_the_dead(3)
    adopter = {3: 2}.get
    assert find_orphan(ledgers, 2, {3}, set(), lambda owner: -1, coming=True) == NOBODY
    assert find_orphan(ledgers, 2, {3}, set(), lambda owner: -1, coming=False) == 3
    assert find_orphan(ledgers, 2, {3}, {3}, lambda owner: adopter(owner, -1), coming=True) == 3


def test_a_bit_is_carried_by_somebody_who_has_yet_to_send_and_stays_there() -> None:
    carriers = choose_carriers({}, [3], alive=[0, 1, 2], ready=[1, 2])
    assert carriers == {3: 1}
    assert choose_carriers(carriers, [3], alive=[0, 1, 2], ready=[2]) == {3: 1}
    assert choose_carriers(carriers, [3, 1], alive=[0, 2], ready=[2]) == {3: 2, 1: 2}
    assert choose_carriers({}, [3], alive=[0], ready=[]) == {}
