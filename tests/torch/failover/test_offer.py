"""Which switches a path begins with: all that have a place, by weight, and what is said of the others."""

import json
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("uvicorn")

from torch.distributed import HashStore

from paceline.errors import UserError
from paceline.live.switch_client import SWITCHES_MAX, Admission, parse_switches
from paceline.torch.failover.offer import PathOffer, drop_offer, make_offer, routes, switches_of
from paceline.torch.reduce.network import check_switches
from paceline.torch.rendezvous import StorePrefix
from paceline.torch.settings import Settings
from tests.live.agents import RunningSwitch, running_switch

NOBODY = "127.0.0.1:9"


def _switches(stack: ExitStack, *options: dict[str, Any]) -> list[RunningSwitch]:
    return [stack.enter_context(running_switch(**option)) for option in options]


def _address(switch: RunningSwitch, factor: str = "") -> str:
    return switch.control.shown + factor


def _jobs(*switches: RunningSwitch) -> list[int]:
    return [len(switch.switch.registry.jobs()) for switch in switches]


def test_several_switches_admit_and_are_left() -> None:
    with ExitStack() as stack:
        both = _switches(stack, {}, {"shards": 2})
        settings = Settings(switch=f" {_address(both[0])} , {_address(both[1], '*3')}")
        offer = make_offer(settings, "a", 4, 352)
        assert PathOffer.from_json(offer.to_json()) == offer
        assert (offer.admitted, offer.missing, offer.reason) == (2, (), "")
        assert [branch.switch for branch in offer.branches] == [0, 1]
        assert offer.branches[1].weight == 3 * offer.branches[0].weight
        assert offer.branches[0].key != offer.branches[1].key
        assert _jobs(*both) == [1, 1]
        drop_offer(settings, offer)
        assert _jobs(*both) == [0, 0]


def test_a_switch_with_little_memory_weighs_less() -> None:
    with ExitStack() as stack:
        large, small, limited = _switches(
            stack, {"memory_bytes": 64 << 20}, {"memory_bytes": 256 << 10}, {"slots_max": 50}
        )
        names = ",".join(_address(switch) for switch in (large, small, limited))
        weights = [branch.weight for branch in make_offer(Settings(switch=names), "a", 4, 352).branches]
        admitted = [switch.control.admit("b", 4).aggregators for switch in (small, limited)]
        assert weights[1:] == admitted
        assert weights[2] == 50
        assert max(admitted) < weights[0] < 1000, "no more than a window can use"


def test_the_narrowest_switch_gives_the_width() -> None:
    with ExitStack() as stack:
        both = _switches(stack, {"elements": 352}, {"elements": 320})
        offer = make_offer(Settings(switch=",".join(map(_address, both))), "a", 4, 1000)
        assert offer.elements == 320


def test_one_that_is_not_there_is_missing_and_can_be_asked_ahead() -> None:
    with ExitStack() as stack:
        (one,) = _switches(stack, {})
        settings = Settings(switch=f"{NOBODY},{_address(one)}")
        offer = make_offer(settings, "a", 4, 352)
        assert (offer.admitted, offer.missing) == (1, (0,))
        assert offer.branches[0].switch == 1
        assert NOBODY in offer.reason
        drop_offer(settings, offer)
        again = make_offer(settings, "a", 4, 352, ahead=(0,))
        assert (again.admitted, again.missing) == (0, (0, 1))
        assert _jobs(one) == [0], "the other one was asked in vain"
        found = make_offer(settings, "a", 4, 352, ahead=(1,))
        assert (found.admitted, found.missing) == (1, (0,))


def test_without_any_custodians_do_it() -> None:
    nowhere = make_offer(Settings(switch=f"{NOBODY},127.0.0.1:10"), "a", 4, 352)
    assert (nowhere.admitted, nowhere.missing, len(nowhere.branches)) == (0, (0, 1), 1)
    unset = make_offer(Settings(), "a", 4, 352)
    assert (unset.admitted, unset.missing, unset.reason) == (0, (), "PACELINE_SWITCH is not set")


def test_a_full_switch_is_done_without_beside_another_and_told_alone() -> None:
    with ExitStack() as stack:
        free, full = _switches(stack, {}, {"jobs_max": 1})
        full.control.admit("other", 2)
        offer = make_offer(Settings(switch=f"{_address(full)},{_address(free)}"), "a", 4, 352)
        assert (offer.admitted, offer.missing) == (1, (0,))
        assert "serves 1 jobs already" in offer.reason
        with pytest.raises(UserError, match="serves 1 jobs already") as told:
            make_offer(Settings(switch=_address(full)), "a", 4, 352)
        assert told.value.place == "PACELINE_SWITCH"


