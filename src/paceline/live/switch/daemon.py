"""The live switch: shards on their sockets, the table of jobs, the upper switch, and an orderly end.

    switch = LiveSwitch(options, events)   opens sockets, starts one thread a shard
    switch.admit(...), bind, renew, leave  what the control plane asks for
    switch.drain()                         no new jobs; ends when the last has left, or after a while
    switch.close()                         everything is given back

`http.py` puts HTTP in front of it, `commands/switch.py` a command line.
"""

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.compile.cache import is_on_disk
from paceline.compile.decorators import interpreted
from paceline.core.auth import KEY_BYTES, key_words
from paceline.core.switch.memory import AGGREGATOR, POLICIES
from paceline.errors import UserError
from paceline.live.net import sockets
from paceline.live.net.addresses import is_everywhere, is_ipv6, is_loopback, show_address
from paceline.live.switch.jobs import POOL_SHARE, AdmittedJob, Events, Refusal, Registry, Upstream
from paceline.live.switch.pcap import open_pcap, turn_over
from paceline.live.switch.police import ShardPolice
from paceline.live.switch.shard import ShardThread, run_shard
from paceline.live.switch.shard_state import SHARDS_MAX, Shard, admit, grant, new_shard, release
from paceline.live.switch_tls import Trust, check_certificate

LIVE_POLICIES = tuple(name for name in POLICIES if name != "none")
SLOTS_MIN = 2
WATCH_S = 0.5


@dataclass(frozen=True)
class SwitchOptions:
    """How a switch is set up; the defaults are those of `paceline switch`."""

    host: str = "127.0.0.1"
    port: int = 0
    memory_bytes: int = 64 << 20
    policy: str = "esa-plus"
    shards: int = 1
    token: str = ""
    upper: bool = False
    upstream: tuple[str, int] | None = None
    auth: str = "header"
    elements: int = 0
    jobs_max: int = 64
    priority_max: int = 255
    slots_max: int = 0
    lease_s: float = 10.0
    drain_s: float = 30.0
    stale_ms: float = 100.0
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    seed: int = 1
    pcap: Path | None = None
    pcap_bytes: int = 256 << 20
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    upstream_trust: Trust | None = None
    """How the upper switch is known, over TLS; None: plain HTTP."""


def announce_compilation() -> None:
    """Say, on a cold start, why nothing seems to happen."""
    if not interpreted() and not is_on_disk(run_shard):
        print("paceline: compiling the switch, once (up to a minute) ...", file=sys.stderr, flush=True)


