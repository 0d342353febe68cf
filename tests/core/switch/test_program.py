"""The switch program, rule by rule: each test names the rule it holds the switch to."""

from typing import Any

import numpy as np
import pytest

from paceline.core import wire
from paceline.core.invariants import check_accounts
from paceline.core.switch import program as sw
from paceline.core.switch.memory import ALL_RULES, ANSWERED, ANSWERS, EMPTY, FILLING, HELD, MARKS
from tests.core.headers import STALE_NS, Bench, Out, header, mask_of

DYNAMIC = ["atp", "esa", "esa-plus", "never", "always-preempt", "coin-flip"]
EVERY = ["switchml", *DYNAMIC]
pytestmark = pytest.mark.usefixtures("accounts")


@pytest.fixture
def benches(monkeypatch: pytest.MonkeyPatch) -> list[Bench]:
    made: list[Bench] = []
    start = Bench.__init__

    def remember(self: Bench, *args: object, **options: object) -> None:
        start(self, *args, **options)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(Bench, "__init__", remember)
    return made


@pytest.fixture
def accounts(benches: list[Bench]):  # type: ignore[no-untyped-def]
    """After every test, what each switch counts as used is what its jobs hold."""
    yield
    for bench in benches:
        assert check_accounts(bench.switch) == []


def bench_for(policy: str) -> Bench:
    return Bench(policy, pool=1 if policy == "switchml" else 0)


# --- claim, add, duplicate, complete ------------------------------------------------------------------------


@pytest.mark.parametrize("policy", EVERY)
def test_the_first_contribution_claims_an_empty_aggregator(policy: str) -> None:
    bench = bench_for(policy)
    assert bench.gradient(0, 5).verdict == sw.CONSUMED
    slot = bench.slot(0)
    assert (slot.job, slot.chunk, slot.mask, slot.state, slot.priority) == (0, 0, 1, FILLING, 10)
    assert bench.values(0) == (5, 10)
    assert bench.used() == 1


@pytest.mark.parametrize("policy", EVERY)
def test_a_duplicate_is_never_added(policy: str) -> None:
    bench = bench_for(policy)
    bench.gradient(0, 5, fan_in=3)
    bench.gradient(1, 7, fan_in=3)
    assert bench.gradient(0, 5, fan_in=3).verdict == sw.CONSUMED
    assert bench.values(0) == (12, 24)
    assert bench.slot(0).mask == mask_of(0, 1)
    assert bench.count(sw.DUPLICATES) == 1


@pytest.mark.parametrize("policy", ["esa", "esa-plus", "never", "always-preempt", "coin-flip"])
def test_completion_multicasts_the_result_and_frees_at_once(policy: str) -> None:
    bench = bench_for(policy)
    bench.gradient(0, 5)
    out = bench.gradient(1, 7)
    assert (out.verdict, out.packet.kind, out.values) == (sw.DOWN, wire.RESULT, (12, 24))
    assert out.packet.mask == mask_of(0, 1)
    assert bench.slot(0).state == EMPTY
    assert bench.used() == 0
    assert bench.count(sw.COMPLETIONS) == 1


def test_atp_sends_the_sum_to_the_custodian_and_holds_until_the_result_passes() -> None:
    bench = Bench("atp")
    bench.gradient(0, 5)
    out = bench.gradient(1, 7)
    assert (out.verdict, out.packet.kind, out.packet.custodian) == (sw.TO_CUSTODIAN, wire.PARTIAL, 7)
    assert out.values == (12, 24)
    assert bench.slot(0).state == HELD
    assert bench.used() == 1
    other = bench.gradient(0, 9, chunk=1)
    assert (other.verdict, other.packet.flag & wire.COLLISION) == (sw.TO_CUSTODIAN, wire.COLLISION)
    passing = bench.put(header(wire.RESULT, mask=mask_of(0, 1)), 12)
    assert (passing.verdict, passing.packet.kind, passing.values) == (sw.DOWN, wire.RESULT, (12, 24))
    assert bench.slot(0).state == EMPTY
    assert bench.used() == 0


def test_esa_with_relay_sends_the_complete_sum_to_the_custodian() -> None:
    bench = Bench("esa", relay=True)
    bench.gradient(0, 5)
    out = bench.gradient(1, 7)
    assert (out.verdict, out.packet.kind, out.packet.mask) == (sw.TO_CUSTODIAN, wire.PARTIAL, mask_of(0, 1))
    assert bench.slot(0).state == EMPTY


@pytest.mark.parametrize("policy", ["atp", "esa"])
def test_custody_completes_at_fan_in_and_is_finished_by_the_custodian(policy: str) -> None:
    bench = Bench(policy)
    bench.gradient(0, 5, flag=wire.CUSTODY)
    out = bench.gradient(1, 7, flag=wire.CUSTODY)
    assert (out.verdict, out.packet.kind) == (sw.TO_CUSTODIAN, wire.PARTIAL)
    assert bench.slot(0).state == EMPTY


@pytest.mark.parametrize("policy", DYNAMIC)
def test_congestion_met_by_one_is_told_to_all(policy: str) -> None:
    bench = Bench(policy)
    bench.gradient(0, flag=wire.ECN)
    assert bench.gradient(1).packet.flag & wire.ECN


@pytest.mark.parametrize("policy", EVERY)
def test_a_job_of_one_worker_completes_with_its_own_packet(policy: str) -> None:
    bench = bench_for(policy)
    out = bench.gradient(0, 5, fan_in=1)
    assert out.verdict == (sw.TO_CUSTODIAN if policy == "atp" else sw.DOWN)
    assert out.values == (5, 10)


