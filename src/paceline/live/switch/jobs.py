"""The jobs of a running switch: admission, addresses, leases, and how they leave.

One lock guards the table; the shards' own records are changed by the shards' threads, asked one after another. A job
that nobody renews, and of which no genuine packet comes, is evicted when its lease is over.

A switch under another asks it (`Upstream`) for every job it admits, so that numbers and keys agree in the whole tree;
tells it its own addresses for jobs of several racks, and where their workers are; and renews their leases. What happens
is told to the operator (`Events`).
"""

import hmac
import json
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol, TextIO

from paceline.core.auth import KEY_BYTES, key_words
from paceline.live.net.addresses import (
    give_back,
    hold_address,
    pack_address,
    resolve,
    show_address,
    unpack_address,
)
from paceline.live.switch import shard_state
from paceline.live.switch.shard import ShardThread
from paceline.live.switch.shard_state import RACKS_MAX, WORKERS_MAX, Shard
from paceline.live.switch_client import ControlError, ControlPlane
from paceline.live.switch_tls import Trust


class Events:
    """A log of events, and of nothing else; safe to use from any thread."""

    def __init__(
        self, as_json: bool = False, stream: TextIO | None = None, name: str = "paceline switch"
    ) -> None:
        self._as_json, self._stream, self._name = as_json, stream, name
        self._lock = threading.Lock()

    def __call__(self, event: str, text: str, **details: Any) -> None:
        """Tell `text` to people, `event` and `details` to programs."""
        if self._as_json:
            line = json.dumps({"time": round(time.time(), 3), "event": event, "text": text, **details})
        else:
            line = f"{self._name}: {text}"
        with self._lock:
            print(line, file=self._stream or sys.stderr, flush=True)


POOL_SHARE = 4
"""SwitchML: a job that asks for nothing gets the fourth part of the memory."""
TIMEOUT_S = 5.0
"""For an answer of the upper switch."""


class Refusal(Exception):  # noqa: N818 - an answer to a client, not a failure
    """A request that is answered with no: an HTTP status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        self.status = status
        super().__init__(sentence)


@dataclass
class AdmittedJob:
    """A job as the control plane knows it."""

    number: int
    name: str
    key: bytes
    workers: int
    racks: int
    priority_max: int
    slots_max: int
    pool_base: int
    pool_size: int
    epoch: int
    renewed_ns: int
    rack: int = 0
    slots: int = 0
    """Aggregators that its packets may name: those of the smallest switch on their way."""
    addresses: dict[int, int] = field(default_factory=dict)
    """Of its workers, each held (`hold_address`),"""
    racks_at: dict[int, list[int]] = field(default_factory=dict)
    """and of its racks' switches."""


class Limits(Protocol):
    """What the registry reads of the switch's options."""

    @property
    def policy(self) -> str: ...
    @property
    def jobs_max(self) -> int: ...
    @property
    def priority_max(self) -> int: ...
    @property
    def slots_max(self) -> int: ...
    @property
    def lease_s(self) -> float: ...


