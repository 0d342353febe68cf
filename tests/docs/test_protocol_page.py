"""The protocol page tells the truth: its tables are the code's, its changes of state are those that happen."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paceline.core import describe as protocol
from paceline.core.custodian import program as custodian
from paceline.core.help import detect, ledger
from paceline.core.sender import program as sender
from paceline.core.switch import memory
from paceline.core.switch import program as switch
from paceline.core.switch.memory import POLICIES
from paceline.generated import rewritten
from tests.core.sender.test_roles import ack, leader, state_of
from tests.core.star import Faults, Job, Star
from tests.docs.pages import ROOT
from tests.properties.custody import wild
from tests.properties.wild import Wild

Change = tuple[str, str]


def test_page_is_as_generated() -> None:
    page = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
    assert rewritten(page, protocol.sections()) == page, "run `make docs`"


def test_pictures_are_as_drawn_from_the_tables() -> None:
    page = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
    for name, picture in protocol.pictures().items():
        assert (ROOT / "docs/images" / name).read_text(encoding="utf-8") == picture, "run `make docs`"
        assert f"(images/{name})" in page


def test_page_shows_every_part() -> None:
    page = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
    for name in protocol.sections():
        assert f"<!-- generated: {name} -->" in page


def test_marker_without_a_part_is_told() -> None:
    with pytest.raises(KeyError, match="nonsense"):
        rewritten("<!-- generated: nonsense -->\n<!-- end of generated -->", {})


class Watch:
    """Notes every change of state around the calls of the core that may cause one."""

    def __init__(self) -> None:
        self.seen: dict[str, set[Change]] = {"aggregator": set(), "flight": set(), "chunk": set()}
        self.star: Star | Wild | None = None

    def around(self, patch: pytest.MonkeyPatch, module: Any, name: str, what: str) -> None:
        real: Callable[..., Any] = getattr(module, name)

        def watched(*arguments: Any) -> Any:
            before = None if self.star is None else self._states(what)
            answer = real(*arguments)
            if before is not None:
                self._note(what, before)
            return answer

        patch.setattr(module, name, watched)

    def _states(self, what: str) -> Any:
        assert self.star is not None
        if what == "aggregator":
            return self.star.switch.memory.slots.state.copy()
        if what == "flight":
            return self.star.senders.flights.state.copy()
        return self.star.custodians.chunks.state.copy()

    def _note(self, what: str, before: Any) -> None:
        names = {
            "aggregator": memory.STATE_NAMES,
            "flight": sender.FLIGHT_STATES,
            "chunk": custodian.CHUNK_STATES,
        }[what]
        after = self._states(what)
        for at in np.argwhere(before != after):
            self.seen[what].add((names[before[tuple(at)]], names[after[tuple(at)]]))


@pytest.fixture(scope="module")
def seen() -> dict[str, set[Change]]:
    """All changes of state in networks under every policy, with faults, in one rack and in several."""
    watch = Watch()
    shapes = [
        [Job((0, 1, 1, 2), 20, 120), Job((2, 2, 2), 20, 60), Job((0, 1), 20, 200, dedicated=1)],
        [Job((0, 0), 20, 50), Job((0,), 20, 90), Job((1, 1, 1), 20, 200, dedicated=1)],
    ]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("handle_packet", "release_job"):
            watch.around(patch, switch, name, "aggregator")
        for name in ("release", "poll_transmit", "handle_result", "handle_timeout", "resend"):
            watch.around(patch, sender, name, "flight")
        for name in ("handle_packet", "keep_result", "handle_timeout"):
            watch.around(patch, custodian, name, "chunk")
        for policy in POLICIES:
            for seed in range(4):
                jobs = shapes[seed % 2]
                watch.star = None
                star = Star(policy, jobs, slots=6, racks=3, seed=seed, faults=Faults(0.08, 0.08, 0.3))
                watch.star = star
                assert star.run() == []
    return watch.seen


@pytest.fixture(scope="module")
def helped() -> dict[str, set[Change]]:
    """The same in networks at their worst, where stragglers are helped."""
    watch = Watch()
    told = ("take_role", "handle_ack", "handle_pull")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("release", "poll_transmit", "handle_result", "handle_timeout", *told):
            watch.around(patch, sender, name, "flight")
        for name in ("handle_packet", "release_job"):
            watch.around(patch, switch, name, "aggregator")
        for name in ("handle_packet", "keep_result", "handle_timeout", "begin_epoch", "forget"):
            watch.around(patch, custodian, name, "chunk")
        for seed in range(64):
            watch.star = None
            run = wild(seed)
            watch.star = run
            run.run()
    return watch.seen


def _listed(changes: tuple[tuple[str, str, str], ...]) -> set[Change]:
    return {change[:2] for change in changes}


def test_aggregators_change_as_listed(seen: dict[str, set[Change]]) -> None:
    rare = {("held", "filling")}  # shown by itself below
    assert seen["aggregator"] | rare == _listed(protocol.AGGREGATOR_CHANGES)


def test_a_stale_aggregator_is_taken() -> None:
    star = Star("atp", [Job((0,), 3), Job((0, 0), 3)], slots=1)
    stale_ns = int(star.switch.config[0].stale_ns)
    states = []
    for i, now_ns in ((0, 0), (1, stale_ns), (1, stale_ns + 1)):
        message = star._blank()
        sender.start(star.senders, i, 1.0, stale_ns)
        sender.release(star.senders, i, 1)
        assert sender.poll_transmit(star.senders, i, message.packet, now_ns)
        switch.handle_packet(star.switch, 0, message.packet, message.values, 0, now_ns)
        states.append(memory.STATE_NAMES[star.switch.memory.slots[0].state])
    assert states == ["held", "held", "filling"]


def test_chunks_change_as_listed(seen: dict[str, set[Change]]) -> None:
    rare = {("open", "absent"), ("done", "absent")}  # shown by themselves below
    assert seen["chunk"] | rare == _listed(protocol.CHUNK_CHANGES)


def test_a_new_epoch_voids_open_chunks_and_a_loss_voids_all() -> None:
    star = Star("none", [Job((0, 0), 9, dedicated=1)], slots=1, seed=3)
    chunks = star.custodians.chunks[0]
    while not {custodian.OPEN, custodian.FINISHED} <= set(chunks.state.tolist()):
        assert star.step()
    done = (chunks.state == custodian.FINISHED).copy()
    custodian.begin_epoch(star.custodians, 0, 1)
    assert (chunks.state[done] == custodian.FINISHED).all()
    assert (chunks.state[~done] == custodian.ABSENT).all()
    custodian.forget(star.custodians, 0, 2)
    assert (chunks.state == custodian.ABSENT).all()


def test_flights_change_as_listed(seen: dict[str, set[Change]]) -> None:
    # A driver resends what is lost before it takes the next result, so these are shown one by one below.
    rare = {("lost", "done"), ("lost", "idle"), ("lost", "queued")}
    credited = {change for change in _listed(protocol.FLIGHT_CHANGES) if "credited" in change}
    assert seen["flight"] | rare == _listed(protocol.FLIGHT_CHANGES) - credited


def test_changes_are_as_listed_where_stragglers_are_helped(helped: dict[str, set[Change]]) -> None:
    credited = {change for change in _listed(protocol.FLIGHT_CHANGES) if "credited" in change}
    rare = {("lost", "credited")}  # shown by itself below
    assert {change for change in helped["flight"] if "credited" in change} | rare == credited
    assert helped["flight"] <= _listed(protocol.FLIGHT_CHANGES)
    assert helped["aggregator"] <= _listed(protocol.AGGREGATOR_CHANGES)
    assert helped["chunk"] == _listed(protocol.CHUNK_CHANGES)


def test_an_ack_may_come_before_the_resend() -> None:
    one = leader(2)
    one.send()
    one.timeout(10**9)
    assert sender.FLIGHT_STATES[state_of(one, 0)] == "lost"
    assert ack(one, 0)
    assert sender.FLIGHT_STATES[state_of(one, 0)] == "credited"
    assert one.send() == [1]


def test_micro_batches_change_as_listed() -> None:
    draw = random.Random(5)
    changes: set[Change] = set()
    for _ in range(200):
        book = ledger.Ledger(0, 3, lease_ns=50)
        for now_ns in range(0, 300, 10):
            before = [batch.state for batch in book.batches]
            worker, m = draw.randrange(3), draw.randrange(3)
            number = book.claim_number(m, worker)
            act = draw.choice(("claim", "claim", "finish", "commit", "leave", "freeze"))
            if act == "claim":
                # What runs out at a claim is claimed again by it: let it run out by a death instead.
                for batch in book.batches:
                    batch.lease_ns = batch.second_lease_ns = now_ns + 50
                book.claim(worker, now_ns)
            elif act == "leave":
                book.leave(worker)
            elif act == "freeze":
                book.freeze()
            else:
                getattr(book, act)(m, number)
            for old, batch in zip(before, book.batches, strict=True):
                if old != batch.state:
                    changes.add((ledger.BATCH_STATES[old], ledger.BATCH_STATES[batch.state]))
    assert changes == _listed(protocol.BATCH_CHANGES)


def test_roles_change_as_listed() -> None:
    draw = random.Random(6)
    changes: set[Change] = set()
    detection = detect.new_detection(4, theta_chunks=10)
    for _ in range(400):
        before = detection.workers.role.copy()
        detection.workers.computed[:] = [draw.choice((80, 100, 100, 100)) for _ in range(4)]
        detection.workers.delivered[:] = detection.workers.computed
        detection.workers.delivered[draw.randrange(4)] = 80
        detect.end_window(detection, np.zeros(4, dtype=np.int64))
        if draw.random() < 0.3:
            detect.end_iteration(detection)
        for old, new in zip(before, detection.workers.role, strict=True):
            if old != new:
                changes.add((detect.ROLE_NAMES[old], detect.ROLE_NAMES[new]))
    assert changes == _listed(protocol.ROLE_CHANGES)


@pytest.mark.parametrize(
    ("policy", "released", "chunk", "after"),
    [("esa", 3, 0, "idle"), ("esa", 3, 1, "done"), ("switchml", 3, 0, "idle"), ("switchml", 9, 0, "queued")],
)
def test_a_result_may_come_before_the_resend(policy: str, released: int, chunk: int, after: str) -> None:
    star = Star(policy, [Job((0, 0), 9)], slots=6, inquires=False)
    sender.release(star.senders, 0, released)
    while sender.poll_transmit(star.senders, 0, star._blank().packet, 0):
        pass
    sender.handle_timeout(star.senders, 0, 10**9)
    flight = star.senders.flights[0, chunk % star.senders.state[0].span]
    assert sender.FLIGHT_STATES[flight.state] == "lost"
    packet = star._blank().packet
    packet.chunk = chunk
    assert sender.handle_result(star.senders, 0, packet, 10**9) == sender.NEW
    assert sender.FLIGHT_STATES[flight.state] == after