def test_no_policy_sends_everything_to_the_custodian() -> None:
    bench = Bench("none")
    out = bench.gradient(0, 5)
    assert (out.verdict, out.packet.kind, out.values) == (sw.TO_CUSTODIAN, wire.PARTIAL, (5, 10))
    assert bench.slot(0).state == EMPTY


# --- preemption ---------------------------------------------------------------------------------------------


def test_a_higher_priority_swaps_and_the_old_partial_leaves_for_its_own_custodian() -> None:
    bench = Bench("esa")
    bench.gradient(1, 5, custodian=3, fan_in=4, window=2, chunk=8)
    out = bench.gradient(0, 9, job=1, priority=11, custodian=6, chunk=4)
    packet = out.packet
    assert (out.verdict, packet.kind, packet.job, packet.chunk) == (sw.TO_CUSTODIAN, wire.PARTIAL, 0, 8)
    assert (packet.custodian, packet.mask, packet.fan_in, packet.window) == (3, mask_of(1), 4, 2)
    assert out.values == (5, 10)
    slot = bench.slot(0)
    assert (slot.job, slot.chunk, slot.priority, slot.custodian) == (1, 4, 11, 6)
    assert bench.values(0) == (9, 18)
    assert (bench.used(0), bench.used(1)) == (0, 1)
    assert bench.count(sw.PREEMPTIONS, 1) == 1


def test_a_partial_that_is_swapped_out_names_its_own_worker() -> None:
    """A custodian that has finished the chunk answers `worker`: it must be one of the partial's own job."""
    bench = Bench("esa")
    bench.gradient(1, chunk=8)
    assert bench.gradient(5, job=1, priority=200).packet.worker == 1


def test_what_a_reminder_brings_names_its_own_worker() -> None:
    bench = Bench("esa")
    bench.gradient(1)
    assert bench.put(header(wire.REMINDER, worker=0)).packet.worker == 1


def test_a_custodian_with_a_large_number_is_kept() -> None:
    bench = Bench("esa")
    bench.gradient(1, custodian=65_535)
    assert bench.put(header(wire.REMINDER)).packet.custodian == 65_535


@pytest.mark.parametrize("priority", [10, 9, 0])
def test_ties_and_lower_priorities_do_not_preempt_but_halve_the_holder(priority: int) -> None:
    bench = Bench("esa")
    bench.gradient(0, 5)
    out = bench.gradient(1, 9, job=1, priority=priority)
    assert (out.verdict, out.packet.kind, out.packet.job) == (sw.TO_CUSTODIAN, wire.PARTIAL, 1)
    assert (out.packet.flag & wire.COLLISION, out.values) == (wire.COLLISION, (9, 18))
    assert (bench.slot(0).job, bench.slot(0).priority) == (0, 5)
    assert bench.values(0) == (5, 10)
    assert bench.count(sw.DOWNGRADES, 0) == 1
    assert bench.count(sw.FALLBACKS, 1) == 1


def test_a_stale_holder_is_downgraded_until_it_yields() -> None:
    bench = Bench("esa")
    bench.gradient(0, priority=200)
    verdicts = [bench.gradient(0, job=1, priority=60, chunk=c).packet.job for c in range(3)]
    assert verdicts == [1, 1, 0]
    assert bench.slot(0).job == 1


def test_priority_zero_never_preempts() -> None:
    bench = Bench("esa")
    bench.gradient(0, priority=1)
    for chunk in range(5):
        assert bench.gradient(0, job=1, priority=0, chunk=chunk).packet.job == 1
    assert (bench.slot(0).job, bench.slot(0).priority) == (0, 0)
    assert bench.count(sw.DOWNGRADES, 0) == 1


def test_a_priority_above_the_jobs_own_is_cut() -> None:
    bench = Bench("esa")
    bench.switch.jobs[0, 1].priority_max = 10
    bench.gradient(0, priority=10)
    out = bench.gradient(0, job=1, priority=255)
    assert (out.packet.job, out.packet.priority) == (1, 10)


def test_atp_does_not_preempt_a_fresh_holder_and_changes_nothing_of_it() -> None:
    bench = Bench("atp")
    bench.gradient(0, 5, priority=1)
    before = bench.slot(0).tobytes()
    bench.now_ns = STALE_NS
    assert bench.gradient(0, 9, job=1, priority=255).packet.job == 1
    assert bench.slot(0).tobytes() == before


def test_atp_lets_a_stale_aggregator_be_taken() -> None:
    bench = Bench("atp")
    bench.gradient(0, 5)
    bench.now_ns = STALE_NS + 1
    out = bench.gradient(1, 9, job=1)
    assert (out.verdict, out.packet.job, out.values) == (sw.TO_CUSTODIAN, 0, (5, 10))
    assert bench.slot(0).job == 1


def test_an_aggregator_that_still_fills_is_not_stale() -> None:
    bench = Bench("atp")
    bench.gradient(0, fan_in=3)
    bench.now_ns = STALE_NS
    bench.gradient(1, fan_in=3)
    bench.now_ns = STALE_NS + 500
    assert bench.gradient(0, job=1).packet.job == 1


def test_always_preempt_takes_and_coin_flip_takes_about_half() -> None:
    taken = {}
    for policy in ("always-preempt", "coin-flip"):
        bench = Bench(policy)
        bench.gradient(0)
        taken[policy] = 0
        for chunk in range(1, 201):
            holder = int(bench.slot(0).job)
            taken[policy] += bench.gradient(0, job=1 - holder, chunk=chunk, priority=0).packet.job == holder
    assert taken["always-preempt"] == 200
    assert 70 < taken["coin-flip"] < 130


def test_never_takes_nothing_and_halves_nothing() -> None:
    bench = Bench("never")
    bench.gradient(0, 5, fan_in=3)
    out = bench.gradient(0, 9, job=1, priority=255)
    assert (out.verdict, out.packet.job, out.packet.flag & wire.COLLISION) == (
        sw.TO_CUSTODIAN,
        1,
        wire.COLLISION,
    )
    assert (bench.slot(0).job, bench.slot(0).priority) == (0, 10)


