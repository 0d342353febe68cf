"""Who leads, and whose work may be taken."""

import pytest

from paceline.core.help.detect import BANDWIDTH_STRAGGLER, COMPUTE_STRAGGLER, LEADING
from paceline.core.help.roles import Leaders, choose_leaders, choose_owners

EVERYONE = Leaders(frozenset({0, 1, 2}), False)
TWO_LEAD = Leaders(frozenset({0, 1}), True)


@pytest.mark.parametrize(
    ("role", "has_custody", "takes_over", "leaders"),
    [
        (COMPUTE_STRAGGLER, True, False, TWO_LEAD),
        (COMPUTE_STRAGGLER, True, True, EVERYONE),
        (BANDWIDTH_STRAGGLER, True, True, TWO_LEAD),
        (BANDWIDTH_STRAGGLER, False, True, EVERYONE),
        (LEADING, True, False, EVERYONE),
    ],
)
def test_custody_is_for_what_takeover_does_not_reach(
    role: int, has_custody: bool, takes_over: bool, leaders: Leaders
) -> None:
    assert choose_leaders({0: LEADING, 1: LEADING, 2: role}, has_custody, takes_over) == leaders


def test_where_nobody_leads_everyone_is_equal() -> None:
    roles = dict.fromkeys(range(3), COMPUTE_STRAGGLER)
    assert choose_leaders(roles, True, False) == EVERYONE
    assert choose_owners(roles, set(), pays=True) == []


def test_the_dead_are_always_helped_and_stragglers_where_it_pays() -> None:
    roles = {0: LEADING, 2: COMPUTE_STRAGGLER, 3: BANDWIDTH_STRAGGLER}
    assert choose_owners(roles, {4, 1}, pays=True) == [1, 4, 2]
    assert choose_owners(roles, {1}, pays=False) == [1]
