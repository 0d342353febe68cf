"""Who stands in for the dead."""

from paceline.core.help.ledger import Ledgers
from paceline.core.help.recovery import NOBODY, choose_carriers, find_adoptable, find_orphan


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