def test_the_rest_of_a_chunk_that_lost_its_place_leaves_as_soon_as_it_is_all_there() -> None:
    """Without the mark it would be a sum that nobody can complete, and wait for a timer."""
    bench = Bench("esa-plus")
    bench.gradient(0, 5, fan_in=3)
    evicted = bench.gradient(0, 9, job=1)
    assert (evicted.packet.job, evicted.packet.kind, evicted.packet.mask) == (0, wire.PARTIAL, mask_of(0))
    assert bench.gradient(1, 9, job=1).packet.kind == wire.RESULT
    assert bench.gradient(1, 6, fan_in=3).verdict == sw.CONSUMED
    rest = bench.gradient(2, 7, fan_in=3)
    assert (rest.verdict, rest.packet.kind, rest.packet.mask, rest.values) == (
        sw.TO_CUSTODIAN, wire.PARTIAL, mask_of(1, 2), (13, 26),
    )  # fmt: skip
    assert (bench.slot(0).state, bench.used()) == (EMPTY, 0)
    assert bench.gradient(0, 5, chunk=1).verdict == sw.CONSUMED, "the job's other chunks are welcome"


@pytest.mark.parametrize(
    ("rules", "verdict"), [(ALL_RULES, sw.TO_CUSTODIAN), (ALL_RULES & ~MARKS, sw.CONSUMED)]
)
def test_without_the_mark_the_rest_waits_for_a_timer(rules: int, verdict: int) -> None:
    bench = Bench("esa-plus", rules=rules)
    bench.gradient(0, 5, fan_in=3)
    bench.gradient(0, 9, job=1)
    bench.gradient(1, 9, job=1)
    bench.gradient(1, 6, fan_in=3)
    assert bench.gradient(2, 7, fan_in=3).verdict == verdict


def test_a_rest_that_loses_its_place_too_leaves_a_smaller_rest() -> None:
    bench = Bench("esa-plus")
    bench.gradient(0, 5, fan_in=4)
    bench.gradient(0, 9, job=1)
    bench.gradient(1, 9, job=1)
    bench.gradient(1, 6, fan_in=4)
    assert bench.gradient(0, 9, job=1, chunk=1).packet.mask == mask_of(1)
    bench.gradient(1, 9, job=1, chunk=1)
    bench.gradient(2, 7, fan_in=4)
    assert bench.gradient(3, 8, fan_in=4).packet.mask == mask_of(2, 3)


def test_a_rest_may_take_its_place_back_and_still_knows_what_has_left() -> None:
    bench = Bench("esa-plus")
    bench.gradient(0, 5, fan_in=3)
    bench.gradient(0, 9, job=1)
    back = bench.gradient(1, 6, fan_in=3)
    assert (back.packet.job, back.packet.mask) == (1, mask_of(0))
    assert bench.gradient(2, 7, fan_in=3).packet.mask == mask_of(1, 2)


@pytest.mark.parametrize("worker", [0, 2], ids=["left already", "last of the rest"])
def test_what_has_nothing_to_wait_for_passes_by(worker: int) -> None:
    bench = Bench("esa-plus")
    bench.gradient(0, 5, fan_in=2 if worker == 2 else 3)
    bench.gradient(0, 9, job=1)
    bench.gradient(1, 9, job=1)
    late = bench.gradient(worker, 5, fan_in=2 if worker == 2 else 3)
    assert (late.verdict, late.packet.kind, late.packet.flag & wire.COLLISION) == (
        sw.TO_CUSTODIAN, wire.PARTIAL, wire.COLLISION,
    )  # fmt: skip
    assert bench.slot(0).state == EMPTY


def test_a_chunk_that_was_refused_is_remembered_too() -> None:
    bench = Bench("esa-plus")
    bench.gradient(0, 5, priority=200)
    assert bench.gradient(0, 9, job=1, priority=1, fan_in=3).packet.job == 1
    bench.gradient(1, 5, priority=200)
    bench.gradient(1, 9, job=1, priority=1, fan_in=3)
    rest = bench.gradient(2, 9, job=1, priority=1, fan_in=3)
    assert (rest.verdict, rest.packet.mask) == (sw.TO_CUSTODIAN, mask_of(1, 2))


def test_what_a_reminder_brings_out_is_remembered_too() -> None:
    bench = Bench("esa-plus")
    bench.gradient(0, 5, fan_in=3)
    assert bench.put(header(wire.REMINDER, chunk=0)).packet.mask == mask_of(0)
    bench.gradient(1, 6, fan_in=3)
    assert bench.gradient(2, 7, fan_in=3).packet.mask == mask_of(1, 2)


def test_who_is_missing_from_a_sum_that_waits_is_told_by_esa_plus_itself() -> None:
    bench = Bench("esa-plus")
    bench.gradient(0, 5)
    out = ask(bench, 1)
    assert (out.verdict, out.packet.kind, out.packet.worker) == (sw.TO_WORKER, wire.NACK, 1)
    without = Bench("esa-plus", rules=ALL_RULES & ~ANSWERS)
    without.gradient(0, 5)
    assert ask(without, 1).verdict == sw.TO_CUSTODIAN