def warm_up() -> None:
    """Compile the switch, or load it: one that starts and ends, and tells nobody."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        LiveSwitch(SwitchOptions(), Events(stream=nowhere)).close()


class LiveSwitch:
    """A running switch."""

    def __init__(self, options: SwitchOptions, events: Events) -> None:
        _check(options)
        self.options, self.events = options, events
        self.elements = options.elements or _elements(options.host)
        row_bytes = AGGREGATOR.itemsize + 4 * self.elements
        self.slots = options.memory_bytes // options.shards // row_bytes
        if self.slots < SLOTS_MIN:
            raise UserError(
                f"{options.memory_bytes} bytes hold {self.slots} aggregators of {row_bytes} bytes in each shard; "
                f"at least {SLOTS_MIN} are needed",
                place="--memory",
            )
        self.failure = ""
        self.instance = secrets.token_hex(8)
        """Names this run of the switch to those it admits."""
        self.ended = threading.Event()
        self.upstream = (
            Upstream(*options.upstream, options.token, options.upstream_trust) if options.upstream else None
        )
        self._pcap_fd = open_pcap(options.pcap) if options.pcap else -1
        self.sockets = self._open()
        self.ports = [made.port for made in self.sockets]
        shards = [self._shard(k, made) for k, made in enumerate(self.sockets)]
        _compile(shards[0])
        self.threads = [ShardThread(k, shard, self._shard_failed) for k, shard in enumerate(shards)]
        self.police = [
            ShardPolice(made.socket, shard) for made, shard in zip(self.sockets, shards, strict=True)
        ]
        self.registry = Registry(self.threads, self.slots, options, events)
        for thread in self.threads:
            thread.start()
        self._watch = threading.Thread(target=self._watch_leases, name="paceline-leases", daemon=True)
        self._watch.start()

    def _open(self) -> list[sockets.DataSocket]:
        made: list[sockets.DataSocket] = []
        try:
            for k in range(self.options.shards):
                port = self.options.port + 1 + k if self.options.port else 0
                made.append(sockets.open_socket(self.options.host, port))
        except UserError:
            for opened in made:
                opened.close()
            raise
        for warning in dict.fromkeys(warning for opened in made for warning in opened.warnings):
            self.events("warning", warning)
        return made

    def _shard(self, number: int, made: sockets.DataSocket) -> Shard:
        options = self.options
        shard = new_shard(
            made.fd,
            level=2 if options.upper else 1,
            slots=self.slots,
            jobs=options.jobs_max,
            width=self.elements,
            policy=POLICIES[options.policy],
            stale_ns=int(options.stale_ms * 1e6),
            seed=options.seed + number,
            full_tag=options.auth == "full",
            faults=(options.drop, options.duplicate, options.reorder),
            pcap_fd=self._pcap_fd,
            pcap_bytes=options.pcap_bytes // options.shards,
            address=sockets.pack_address(made.host, made.port),
        )
        shard.capture.cells[0].offset_ns = time.time_ns() - time.monotonic_ns()
        return shard

    # --- what the control plane asks for --------------------------------------------------------------------

    def admit(self, name: str, workers: int, **wanted: Any) -> AdmittedJob:
        """Admit a job here, and at the upper switch first where there is one."""
        if wanted.get("racks", 1) > 1 and self.upstream is None and not self.options.upper:
            raise Refusal(409, "a job of several racks needs a switch with --upstream, or an upper one")
        if self.upstream is not None:
            request = {"name": name, "workers": workers, **_for_upstream(wanted)}
            if self.options.policy == "switchml":
                request["slots_max"] = wanted.get("slots_max") or self.slots // 2 // POOL_SHARE
            answer = self.upstream.admit(request)
            wanted |= {"number": int(answer["job"]), "key": bytes.fromhex(str(answer["key"]))}
            if wanted.get("racks", 1) > 1:
                wanted |= {"slots": int(answer["slots"]), "pool": int(answer["pool"])}
            self._aim()
            self.registry.forget(wanted["number"], wanted["key"])
        job = self.registry.admit(name, workers, **wanted)
        if self.upstream is not None and job.racks > 1:
            self.upstream.bind_rack(job, self._own_addresses(self.upstream.host))
        return job

    def _own_addresses(self, peer: str) -> list[int]:
        """Of this switch's shards, as a peer sees them."""
        host = sockets.own_address(peer) if is_everywhere(self.options.host) else self.options.host
        return [sockets.pack_address(host, port) for port in self.ports]

    def bind_worker(self, job: AdmittedJob, worker: int, address: int, rack: int = 0) -> None:
        """Bind a worker's address, and tell the upper switch in which rack it lives."""
        self._check_address(address)
        if self.registry.is_rack(job, address):
            raise Refusal(400, f"{show_address(*sockets.unpack_address(address))} is a rack's switch")
        self.registry.bind_worker(job, worker, address, rack or job.rack)
        if self.upstream is not None and job.racks > 1:
            self.upstream.bind_worker(job, worker, address)

    def bind_rack(self, job: AdmittedJob, rack: int, addresses: Sequence[int]) -> None:
        """Bind the addresses of a rack's switch, which is another one than this."""
        for address in addresses:
            self._check_address(address)
        self.registry.bind_rack(job, rack, addresses)

    def _check_address(self, address: int) -> None:
        """Refuse a switch's own, where each packet would go round for ever, and what no packet from here reaches."""
        host, port = sockets.unpack_address(address)
        if is_ipv6(host) != is_ipv6(self.options.host) and self.options.host != "::":
            spoken = "IPv6" if is_ipv6(self.options.host) else "IPv4"
            raise Refusal(400, f"{show_address(host, port)} cannot be reached: this switch speaks {spoken}")
        own = port in self.ports and (
            sockets.is_own_address(host) if is_everywhere(self.options.host) else host == self.options.host
        )
        above = self.upstream is not None and address in self.upstream.shards
        if own or above:
            raise Refusal(400, f"{show_address(host, port)} is a switch, not a worker")

    def leave(self, job: AdmittedJob) -> int:
        """The job leaves. A job of several racks leaves the upper switch when its lease there is over."""
        freed = self.registry.leave(job)
        if self.upstream is not None and job.racks == 1:
            self.upstream.leave(job)
        return freed

    def describe(self, job: AdmittedJob) -> dict[str, Any]:
        """What an agent must know of its admission."""
        options = self.options
        return {
            "job": job.number,
            "instance": self.instance,
            "key": job.key.hex(),
            "shards": self.ports,
            "slots": job.slots,
            "pool": job.pool_size,
            "elements": self.elements,
            "policy": options.policy,
            "auth": options.auth,
            "lease_s": options.lease_s,
            "epoch": job.epoch,
            "priority_max": job.priority_max,
            "slots_max": job.slots_max,
        }

    # --- the end --------------------------------------------------------------------------------------------

    def drain(self) -> bool:
        """Take no new jobs and wait for the last to leave, at most `drain_s`; were there none left?"""
        self.registry.draining = True
        left = len(self.registry.jobs())
        self.events("draining", f"draining: no new jobs; {left} still here", jobs=left)
        deadline = time.monotonic() + self.options.drain_s
        while self.registry.jobs() and time.monotonic() < deadline and not self.ended.is_set():
            time.sleep(0.05)
        return not self.registry.jobs()

    def close(self) -> None:
        """Stop the shards and give everything back."""
        self.ended.set()
        if self._watch.ident is not None:
            self._watch.join(10.0)
        for thread in self.threads:
            thread.stop()
        for made in self.sockets:
            made.close()
        if self._pcap_fd >= 0:
            os.close(self._pcap_fd)
            self._pcap_fd = -1

    # --- in the background ----------------------------------------------------------------------------------

    def _shard_failed(self, number: int, error: BaseException) -> None:
        self.failure = f"shard {number} failed: {error!r}"
        self.events("failed", self.failure, shard=number)
        self.ended.set()

    def _watch_leases(self) -> None:
        renewed = time.monotonic()
        while not self.ended.wait(min(WATCH_S, self.options.lease_s / 4)):
            self._turn_capture_over()
            self._police()
            evicted = self.registry.evict_silent()
            if self.upstream is not None:
                for job in evicted:
                    if job.racks == 1:
                        self._try(self.upstream.leave, job)
                if time.monotonic() - renewed > self.options.lease_s / 3:
                    renewed = time.monotonic()
                    for job in self.registry.jobs():
                        self._try(self._renew_above, job)

    def _police(self) -> None:
        """Have the kernel refuse what a flooding job sends beyond its share."""
        jobs = {job.number: job for job in self.registry.jobs()}
        for shard, police in enumerate(self.police):
            for number in police.look(list(jobs)):
                text = f"job {number} {jobs[number].name!r} floods shard {shard}: a part of its packets is refused"
                self.events("flood", text, job=number, shard=shard, taken=police.keep[number])

    def _turn_capture_over(self) -> None:
        """A capture file that is full becomes the one before."""
        path = self.options.pcap
        captures = [thread.shard.capture.cells[0] for thread in self.threads]
        if path is None or not any(cells.written >= cells.limit for cells in captures):
            return
        before = self._pcap_fd
        try:
            path.replace(f"{path}.1")
            self._pcap_fd = open_pcap(path)
        except (OSError, UserError) as error:
            self.events("capture", f"the capture ends: {error}")
            return
        for thread in self.threads:
            thread.call(lambda shard: turn_over(shard.capture, self._pcap_fd))
        os.close(before)
        missed = sum(int(cells.missed) for cells in captures)
        self.events(
            "capture", f"{path} was full and is {path}.1; {missed} packets were not captured", missed=missed
        )

    def _renew_above(self, job: AdmittedJob) -> None:
        assert self.upstream is not None
        if self.upstream.renew(job):
            return
        # The upper switch was restarted: give it back what it has forgotten.
        wanted = {
            "number": job.number,
            "key": job.key,
            "racks": job.racks,
            "rack": job.rack,
            "epoch": job.epoch,
        }
        answer = self.upstream.admit({"name": job.name, "workers": job.workers, **_for_upstream(wanted)})
        if int(answer["job"]) != job.number:
            # A newcomer has its number there. Its workers find it unknown here, and are admitted under the new one.
            self.registry.leave(job, "renumbered by the upper switch")
            return
        self._aim()
        if job.racks > 1:
            self.upstream.bind_rack(job, self._own_addresses(self.upstream.host))
            for worker, address in job.addresses.items():
                self.upstream.bind_worker(job, worker, address)
        self.events("upstream", f"job {job.number} was admitted again at the upper switch", job=job.number)

    def _try(self, wanted: Callable[[AdmittedJob], Any], job: AdmittedJob) -> None:
        try:
            wanted(job)
        except Refusal as refusal:
            self.events("upstream", str(refusal), job=job.number)

    def _aim(self) -> None:
        """Tell the shards where the upper switch's shards are."""
        assert self.upstream is not None
        addresses = self.upstream.shards[:SHARDS_MAX]

        def aim(shard: Shard) -> None:
            shard.upper[: len(addresses)] = addresses
            shard.cells[0].upper_shards = len(addresses)

        for thread in self.threads:
            thread.call(aim)


