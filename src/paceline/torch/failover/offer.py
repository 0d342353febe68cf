"""What a path begins with: the switches that have a place for the job, asked by the first worker for all.

`PACELINE_SWITCH` names one switch or several. Each that admits the job becomes a *branch* of the path, with a job
number and a key of its own. Without any the path has one branch, over custodians alone. Switches that do not answer,
or have no room now, are *missing*: the path begins without them, and they are looked for later (`switch_search`)."""

import http.client
import json
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass

from paceline.core.wire import HEADER_BYTES
from paceline.errors import UserError
from paceline.live.agent.config import AgentConfig
from paceline.live.agent.setup import warm_up
from paceline.live.net.addresses import is_ipv6
from paceline.live.net.sockets import IPV6_MORE_BYTES, route_to
from paceline.live.switch_client import (
    Admission,
    ControlError,
    NamedSwitch,
    UntrustedSwitchError,
    parse_switches,
)
from paceline.torch.settings import Settings

_MAY_PASS = (http.client.CONFLICT, http.client.SERVICE_UNAVAILABLE)
"""A switch is full, or about to end: among several, the others do without it."""


@dataclass(frozen=True)
class BranchOffer:
    """One switch's part of a path, or what replaces it where there is no switch."""

    job: int
    """The job's number in packets."""
    key: str
    """Of the packets' tags, in hexadecimal digits."""
    admission: str = ""
    """The switch's `Admission` as JSON; empty: custodians do everything."""
    switch: int = 0
    """Its place among the switches that are named."""
    weight: int = 1
    """How much of a tensor goes there, beside the others' weights."""


@dataclass(frozen=True)
class PathOffer:
    """What the first worker publishes."""

    branches: tuple[BranchOffer, ...]
    reason: str
    """Why switches are missing, or none is asked for."""
    elements: int
    """32-bit integers of a chunk, by every branch."""
    missing: tuple[int, ...] = ()
    """Switches that are named and have not admitted the job."""
    straggler: str = "off"
    """Whether leading workers help a straggling one: the first worker decides for all."""

    @property
    def admitted(self) -> int:
        """How many switches have a place for the job."""
        return sum(bool(branch.admission) for branch in self.branches)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "PathOffer":
        fields = json.loads(text)
        branches = tuple(BranchOffer(**branch) for branch in fields["branches"])
        return cls(**{**fields, "branches": branches, "missing": tuple(fields["missing"])})


def switches_of(settings: Settings) -> tuple[NamedSwitch, ...]:
    """The switches that are named; none where the variable is not set."""
    named = parse_switches(settings.switch, settings.token, trust=settings.trust)
    if settings.rack and len(named) > 1:
        raise UserError(
            f"names {len(named)} switches, and PACELINE_RACK is set: a rack has one switch, under an upper one",
            place="PACELINE_SWITCH",
        )
    return named


def routes(settings: Settings, master: str) -> list[tuple[str, int]]:
    """This host's address on the way to each switch (or to the master), and the MTU of that way.

    IPv6 takes more of a packet than IPv4: what it takes is off the MTU already.
    """
    far = [switch.control.host for switch in switches_of(settings)] or [master or "127.0.0.1"]
    return [_route(settings, host) for host in far]


def _route(settings: Settings, far: str) -> tuple[str, int]:
    try:
        address, mtu = route_to(far)
        address = settings.address or address
        return address, mtu - IPV6_MORE_BYTES if is_ipv6(address) else mtu
    except OSError as error:
        if settings.address:
            return settings.address, 1500
        raise UserError(f"no way to {far}: {error}", place="PACELINE_SWITCH or MASTER_ADDR") from error


def numbered_racks(names: list[str]) -> list[int]:
    """Each worker's rack as a number, in the order of the workers; all in one where some have not told theirs."""
    known = list(dict.fromkeys(names)) if all(names) else [""]
    return [known.index(name) if all(names) else 0 for name in names]