def test_who_lost_a_result_has_it_again_from_esa_plus_itself() -> None:
    """Asked for, or sent again; without the rule the custodian answers, or a sum of its own waits for nothing."""
    bench = Bench("esa-plus")
    bench.gradient(0, 5)
    bench.gradient(1, 7)
    for out in (ask(bench, 1), bench.gradient(1, 7), bench.gradient(1, 7, flag=wire.FLUSH)):
        assert (out.verdict, out.packet.kind, out.packet.worker) == (sw.TO_WORKER, wire.RESULT, 1)
        assert (out.packet.count, out.values) == (2, (12, 24))
    assert (bench.slot(0).state, bench.used()) == (EMPTY, 0)
    without = Bench("esa-plus", rules=ALL_RULES & ~ANSWERS)
    without.gradient(0, 5)
    without.gradient(1, 7)
    assert ask(without, 1).verdict == sw.TO_CUSTODIAN
    assert without.gradient(1, 7).verdict == sw.CONSUMED


@pytest.mark.parametrize("change", ["another chunk", "another job", "another epoch", "the job left"])
def test_a_sum_that_has_left_is_given_only_where_it_is_still_the_one_asked_for(change: str) -> None:
    bench = Bench("esa-plus")
    bench.gradient(0, 5)
    bench.gradient(1, 7)
    fields: dict[str, int] = {}
    if change == "another chunk":
        bench.gradient(0, 9, chunk=1)
    elif change == "another job":
        fields = {"job": 1}
    elif change == "another epoch":
        fields = {"epoch": 1}
    else:
        sw.release_job(bench.switch, 0, 0)
        sw.admit_job(bench.switch, 0, 0, 255, 0, 0)
    out = ask(bench, 1, **fields)
    assert (out.verdict, out.packet.kind) == (sw.TO_CUSTODIAN, wire.QUERY)


def test_what_is_sent_again_while_another_is_missing_leaves_the_sum_where_it_is() -> None:
    """The one that is missing completes it; without the rule both would go by the custodian."""
    bench = Bench("esa-plus")
    bench.gradient(0, 5)
    assert bench.gradient(0, 5, flag=wire.FLUSH).verdict == sw.CONSUMED
    assert bench.gradient(1, 7, flag=wire.FLUSH).packet.kind == wire.RESULT
    without = Bench("esa-plus", rules=ALL_RULES & ~ANSWERS)
    without.gradient(0, 5)
    assert without.gradient(0, 5, flag=wire.FLUSH).verdict == sw.TO_CUSTODIAN


def test_of_what_left_with_a_partial_sum_the_custodian_is_asked() -> None:
    """A contribution that is counted there must not come again by the switch."""
    bench = Bench("esa-plus")
    bench.gradient(0, 5, fan_in=3)
    bench.gradient(0, 9, job=1)
    bench.gradient(1, 9, job=1)
    bench.gradient(1, 6, fan_in=3)
    out = ask(bench, 0)
    assert (out.verdict, out.packet.kind, out.packet.flag) == (sw.TO_CUSTODIAN, wire.QUERY, wire.COLLISION)


def test_the_only_worker_of_its_rack_needs_no_aggregator_to_go_up() -> None:
    """Swapped in, it would wait for nobody, and only a timeout would bring it out again."""
    bench = Bench("esa", levels=(1, 2))
    bench.gradient(0, 5, priority=10)
    out = bench.gradient(0, 9, job=1, priority=200, fan_in=1, fan_in_upper=3, rack=2)
    assert (out.verdict, out.packet.level, out.packet.mask, out.values) == (sw.UP, 2, mask_of(2), (9, 18))
    assert bench.slot(0).job == 0


# --- caps, names, epochs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", DYNAMIC)
def test_a_job_at_its_cap_claims_no_more(policy: str) -> None:
    bench = Bench(policy)
    bench.switch.jobs[0, 0].slots_max = 1
    bench.gradient(0)
    out = bench.gradient(0, chunk=1, index=1)
    assert (out.verdict, out.packet.flag & wire.COLLISION) == (sw.TO_CUSTODIAN, wire.COLLISION)
    assert bench.slot(1).state == EMPTY


@pytest.mark.parametrize("policy", ["esa", "always-preempt"])
def test_a_job_at_its_cap_takes_none_from_others(policy: str) -> None:
    bench = Bench(policy)
    bench.switch.jobs[0, 1].slots_max = 1
    bench.gradient(0, 5)
    bench.gradient(0, job=1, index=1, priority=200)
    assert bench.gradient(0, job=1, chunk=1, priority=200).packet.job == 1
    assert bench.slot(0).job == 0


def test_a_job_at_its_cap_may_still_preempt_itself() -> None:
    bench = Bench("esa")
    bench.switch.jobs[0, 0].slots_max = 1
    bench.gradient(0, chunk=0)
    assert bench.gradient(0, chunk=1, priority=20).packet.chunk == 0
    assert (bench.slot(0).chunk, bench.used()) == (1, 1)


@pytest.mark.parametrize("policy", EVERY)
@pytest.mark.parametrize("kind", [wire.GRADIENT, wire.RESULT, wire.REMINDER, wire.PULL, wire.PARTIAL])
def test_packets_of_unknown_jobs_are_dropped_and_counted(policy: str, kind: int) -> None:
    bench = bench_for(policy)
    sw.release_job(bench.switch, 0, 1)
    assert [bench.put(header(kind, job=job)).verdict for job in (1, 2, 65_535)] == [sw.DROPPED] * 3
    assert bench.count(sw.DROP_JOB, 1) == 1
    assert bench.count(sw.DROP_JOB, 2) == 2
    assert bench.slot(0).state == EMPTY


@pytest.mark.parametrize("policy", DYNAMIC)
@pytest.mark.parametrize("index", [4, 5, 2**32 - 1])
def test_an_index_outside_the_switch_is_dropped(policy: str, index: int) -> None:
    bench = Bench(policy)
    assert bench.gradient(0, index=index).verdict == sw.DROPPED
    assert bench.count(sw.DROP_INDEX) == 1
    assert bench.put(header(wire.REMINDER, index=index)).verdict == sw.CONSUMED
    assert bench.put(header(wire.RESULT, index=index)).verdict == sw.DOWN