class Registry:
    """All jobs of a switch, and the shards that serve them."""

    def __init__(self, threads: Sequence[ShardThread], slots: int, limits: Limits, events: Events) -> None:
        self._threads, self._slots, self._limits, self._events = list(threads), slots, limits, events
        self._jobs: dict[int, AdmittedJob] = {}
        self._next = 0
        self.lock = threading.RLock()
        self.draining = False
        self.evictions = 0

    # --- asking ---------------------------------------------------------------------------------------------

    def jobs(self) -> list[AdmittedJob]:
        """A copy of the table, by number."""
        with self.lock:
            return [self._jobs[number] for number in sorted(self._jobs)]

    def find(self, number: int, key: str | None) -> AdmittedJob:
        """The job with this number, for who shows its key; the same answer for a wrong key as for no job."""
        with self.lock:
            job = self._jobs.get(number)
            known = job.key if job is not None else bytes(KEY_BYTES)
        given = parse_key(key) if key else None
        if job is None or given is None or not hmac.compare_digest(known, given):
            raise Refusal(404, f"no job {number} with this key here")
        return job

    # --- changing -------------------------------------------------------------------------------------------

    def admit(
        self,
        name: str,
        workers: int,
        *,
        racks: int = 1,
        rack: int = 0,
        priority_max: int = 255,
        slots_max: int = 0,
        number: int | None = None,
        key: bytes | None = None,
        epoch: int = 0,
        slots: int = 0,
        pool: int = 0,
    ) -> AdmittedJob:
        """A new job, or (with number and key) the one that it was before a restart; asking twice changes nothing.

        A job is known by its key. One that comes back gets its old number, or another where a newcomer has that one.
        `slots` and `pool` are what the upper switch has for it: no more is of use here.
        """
        _check("workers", workers, 1, WORKERS_MAX)
        _check("racks", racks, 1, RACKS_MAX)
        _check("rack", rack, 0, racks - 1)
        _check("priority_max", priority_max, 0, 255)
        _check("slots_max", slots_max, 0, 1 << 31)
        _check("epoch", epoch, 0, 65_535)
        with self.lock:
            known = None if key is None else self._with_key(key)
            if known is not None:
                if known.workers != workers:
                    raise Refusal(409, f"job {known.number} has {known.workers} workers here")
                known.renewed_ns = time.monotonic_ns()
                return known
            if self.draining:
                raise Refusal(503, "this switch is about to end and takes no new jobs")
            if number is not None:
                _check("job", number, 0, 65_535)
            if number is None or number in self._jobs or number >= self._limits.jobs_max:
                number = self._free_number()
            base, size = self._pool(pool or slots_max)
            most = min(cap for cap in (slots_max, self._limits.slots_max, self._slots) if cap > 0)
            job = AdmittedJob(
                number,
                name,
                key or secrets.token_bytes(KEY_BYTES),
                workers,
                racks,
                min(priority_max, self._limits.priority_max),
                most,
                base,
                size,
                epoch,
                time.monotonic_ns(),
                rack,
                min(slots or self._slots, self._slots),
            )
            if pool > 0 and size != pool:
                raise Refusal(
                    409, f"a pool of {pool} places, as in the upper switch, does not fit the shards here"
                )
            self._all(lambda shard: _admit(shard, job))
            job.renewed_ns = time.monotonic_ns()
            self._jobs[number] = job
        again = " again" if key is not None else ""
        self._events(
            "admitted",
            f"admitted job {number} {name!r}{again}: {workers} workers",
            job=number,
            name=name,
            workers=workers,
        )
        return job

    def forget(self, number: int, key: bytes) -> None:
        """The upper switch has given this number to the job with this key: whoever else has either here leaves."""
        with self.lock:
            for job in list(self._jobs.values()):
                if (job.number == number) != hmac.compare_digest(job.key, key):
                    self.leave(job, "renumbered by the upper switch")

    def bind_worker(self, job: AdmittedJob, worker: int, address: int, rack: int = 0) -> None:
        """From now on the worker's packets come from this address, and those for it go there."""
        _check("worker", worker, 0, job.workers - 1)
        _check("rack", rack, 0, job.racks - 1)

        def bind(shard: Shard) -> None:
            member = shard.members[job.number, worker]
            member.address, member.rack = address, rack

        with self.lock:
            self._still(job)
            hold_address(address)
            self._all(bind)
            before = job.addresses.get(worker, 0)
            known = before == address
            job.addresses[worker] = address
            give_back(before)
            job.renewed_ns = time.monotonic_ns()
        if known:
            # Workers bind again with every lease; only news are told.
            return
        host, port = unpack_address(address)
        self._events(
            "bound",
            f"job {job.number}: worker {worker} is {show_address(host, port)}",
            job=job.number,
            worker=worker,
            address=show_address(host, port),
        )

    def bind_rack(self, job: AdmittedJob, rack: int, addresses: Sequence[int]) -> None:
        """The rack switch `rack` of the job has these addresses, one a shard."""
        _check("rack", rack, 0, job.racks - 1)
        _check("number of addresses", len(addresses), 1, shard_state.SHARDS_MAX)

        def bind(shard: Shard) -> None:
            shard.racks[job.number, rack, : len(addresses)] = addresses
            shard.rack_shards[job.number, rack] = len(addresses)

        with self.lock:
            self._still(job)
            for address in addresses:
                hold_address(address)
            self._all(bind)
            before = job.racks_at.get(rack, [])
            job.racks_at[rack] = list(addresses)
            for address in before:
                give_back(address)
            job.renewed_ns = time.monotonic_ns()
        self._events("bound", f"job {job.number}: rack {rack} is bound", job=job.number, rack=rack)

    def is_rack(self, job: AdmittedJob, address: int) -> bool:
        """Whether a switch of one of the job's racks has the address."""

        def names(shard: Shard) -> bool:
            return bool((shard.racks[job.number, : job.racks] == address).any())

        return job.racks > 1 and any(self._all(names))

    def renew(self, job: AdmittedJob) -> None:
        """The job lives."""
        job.renewed_ns = time.monotonic_ns()

    def leave(self, job: AdmittedJob, why: str = "left") -> int:
        """The job's aggregators, key and addresses are gone; gives how many aggregators it held."""
        with self.lock:
            if self._jobs.get(job.number) is not job:
                return 0
            freed: int = sum(self._all(lambda shard: shard_state.release(shard, job.number)))
            del self._jobs[job.number]
            for address in chain(job.addresses.values(), *job.racks_at.values()):
                give_back(address)
        self._events(
            why,
            f"job {job.number} {job.name!r} {why}; {freed} aggregators freed",
            job=job.number,
            name=job.name,
            freed=freed,
        )
        return freed

    def evict_silent(self) -> list[AdmittedJob]:
        """Evict the jobs whose lease is over; gives them."""
        silent = []
        for job in self.jobs():
            heard_ns = max(int(thread.shard.jobs[job.number].heard_ns) for thread in self._threads)
            if time.monotonic_ns() - max(heard_ns, job.renewed_ns) > self._limits.lease_s * 1e9:
                self.leave(job, "evicted")
                self.evictions += 1
                silent.append(job)
        return silent

    # --- helpers --------------------------------------------------------------------------------------------

    def _all(self, wanted: Callable[[Shard], Any]) -> list[Any]:
        futures = [thread.ask(wanted) for thread in self._threads]
        return [future.result(10.0) for future in futures]

    def _still(self, job: AdmittedJob) -> None:
        if self._jobs.get(job.number) is not job:
            raise Refusal(404, f"job {job.number} has left")

    def _with_key(self, key: bytes) -> AdmittedJob | None:
        found = [job for job in self._jobs.values() if hmac.compare_digest(job.key, key)]
        return found[0] if found else None

    def _free_number(self) -> int:
        """The next number that is free, in turn: a number is not used again at once."""
        for step in range(self._limits.jobs_max):
            number = (self._next + step) % self._limits.jobs_max
            if number not in self._jobs:
                self._next = number + 1
                return number
        raise Refusal(409, f"this switch serves {self._limits.jobs_max} jobs already")

    def _pool(self, wanted: int) -> tuple[int, int]:
        """SwitchML: a range of places of the static pool, first fit; whole rounds of all shards."""
        if self._limits.policy != "switchml":
            return 0, 0
        unit = len(self._threads) << shard_state.CHUNKS_A_SHARD_LOG2 if len(self._threads) > 1 else 1
        places = self._slots // 2
        size = max(unit, (wanted or places // POOL_SHARE) // unit * unit)
        base = 0
        for job in sorted(self._jobs.values(), key=lambda job: job.pool_base):
            if job.pool_base - base >= size:
                break
            base = job.pool_base + job.pool_size
        if base + size > places:
            raise Refusal(409, f"no pool of {size} places is left")
        return base, size


def _admit(shard: Shard, job: AdmittedJob) -> None:
    shard_state.admit(
        shard, job.number, key_words(job.key), job.workers, job.racks, epoch=job.epoch, now_ns=job.renewed_ns
    )
    shard_state.grant(shard, job.number, job.priority_max, job.slots_max, job.pool_base, job.pool_size)


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise Refusal(400, f"{name} is {value}, not within {low}..{high}")


def parse_key(text: str) -> bytes | None:
    """A key in hexadecimal, or None."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        return None
    return key if len(key) == KEY_BYTES else None


class Upstream:
    """The upper switch at `host:port`."""

    def __init__(self, host: str, port: int, token: str, trust: Trust | None = None) -> None:
        self.host = resolve(host)
        self.shards: list[int] = []
        # By its name, which a certificate may have.
        self._control = ControlPlane(host if trust is not None else self.host, port, token, TIMEOUT_S, trust)

    def admit(self, request: dict[str, Any]) -> dict[str, Any]:
        """Admit a job there; remembers where its shards are."""
        answer = self._ask("POST", "/v1/jobs", request)
        shards = answer.get("shards")
        ports = shards if isinstance(shards, list) else []
        numbers = [answer.get("job"), answer.get("slots"), answer.get("pool"), *ports]
        sound = 0 < len(ports) <= shard_state.SHARDS_MAX and all(
            isinstance(number, int) and 0 <= number < 1 << 32 for number in numbers
        )
        if not sound or parse_key(str(answer.get("key"))) is None:
            raise Refusal(503, "the upper switch gave a strange admission")
        self.shards = [pack_address(self.host, port & 0xFFFF) for port in ports]
        return answer

    def bind_rack(self, job: AdmittedJob, addresses: Sequence[int]) -> None:
        """Tell where this switch's own shards are."""
        shown = [show_address(*unpack_address(address)) for address in addresses]
        self._ask("PUT", f"/v1/jobs/{job.number}/racks/{job.rack}", {"addresses": shown}, job)

    def bind_worker(self, job: AdmittedJob, worker: int, address: int) -> None:
        """Tell that a worker lives in this rack."""
        shown = show_address(*unpack_address(address))
        self._ask("PUT", f"/v1/jobs/{job.number}/workers/{worker}", {"address": shown, "rack": job.rack}, job)

    def renew(self, job: AdmittedJob) -> bool:
        """Renew a lease; False if the upper switch does not know the job."""
        try:
            self._ask("POST", f"/v1/jobs/{job.number}/lease", {}, job)
        except Refusal as refusal:
            if refusal.status == 404:
                return False
            raise
        return True

    def leave(self, job: AdmittedJob) -> None:
        """The job leaves there too; a neighbour rack may have said so before."""
        try:
            self._ask("DELETE", f"/v1/jobs/{job.number}", None, job)
        except Refusal as refusal:
            if refusal.status != 404:
                raise

    def _ask(
        self, method: str, path: str, body: dict[str, Any] | None, job: AdmittedJob | None = None
    ) -> dict[str, Any]:
        try:
            return self._control.call(method, path, body, None if job is None else job.key)
        except ControlError as error:
            what = "refused" if error.status else "does not answer"
            raise Refusal(error.status or 503, f"the upper switch {what}: {error.reason}") from None