def make_offer(
    settings: Settings,
    name: str,
    workers: int,
    elements: int,
    racks: int = 1,
    ahead: Sequence[int] = (),
    strict: bool = True,
) -> PathOffer:
    """Ask the switches for a place; without one, custodians do everything. A refusal is a mistake to be told.

    `ahead`: switches that are asked first; where none of them has a place, no other is asked. Where it is not
    `strict`, a switch that refuses is missing like one that does not answer: a job that runs goes on with the others.
    """
    named = switches_of(settings)
    if not named:
        return PathOffer((_without_switch(),), "PACELINE_SWITCH is not set", elements, (), settings.straggler)
    warm_up()  # a first start compiles for longer than a lease lasts
    first = list(ahead) or list(range(len(named)))
    answers = _ask(settings, named, first, name, workers, racks)
    if any(isinstance(answer, Admission) for answer in answers.values()):
        rest = [number for number in range(len(named)) if number not in first]
        answers |= _ask(settings, named, rest, name, workers, racks)
    return _offer_of(settings, named, answers, elements, strict)


def _without_switch() -> BranchOffer:
    return BranchOffer(secrets.randbelow(1 << 16), secrets.token_hex(16))


def _ask(
    settings: Settings,
    named: Sequence[NamedSwitch],
    numbers: Sequence[int],
    name: str,
    workers: int,
    racks: int,
) -> dict[int, Admission | ControlError]:
    """What each of these switches says; those that are not there keep the others waiting for seconds, not in turn."""

    def ask(number: int) -> Admission | ControlError:
        try:
            return named[number].control.admit(
                name,
                workers,
                priority_max=settings.priority_max,
                slots_max=settings.slots_max,
                racks=racks if racks > 1 else None,
            )
        except ControlError as error:
            return error

    if len(numbers) < 2:
        return {number: ask(number) for number in numbers}
    with ThreadPoolExecutor(len(numbers), thread_name_prefix="paceline-ask") as threads:
        return dict(zip(numbers, threads.map(ask, numbers), strict=True))


def _offer_of(
    settings: Settings,
    named: Sequence[NamedSwitch],
    answers: dict[int, Admission | ControlError],
    elements: int,
    strict: bool,
) -> PathOffer:
    admitted = {k: answer for k, answer in sorted(answers.items()) if isinstance(answer, Admission)}
    errors = {k: answer for k, answer in sorted(answers.items()) if isinstance(answer, ControlError)}
    mistake = next((error for error in errors.values() if _is_mistake(error, bool(admitted))), None)
    if strict and mistake is not None:
        _leave(named, admitted)
        raise UserError(str(mistake), place="PACELINE_SWITCH") from mistake
    if settings.straggler != "off" and any(given.policy == "switchml" for given in admitted.values()):
        _leave(named, admitted)
        raise UserError("the switch runs switchml, which has no custodians", place="PACELINE_STRAGGLER")
    narrow = min([elements, *(given.elements for given in admitted.values())])
    branches = [
        BranchOffer(given.job, given.key.hex(), given.to_json(), k, _weight(given, named[k].factor, narrow))
        for k, given in admitted.items()
    ]
    missing = tuple(k for k in range(len(named)) if k not in admitted)
    reason = "; ".join(str(error) for error in errors.values())
    return PathOffer(tuple(branches) or (_without_switch(),), reason, narrow, missing, settings.straggler)


def _is_mistake(error: ControlError, others: bool) -> bool:
    """An answer that stays the same however often the switch is asked, or that leaves the job without any."""
    if isinstance(error, UntrustedSwitchError):
        return True
    return bool(error.status) and not (others and error.status in _MAY_PASS)


def _weight(admission: Admission, factor: int, elements: int) -> int:
    """What a switch admits, as far as a worker's window can use it, times what the user says of it."""
    window = AgentConfig.window_bytes // (HEADER_BYTES + 4 * elements)
    return factor * max(1, min(admission.aggregators, window))


def drop_offer(settings: Settings, offer: PathOffer) -> None:
    """Give back places that nobody will use."""
    given = {b.switch: Admission.from_json(b.admission) for b in offer.branches if b.admission}
    _leave(switches_of(settings), given)


def _leave(named: Sequence[NamedSwitch], admitted: dict[int, Admission]) -> None:
    for number, admission in admitted.items():
        with suppress(ControlError):  # its lease ends it
            named[number].control.leave(admission)