@pytest.mark.parametrize("policy", EVERY)
def test_an_old_epoch_is_dropped_and_a_new_one_does_not_mix(policy: str) -> None:
    bench = bench_for(policy)
    bench.gradient(0, 5, epoch=2, chunk=2)
    assert bench.gradient(1, 7, epoch=1, chunk=2).verdict == sw.DROPPED
    assert bench.count(sw.DROP_EPOCH) == 1
    assert bench.slot(0).mask == mask_of(0)
    assert bench.gradient(1, 7, epoch=3, chunk=2).verdict == sw.CONSUMED
    assert bench.slot(0).mask == mask_of(1)
    assert bench.values(0) == (7, 14)


@pytest.mark.parametrize("policy", EVERY)
def test_a_contribution_of_nobody_is_not_added(policy: str) -> None:
    bench = bench_for(policy)
    bench.gradient(0, 5, fan_in=3)
    assert bench.put(header(mask=0), 9).verdict == sw.DROPPED
    assert bench.values(0) == (5, 10)
    assert bench.count(sw.DROP_MASK) == 1


@pytest.mark.parametrize("policy", EVERY)
def test_a_job_that_leaves_frees_all_it_holds(policy: str) -> None:
    bench = Bench(policy, slots=8, pool=2)
    for chunk in range(2):
        bench.gradient(0, chunk=chunk, index=chunk)
        bench.gradient(0, job=1, chunk=chunk, index=chunk if policy == "switchml" else chunk + 4)
    assert sw.release_job(bench.switch, 0, 0) == 2
    assert sorted(bench.switch.memory.slots.job.tolist()) == [-1] * 6 + [1, 1]
    assert bench.used() == 0
    assert sw.release_job(bench.switch, 0, 0) == 0


# --- reminders, resends, results ----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", DYNAMIC)
def test_a_reminder_that_matches_brings_the_partial_out(policy: str) -> None:
    bench = Bench(policy)
    bench.gradient(0, 5, custodian=3)
    out = bench.put(header(wire.REMINDER, mask=0, custodian=3))
    assert (out.verdict, out.packet.kind, out.packet.mask) == (sw.TO_CUSTODIAN, wire.PARTIAL, mask_of(0))
    assert out.values == (5, 10)
    assert bench.slot(0).state == EMPTY
    assert bench.count(sw.REMINDERS) == 1


@pytest.mark.parametrize("other", [{"chunk": 1}, {"epoch": 1}, {"job": 1}, {"index": 1}])
def test_a_reminder_that_does_not_match_does_nothing(other: dict[str, int]) -> None:
    bench = Bench("esa")
    bench.gradient(0, 5)
    before = bench.switch.memory.slots.tobytes()
    assert bench.put(header(wire.REMINDER, mask=0, **other)).verdict == sw.CONSUMED
    assert bench.switch.memory.slots.tobytes() == before


def test_a_reminder_leaves_a_complete_aggregator_of_atp_alone() -> None:
    bench = Bench("atp")
    bench.gradient(0)
    bench.gradient(1)
    assert bench.put(header(wire.REMINDER)).verdict == sw.CONSUMED
    assert bench.slot(0).state == HELD


@pytest.mark.parametrize("policy", DYNAMIC)
def test_a_resend_that_matches_is_added_and_takes_the_partial_along(policy: str) -> None:
    bench = Bench(policy)
    bench.gradient(0, 5, fan_in=3)
    out = bench.gradient(1, 7, fan_in=3, flag=wire.FLUSH)
    assert (out.verdict, out.packet.kind, out.packet.mask) == (sw.TO_CUSTODIAN, wire.PARTIAL, mask_of(0, 1))
    assert out.values == (12, 24)
    assert bench.slot(0).state == EMPTY
    assert bench.count(sw.FLUSHES) == 1


@pytest.mark.parametrize("policy", DYNAMIC)
def test_a_resend_of_what_is_inside_takes_the_partial_along_and_adds_nothing(policy: str) -> None:
    """Under `esa-plus` only where a part of the chunk has left before."""
    bench = Bench(policy)
    inside = 0
    if policy == "esa-plus":
        bench.gradient(0, 5, fan_in=4)
        assert bench.put(header(wire.REMINDER, chunk=0)).packet.mask == mask_of(0)
        inside = 1
    bench.gradient(inside, 5, fan_in=4)
    out = bench.gradient(inside, 5, fan_in=4, flag=wire.FLUSH)
    assert (out.packet.mask, out.values) == (mask_of(inside), (5, 10))


def test_a_resend_that_completes_is_a_result() -> None:
    bench = Bench("esa")
    bench.gradient(0, 5)
    out = bench.gradient(1, 7, flag=wire.FLUSH)
    assert (out.verdict, out.packet.kind, out.values) == (sw.DOWN, wire.RESULT, (12, 24))


@pytest.mark.parametrize("policy", DYNAMIC)
@pytest.mark.parametrize("holder", [None, 1])
def test_a_resend_that_misses_passes_to_its_custodian_and_holds_nothing(
    policy: str, holder: int | None
) -> None:
    bench = Bench(policy)
    if holder is not None:
        bench.gradient(0, 3, job=holder, priority=1)
    before = bench.slot(0).tobytes()
    out = bench.gradient(0, 5, flag=wire.FLUSH, priority=200)
    assert (out.verdict, out.packet.kind, out.packet.mask) == (sw.TO_CUSTODIAN, wire.PARTIAL, mask_of(0))
    assert out.values == (5, 10)
    assert bench.slot(0).tobytes() == before