def test_a_wrong_token_is_a_mistake_and_nothing_stays_admitted() -> None:
    with ExitStack() as stack:
        free, closed = _switches(stack, {}, {"token": "secret"})
        with pytest.raises(UserError, match="token"):
            make_offer(Settings(switch=f"{_address(free)},{_address(closed)}"), "a", 4, 352)
        assert _jobs(free) == [0]
        later = make_offer(Settings(switch=f"{_address(free)},{_address(closed)}"), "a", 4, 352, strict=False)
        assert (later.admitted, later.missing) == (1, (1,)), "a job that runs does without it"


def test_stragglers_need_custodians_behind_every_switch() -> None:
    with ExitStack() as stack:
        both = _switches(stack, {}, {"policy": "switchml"})
        settings = Settings(switch=",".join(map(_address, both)), straggler="custody")
        with pytest.raises(UserError, match="no custodians"):
            make_offer(settings, "a", 4, 352)
        assert _jobs(*both) == [0, 0]
        assert make_offer(replace(settings, straggler="off"), "a", 4, 352).admitted == 2


def test_a_rack_has_one_switch() -> None:
    assert len(switches_of(Settings(switch="a:1", rack="r0"))) == 1
    with pytest.raises(UserError, match="a rack has one switch") as told:
        switches_of(Settings(switch="a:1,b:1", rack="r0"))
    assert told.value.place == "PACELINE_SWITCH"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a:1,", "no address beside it"),
        ("a:1,,b:1", "no address beside it"),
        ("a:1*0", "from 1 to"),
        ("a:1*x", "from 1 to"),
        ("a:1*1.5", "from 1 to"),
        ("*2", "no address beside it"),
        ("a:1, a:1", "named twice"),
        ("a,a:7070", "named twice"),
        ("a:1 b:1", "not host, host:port"),
        (",".join(f"h{i}:1" for i in range(SWITCHES_MAX + 1)), "more than"),
    ],
)
def test_mistakes_in_the_variable(text: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason) as told:
        parse_switches(text)
    assert told.value.place == "PACELINE_SWITCH"


def test_addresses_of_all_kinds_stand_beside_each_other() -> None:
    pinned = "ab" * 32
    named = parse_switches(f"a, [fd00::1]:8*2,https://b:9,c#sha256={pinned}*4")
    assert [(n.control.host, n.control.port, n.factor) for n in named] == [
        ("a", 7070, 1),
        ("fd00::1", 8, 2),
        ("b", 9, 1),
        ("c", 7070, 4),
    ]
    assert [n.control.trust is not None for n in named] == [False, False, True, True]
    assert parse_switches("") == ()


def test_each_way_has_its_own_address() -> None:
    assert [address for address, _ in routes(Settings(switch="127.0.0.1:1,127.0.0.2:1"), "")] == [
        "127.0.0.1"
    ] * 2
    assert len(routes(Settings(), "127.0.0.1")) == 1


@pytest.mark.parametrize(
    ("texts", "refused"),
    [
        (["a", ""], False),  # as ever: told when the address is needed
        (["a,b", "a,c"], False),
        (["a,b", "a"], True),
        (["a", "a,b"], True),
    ],
)
def test_all_ranks_name_as_many(texts: list[str], refused: bool) -> None:
    keys = StorePrefix(HashStore(), "switches/", 5.0)
    for worker, text in enumerate(texts):
        keys.set(str(worker), str(len(parse_switches(text))))
    if refused:
        with pytest.raises(UserError, match=r"as many switches on all ranks: \d on rank 0 and \d on rank 4"):
            check_switches(keys, 1, (0, 4), Settings(switch=texts[1]))
    else:
        check_switches(keys, 1, (0, 4), Settings(switch=texts[1]))


def test_an_admission_of_an_older_switch_has_no_limit_of_its_own() -> None:
    with running_switch() as switch:
        fields = json.loads(switch.control.admit("a", 2).to_json())
    del fields["slots_max"]
    older = Admission.from_json(json.dumps(fields))
    assert older.aggregators == older.slots * len(older.shards)
