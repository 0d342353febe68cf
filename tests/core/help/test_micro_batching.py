"""When cutting an iteration pays: estimates first, then the times that were seen."""

import pytest

from paceline.core.help.micro_batching import SLOWNESS_MAX, CutPolicy, JobTimes


def times(exchange_ns: float, micro_batches: int = 8) -> JobTimes:
    """Eight workers that compute 1200 ns an iteration."""
    return JobTimes(8, micro_batches, 400, 800, exchange_ns, round_trip_ns=10.0)


def test_exposed_is_what_the_last_backward_pass_and_half_a_forward_pass_do_not_hide() -> None:
    assert times(1100).exposed_ns(1) == 100
    assert times(1100).exposed_ns(8) == 975
    assert times(100).exposed_ns(8) == 0


@pytest.mark.parametrize(("exchange_ns", "free"), [(100, True), (130, True), (200, False)])
def test_a_job_whose_exchange_hides_behind_one_micro_batch_is_cut_at_rest(
    exchange_ns: float, free: bool
) -> None:
    policy = CutPolicy(times(exchange_ns))
    assert policy.is_free() == free
    assert policy.wants_cut(0, held_up=False) == free
    assert not policy.wants_cut(0, held_up=True)


def test_help_that_is_hardly_worth_it_is_not_begun_and_says_why() -> None:
    policy = CutPolicy(times(1000))
    policy.set_stragglers((2,))
    policy.note_slowness(2, done=80, median=100, whole=1000)
    reason = policy.judge_help()
    assert not policy.pays
    assert reason.startswith("not worth it: an iteration would take")
    assert policy.judge_help() == "", "the answer is not new"
    policy.note_slowness(2, done=20, median=100, whole=1000)
    assert policy.judge_help().startswith("worth it")
    assert policy.wants_cut(0, held_up=True), "a straggler that pays is helped whatever the links are like"


def test_times_that_were_seen_go_before_estimates() -> None:
    policy = CutPolicy(times(100))
    policy.set_stragglers((2,))
    policy.note_slowness(2, done=20, median=100, whole=1000)
    policy.judge_help()
    assert policy.pays
    for was_cut, took_ns in ((True, 5000), (True, 3000), (False, 2900)):
        policy.note_iteration(was_cut, took_ns)
    assert "not worth it" in policy.judge_help()
    policy.set_stragglers(())
    assert policy.took_ns == {True: [], False: []}, "another straggler, other times"


def test_slowness_is_seen_while_the_leaders_compute_and_only_grows_afterwards() -> None:
    policy = CutPolicy(times(100))
    policy.set_stragglers((2,))
    policy.note_slowness(2, done=100, median=250, whole=1000)
    assert policy.slowness_of(2) == 2.5
    policy.note_slowness(2, done=500, median=1000, whole=1000)
    assert policy.slowness_of(2) == 2.5
    policy.note_slowness(2, done=1, median=999, whole=1000)
    assert policy.slowness_of(2) == SLOWNESS_MAX


def test_exposed_communication_ends_cutting_for_twice_as_long_each_time() -> None:
    policy = CutPolicy(times(100))
    assert policy.expected_wait_ns() == 10
    assert policy.longest_wait_ns() == 46
    assert policy.note_exposed(5) == 13
    assert not policy.wants_cut(12, held_up=False)
    assert policy.wants_cut(13, held_up=False)
    assert policy.note_exposed(20) == 36