def test_a_resend_brings_the_complete_sum_out_of_atp_again() -> None:
    """The sum or the parameter packet was lost: the custodian must get it once more."""
    bench = Bench("atp")
    bench.gradient(0, 5)
    bench.gradient(1, 7)
    out = bench.gradient(0, 5, flag=wire.FLUSH)
    assert (out.verdict, out.packet.mask, out.values) == (sw.TO_CUSTODIAN, mask_of(0, 1), (12, 24))
    assert bench.slot(0).state == EMPTY


@pytest.mark.parametrize("other", [{"chunk": 1}, {"epoch": 1}, {"job": 1}])
def test_a_result_of_another_chunk_frees_nothing(other: dict[str, int]) -> None:
    bench = Bench("atp")
    bench.gradient(0)
    bench.gradient(1)
    assert bench.put(header(wire.RESULT, **other)).verdict == sw.DOWN
    assert bench.slot(0).state == HELD


@pytest.mark.parametrize("policy", DYNAMIC)
def test_a_result_frees_what_a_late_duplicate_claimed(policy: str) -> None:
    bench = Bench(policy)
    bench.gradient(0, 5)
    bench.put(header(wire.RESULT))
    assert bench.slot(0).state == EMPTY


@pytest.mark.parametrize("kind", [wire.PARTIAL, wire.ANSWER])
def test_what_is_for_hosts_passes_untouched(kind: int) -> None:
    bench = Bench("esa")
    bench.gradient(0, 5)
    packet = header(kind)
    before = packet.tobytes(), bench.switch.memory.slots.tobytes()
    assert bench.put(packet, 3).verdict == sw.TO_CUSTODIAN
    assert (packet.tobytes(), bench.switch.memory.slots.tobytes()) == before


# --- queries ------------------------------------------------------------------------------------------------


def ask(bench: Bench, worker: int, s: int = 0, **fields: Any) -> Out:
    return bench.put(header(wire.QUERY, worker=worker, mask=mask_of(worker), count=0, **fields), s=s)


@pytest.mark.parametrize("kind", [wire.ACK, wire.NACK])
def test_an_answer_goes_to_the_worker_that_asked(kind: int) -> None:
    assert Bench("esa").put(header(kind, worker=1)).verdict == sw.TO_WORKER


def test_who_is_counted_is_told_so_and_nothing_leaves() -> None:
    bench = Bench("esa")
    bench.gradient(0, 5)
    before = bench.switch.memory.slots.tobytes()
    out = ask(bench, 0)
    assert (out.verdict, out.packet.kind, out.packet.worker) == (sw.TO_WORKER, wire.ACK, 0)
    assert bench.switch.memory.slots.tobytes() == before


def test_who_asks_again_takes_along_what_waits() -> None:
    bench = Bench("esa")
    bench.gradient(0, 5)
    out = ask(bench, 0, flag=wire.FLUSH)
    assert (out.verdict, out.packet.kind, out.packet.mask, out.values) == (
        sw.TO_CUSTODIAN, wire.PARTIAL, mask_of(0), (5, 10),
    )  # fmt: skip
    assert bench.slot(0).state == EMPTY


def test_who_is_missing_from_a_sum_that_waits_is_told_by_the_custodian() -> None:
    """Its contribution was lost, or left with an aggregator that was taken: the switch cannot tell the two apart."""
    bench = Bench("esa")
    bench.gradient(0, 5)
    out = ask(bench, 1)
    assert (out.verdict, out.packet.kind, out.packet.flag) == (sw.TO_CUSTODIAN, wire.QUERY, wire.COLLISION)


@pytest.mark.parametrize("fields", [{"chunk": 8}, {"index": 2}, {"index": 99}, {"epoch": 1}])
def test_of_what_is_not_here_the_custodian_is_asked(fields: Any) -> None:
    bench = Bench("esa")
    bench.gradient(0, 5)
    out = ask(bench, 0, **fields)
    assert (out.verdict, out.packet.kind, out.packet.flag) == (sw.TO_CUSTODIAN, wire.QUERY, 0)


@pytest.mark.parametrize("fields", [{"flag": wire.CUSTODY}, {"mask": np.uint64(0)}, {"share": np.uint64(7)}])
def test_help_is_the_custodians_matter(fields: Any) -> None:
    bench = Bench("esa")
    bench.gradient(0, 5)
    assert (
        bench.put(header(wire.QUERY, **{"worker": 0, "mask": mask_of(0), **fields})).verdict
        == sw.TO_CUSTODIAN
    )


def test_atp_sends_a_complete_sum_again_when_somebody_asks_for_it() -> None:
    bench = Bench("atp")
    bench.gradient(0, 5)
    bench.gradient(1, 7)
    assert bench.slot(0).state == HELD
    out = ask(bench, 0)
    assert (out.verdict, out.packet.kind, out.values) == (sw.TO_CUSTODIAN, wire.PARTIAL, (12, 24))


def test_a_query_climbs_to_where_its_rack_is_counted() -> None:
    bench = Bench("esa", levels=(1, 2))
    fields = {"fan_in": 1, "fan_in_upper": 2}
    up = bench.gradient(0, 5, rack=1, **fields)
    assert up.verdict == sw.UP
    bench.put(up.packet, 5, s=1)
    asked = ask(bench, 0, rack=1, **fields)
    assert asked.verdict == sw.UP
    answer = bench.put(asked.packet, s=1)
    assert (answer.verdict, answer.packet.kind) == (sw.DOWN_ONE, wire.ACK)
    assert bench.put(answer.packet).verdict == sw.TO_WORKER
    other = bench.put(ask(bench, 0, rack=0, **fields).packet, s=1)
    assert (other.verdict, other.packet.kind, other.packet.flag) == (
        sw.TO_CUSTODIAN,
        wire.QUERY,
        wire.COLLISION,
    )