def _check(options: SwitchOptions) -> None:
    if options.policy not in LIVE_POLICIES:
        raise UserError(
            f"unknown policy {options.policy!r}; known: {', '.join(LIVE_POLICIES)}", place="--policy"
        )
    if not 1 <= options.shards <= SHARDS_MAX:
        raise UserError(f"{options.shards} is not within 1..{SHARDS_MAX}", place="--shards")
    if options.auth not in ("header", "full"):
        raise UserError(f"{options.auth!r} is neither 'header' nor 'full'", place="--auth")
    for name in ("drop", "duplicate", "reorder"):
        if not 0.0 <= getattr(options, name) < 1.0:
            raise UserError("a probability from 0 up to, not including, 1 is wanted", place=f"--{name}")
    if not is_loopback(options.host) and not options.token:
        raise UserError(
            f"{options.host} can be reached from outside: give --token-file, or listen on 127.0.0.1",
            place="--listen",
        )
    check_certificate(options.tls_certificate, options.tls_key)
    if options.upper and options.upstream:
        raise UserError("an upper switch has no upstream; there are two levels", place="--upstream")


def _elements(host: str) -> int:
    """As many elements as a packet has on the interface that is listened on: wider aggregators would lie half empty."""
    return sockets.elements_for(sockets.interface_mtu(host), is_ipv6(host))


def _for_upstream(wanted: dict[str, Any]) -> dict[str, Any]:
    """An admission as the control plane's JSON has it; caps are each switch's own."""
    names = {"number": "job", "racks": "racks", "epoch": "epoch"}
    request = {names[name]: value for name, value in wanted.items() if name in names and value is not None}
    if wanted.get("key"):
        request["key"] = wanted["key"].hex()
    return request


def _compile(shard: Shard) -> None:
    """Compile, or load, all that a shard runs; with the mark set the loop returns at once."""
    shard.cells[0].called = 1
    run_shard(shard)
    admit(shard, 0, key_words(bytes(KEY_BYTES)), 1, 1, epoch=0, now_ns=0)
    grant(shard, 0, 0, 1, 0, 0)
    release(shard, 0)