def test_a_query_that_was_above_goes_on_to_its_custodian_through_any_rack_switch() -> None:
    """Live, the custodian's rack switch sees it: sent up again, it would go round for ever."""
    bench = Bench("esa", levels=(1, 2))
    fields = {"fan_in": 1, "fan_in_upper": 2}
    bench.gradient(0, 5, rack=1, **fields)
    passed = bench.put(ask(bench, 0, rack=0, chunk=8, **fields).packet, s=1)
    assert (passed.verdict, passed.packet.kind) == (sw.TO_CUSTODIAN, wire.QUERY)
    assert bench.put(passed.packet, s=0).verdict == sw.TO_CUSTODIAN


def test_a_result_names_who_came_last_and_the_least_window() -> None:
    bench = Bench("esa")
    bench.gradient(1, 5, window=30)
    out = bench.gradient(0, 7, window=90)
    assert (out.packet.kind, out.packet.worker, out.packet.window) == (wire.RESULT, 0, 30)


def test_a_pull_goes_to_the_members_below() -> None:
    assert Bench("esa").put(header(wire.PULL)).verdict == sw.DOWN


# --- SwitchML -----------------------------------------------------------------------------------------------


def test_switchml_uses_two_sets_in_turn() -> None:
    bench = Bench("switchml", pool=1)
    for chunk in range(4):
        bench.gradient(0, 5, chunk=chunk)
        assert bench.gradient(1, 7, chunk=chunk).verdict == sw.DOWN
        assert bench.slot(chunk % 2).chunk == chunk
        assert bench.slot(chunk % 2).state == ANSWERED
    assert bench.used() == 2


def test_switchml_answers_a_late_resend_alone_and_adds_nothing() -> None:
    bench = Bench("switchml", pool=1)
    bench.gradient(0, 5)
    bench.gradient(1, 7)
    bench.gradient(0, 3, chunk=1)
    out = bench.gradient(1, 7, rack=0)
    assert (out.verdict, out.packet.kind, out.packet.worker) == (sw.TO_WORKER, wire.RESULT, 1)
    assert out.values == (12, 24)
    assert bench.values(0) == (12, 24)


def test_switchml_drops_a_packet_of_a_round_that_is_over() -> None:
    bench = Bench("switchml", pool=1)
    bench.gradient(0, 5, chunk=2)
    assert bench.gradient(1, 9, chunk=0).verdict == sw.DROPPED
    assert bench.count(sw.DROP_STALE) == 1
    assert bench.values(0) == (5, 10)


def test_switchml_jobs_have_pools_of_their_own() -> None:
    bench = Bench("switchml", pool=1)
    bench.gradient(0, 5)
    bench.gradient(0, 9, job=1)
    assert bench.switch.memory.slots.job.tolist() == [0, -1, 1, -1]
    assert bench.gradient(0, index=1).verdict == sw.DROPPED
    assert bench.count(sw.DROP_INDEX) == 1


def test_switchml_never_reaches_past_its_memory() -> None:
    """Admitted with a pool larger than the switch: packets for the part that does not exist are dropped."""
    bench = Bench("switchml", levels=(1, 1), slots=2, jobs=1)
    sw.admit_job(bench.switch, 0, 0, 255, 0, 8)
    assert bench.gradient(0, index=1, chunk=1).verdict == sw.DROPPED
    assert bench.gradient(0, index=0).verdict == sw.CONSUMED
    assert bench.slot(0, s=1).state == EMPTY


# --- two levels ---------------------------------------------------------------------------------------------

RACK = {"fan_in": 2, "fan_in_upper": 2}


@pytest.mark.parametrize(("policy", "state"), [("esa", EMPTY), ("atp", HELD), ("switchml", HELD)])
def test_a_complete_rack_goes_up_with_the_racks_bit(policy: str, state: int) -> None:
    bench = Bench(policy, levels=(1, 2), pool=1)
    bench.gradient(0, 5, rack=3, **RACK)
    out = bench.gradient(1, 7, rack=3, **RACK)
    assert (out.verdict, out.packet.kind, out.packet.level) == (sw.UP, wire.GRADIENT, 2)
    assert (out.packet.mask, out.values) == (mask_of(3), (12, 24))
    assert bench.slot(0).state == state


@pytest.mark.parametrize(
    ("policy", "verdict"), [("esa", sw.DOWN), ("atp", sw.TO_CUSTODIAN), ("switchml", sw.DOWN)]
)
def test_the_upper_switch_sums_racks(policy: str, verdict: int) -> None:
    bench = Bench(policy, levels=(1, 2), pool=1)
    assert bench.put(header(level=2, rack=0, mask=mask_of(0), **RACK), 5, s=1).verdict == sw.CONSUMED
    out = bench.put(header(level=2, rack=1, mask=mask_of(1), **RACK), 7, s=1)
    assert (out.verdict, out.values) == (verdict, (12, 24))
    assert out.packet.kind == (wire.PARTIAL if policy == "atp" else wire.RESULT)


@pytest.mark.parametrize("policy", ["esa", "atp", "switchml"])
def test_a_rack_switch_refuses_the_sum_of_a_rack(policy: str) -> None:
    bench = Bench(policy, levels=(1, 2), pool=1)
    assert bench.put(header(level=2, **RACK)).verdict == sw.DROPPED
    assert bench.count(sw.DROP_LEVEL) == 1


def test_a_worker_at_switchmls_upper_switch_is_refused() -> None:
    bench = Bench("switchml", levels=(1, 2), pool=1)
    assert bench.gradient(0, s=1, **RACK).verdict == sw.DROPPED
    assert bench.count(sw.DROP_LEVEL, s=1) == 1


def test_a_resend_climbs_and_brings_the_upper_sum_out_if_its_rack_is_inside() -> None:
    bench = Bench("esa", levels=(1, 2))
    bench.put(header(level=2, rack=1, mask=mask_of(1), **RACK), 12, s=1)
    climbing = bench.gradient(0, 5, rack=1, flag=wire.FLUSH, **RACK)
    assert (climbing.verdict, climbing.packet.kind, climbing.packet.level) == (sw.UP, wire.GRADIENT, 1)
    out = bench.put(climbing.packet, 5, s=1)
    assert (out.verdict, out.packet.kind, out.packet.level) == (sw.TO_CUSTODIAN, wire.PARTIAL, 2)
    assert (out.packet.mask, out.values) == (mask_of(1), (12, 24))
    assert bench.slot(0, s=1).state == EMPTY


def test_a_resend_whose_rack_is_not_inside_passes_the_upper_switch() -> None:
    bench = Bench("esa", levels=(1, 2))
    bench.put(header(level=2, rack=0, mask=mask_of(0), **RACK), 12, s=1)
    out = bench.gradient(0, 5, s=1, rack=1, flag=wire.FLUSH, **RACK)
    assert (out.verdict, out.packet.kind, out.packet.level) == (sw.TO_CUSTODIAN, wire.PARTIAL, 1)
    assert (out.packet.mask, out.values) == (mask_of(0), (5, 10))
    assert bench.slot(0, s=1).state == FILLING


def test_a_held_rack_is_flushed_upwards_whole_and_leaves_the_upper_switch_too() -> None:
    bench = Bench("atp", levels=(1, 2))
    bench.gradient(0, 5, rack=1, **RACK)
    bench.gradient(1, 7, rack=1, **RACK)
    again = bench.gradient(1, 7, rack=1, flag=wire.FLUSH, **RACK)
    assert (again.verdict, again.packet.level, again.packet.mask) == (sw.UP, 2, mask_of(1))
    assert (again.packet.flag & wire.FLUSH, again.values) == (wire.FLUSH, (12, 24))
    bench.put(header(level=2, rack=0, mask=mask_of(0), fan_in=2, fan_in_upper=3), 100, s=1)
    out = bench.put(again.packet, 12, s=1)
    assert (out.verdict, out.packet.mask, out.values) == (sw.TO_CUSTODIAN, mask_of(0, 1), (112, 224))


@pytest.mark.parametrize("kind", [wire.RESULT, wire.REMINDER, wire.PULL])
def test_what_a_custodian_sends_climbs_to_the_top_first_and_then_spreads(kind: int) -> None:
    bench = Bench("esa", levels=(1, 2))
    packet = header(kind, level=2, **RACK)
    assert bench.put(packet, s=0).verdict == sw.UP
    assert bench.put(packet, s=1).verdict == sw.DOWN
    assert packet.level == 1
    assert bench.put(packet, s=0).verdict == (sw.CONSUMED if kind == wire.REMINDER else sw.DOWN)


def test_a_reminder_from_the_top_finds_what_a_rack_holds() -> None:
    bench = Bench("esa", levels=(1, 2))
    bench.gradient(0, 5, rack=1, **RACK)
    packet = header(wire.REMINDER, level=2, mask=0, **RACK)
    assert bench.put(packet, s=1).verdict == sw.DOWN
    out = bench.put(packet, s=0)
    assert (out.verdict, out.packet.level, out.packet.rack, out.values) == (sw.TO_CUSTODIAN, 1, 1, (5, 10))


def test_switchmls_rack_sends_its_sum_again_until_the_answer_comes_and_then_answers_itself() -> None:
    bench = Bench("switchml", levels=(1, 2), pool=1)
    bench.gradient(0, 5, rack=0, **RACK)
    bench.gradient(1, 7, rack=0, **RACK)
    again = bench.gradient(1, 7, rack=0, **RACK)
    assert (again.verdict, again.packet.level, again.values) == (sw.UP, 2, (12, 24))
    bench.put(header(wire.RESULT, **RACK), 50)
    assert bench.slot(0).state == ANSWERED
    out = bench.gradient(0, 5, rack=0, **RACK)
    assert (out.verdict, out.packet.worker, out.values) == (sw.TO_WORKER, 0, (50, 100))


def test_switchmls_upper_switch_answers_one_rack() -> None:
    bench = Bench("switchml", levels=(1, 2), pool=1)
    bench.put(header(level=2, rack=0, mask=mask_of(0), **RACK), 5, s=1)
    bench.put(header(level=2, rack=1, mask=mask_of(1), **RACK), 7, s=1)
    out = bench.put(header(level=2, rack=0, mask=mask_of(0), **RACK), 5, s=1)
    assert (out.verdict, out.packet.rack, out.packet.kind, out.values) == (
        sw.DOWN_ONE,
        0,
        wire.RESULT,
        (12, 24),
    )


# --- a dead switch ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", DYNAMIC)
def test_a_dead_switch_forwards_to_the_custodian(policy: str) -> None:
    bench = Bench(policy)
    bench.switch.config[0].dead = 1
    out = bench.gradient(0, 5)
    assert (out.verdict, out.packet.kind, out.values) == (sw.TO_CUSTODIAN, wire.PARTIAL, (5, 10))
    assert bench.count(sw.FALLBACKS) == 1
    assert bench.put(header(wire.RESULT)).verdict == sw.DOWN
    assert bench.put(header(wire.REMINDER)).verdict == sw.CONSUMED


def test_a_dead_switch_ends_switchml() -> None:
    bench = Bench("switchml", pool=1)
    bench.switch.config[0].dead = 1
    assert bench.gradient(0).verdict == sw.DROPPED
    assert bench.count(sw.DROP_DEAD) == 1


def test_every_counter_has_a_name() -> None:
    assert len(sw.COUNTER_NAMES) == sw.DROP_MASK + 1 == Bench("esa").switch.counters.shape[2]
