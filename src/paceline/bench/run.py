"""A whole measurement: links, a switch, ranks; rows as they come; nothing left behind.

Without a rate the ranks are processes of this machine, on loopback. With one, each has a network namespace with a
limited link (`emulation/namespaces.py`), and the switch has the hub. The switch is a `paceline switch` of our own.
"""

import contextlib
import json
import os
import secrets
import selectors
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from paceline.bench.measurement import HOST, OURS, MeasuredRow, Measurement, Outcome
from paceline.bench.processes import ChildError, Children
from paceline.compile.cache import is_on_disk
from paceline.emulation import namespaces
from paceline.live.switch_client import ControlError, ControlPlane
from paceline.ports import free_port

RENDEZVOUS_PORT = 29577
CONTROL_PORT = 7077
START_TIMEOUT_S = 400.0
"""Until the first row: torch's import and a first compilation by every rank on a busy machine."""
SIZE_TIMEOUT_S = 600.0
END_TIMEOUT_S = 60.0
SWITCH = "switch"
_POLL_S = 0.5

Command = Callable[[list[str]], list[str]]


@dataclass(frozen=True)
class Testbed:
    """Where ranks and switch run."""

    switches: tuple[str, ...]
    """Control addresses of the switches, HOST:PORT."""
    addresses: tuple[str, ...]
    """Of the ranks."""
    device: str
    """The network interface that Gloo is to use."""
    port: int
    """Of the ranks' rendezvous, at the first rank."""
    in_switch: tuple[Command, ...]
    """For each switch: makes a command one that runs where it is."""
    in_rank: tuple[Command, ...]
    """The same for each rank."""


def run(measurement: Measurement, report: Callable[[MeasuredRow], None] = lambda row: None) -> Outcome:
    """Measure; `report` gets each row as it comes. A failure is a `ChildError`."""
    outcome = Outcome(measurement)
    with _testbed(measurement) as testbed, Children() as children:
        if OURS in measurement.backends:
            _start_switches(children, measurement, testbed)
            _compile(children, measurement)
        output = _start_ranks(children, measurement, testbed)
        for message in _messages(children, output):
            if "row" in message:
                row = MeasuredRow(**{**message["row"], "times_us": tuple(message["row"]["times_us"])})
                outcome.rows.append(row)
                report(row)
            else:
                outcome.status = message["status"]
        for i in range(measurement.workers):
            children.wait(f"rank {i}", END_TIMEOUT_S)
    return outcome


@contextlib.contextmanager
def _testbed(measurement: Measurement) -> Iterator[Testbed]:
    if measurement.rate_bps is None:
        alike = tuple(_as_it_is for _ in range(measurement.workers))
        addresses = ("127.0.0.1",) * measurement.workers
        switches = tuple(
            f"127.0.0.1:{free_port(measurement.shards)}" for _ in range(max(1, measurement.switches))
        )
        yield Testbed(switches, addresses, "lo", free_port(), (_as_it_is,) * len(switches), alike)
        return
    assert measurement.worker_rate_bps is not None
    with namespaces.star(
        measurement.workers,
        measurement.worker_rate_bps,
        mtu=measurement.mtu,
        switches=measurement.switches,
        switch_rate_bps=measurement.rate_bps,
    ) as star:
        at = [star.switch_address(k) for k in range(measurement.switches)] or [star.hub_address]
        yield Testbed(
            switches=tuple(f"{address}:{CONTROL_PORT}" for address in at),
            addresses=tuple(star.address(i) for i in range(measurement.workers)),
            device=namespaces.DEVICE,
            port=RENDEZVOUS_PORT,
            in_switch=tuple(_within(name) for name in star.switches or (star.hub,)),
            in_rank=tuple(_within(name) for name in star.workers),
        )


def _as_it_is(command: list[str]) -> list[str]:
    return command


def _within(namespace: str) -> Command:
    return lambda command: namespaces.inside(namespace, command)


@contextlib.contextmanager
def own_switch() -> Iterator[dict[str, str]]:
    """A switch on loopback, and what ranks of this machine need in their environment to use it."""
    measurement = Measurement(workers=2, sizes=(4,), backends=(OURS,), policy="esa-plus", host_reduce=False)
    with _testbed(measurement) as testbed, Children() as children:
        _start_switches(children, measurement, testbed)
        _compile(children, measurement)
        (address,) = testbed.switches
        token = (children.folder / "token").read_text(encoding="utf-8")
        control = ControlPlane.parse(address)
        until = time.monotonic() + START_TIMEOUT_S
        while not _answers(control):
            _check(children)
            if time.monotonic() > until:
                raise ChildError(f"no answer in time{children.last_words(f'{SWITCH} 0')}")
            time.sleep(_POLL_S)
        yield {"PACELINE_SWITCH": address, "PACELINE_TOKEN": token}


def _answers(control: ControlPlane) -> bool:
    try:
        control.text("/healthz")
    except ControlError:
        return False
    return True


def _start_switches(children: Children, measurement: Measurement, testbed: Testbed) -> None:
    token = children.folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(16), encoding="utf-8")
    command = [sys.executable, "-c", "from paceline.cli import main; main()", "switch"]
    command += [
        "--token-file",
        str(token),
        "--policy",
        measurement.policy,
        "--shards",
        str(measurement.shards),
    ]
    if measurement.memory:
        command += ["--memory", measurement.memory]
    if measurement.loss:
        command += ["--drop", str(measurement.loss)]
    for number, (address, inside) in enumerate(zip(testbed.switches, testbed.in_switch, strict=True)):
        children.start(f"{SWITCH} {number}", inside([*command, "--listen", address]), dict(os.environ))


def _compile(children: Children, measurement: Measurement) -> None:
    """Let one process compile the agent where that has not been done; all ranks at once would take much longer."""
    from paceline.live.agent import loop as agent_loop

    if measurement.expected_path() == HOST or is_on_disk(agent_loop.run):
        return
    print("paceline: compiling the agent, once (a minute or more) ...", file=sys.stderr, flush=True)
    children.start("compiler", [sys.executable, "-m", "paceline.live.agent.setup"], dict(os.environ))
    children.wait("compiler", START_TIMEOUT_S)


def _start_ranks(children: Children, measurement: Measurement, testbed: Testbed) -> IO[bytes]:
    output: IO[bytes] | None = None
    for i in range(measurement.workers):
        environment = {
            **os.environ,
            "RANK": str(i),
            "WORLD_SIZE": str(measurement.workers),
            "LOCAL_RANK": str(i if measurement.rate_bps is None else 0),
            "LOCAL_WORLD_SIZE": str(measurement.workers if measurement.rate_bps is None else 1),
            "MASTER_ADDR": testbed.addresses[0],
            "MASTER_PORT": str(testbed.port),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": testbed.device,
            "PACELINE_HOST_REDUCE": "1" if measurement.host_reduce else "0",
        }
        if OURS in measurement.backends:
            environment["PACELINE_SWITCH"] = ",".join(testbed.switches)
            processes = [child.pid for name, child in children.children.items() if name.startswith(SWITCH)]
            environment["PACELINE_BENCH_SWITCH"] = ",".join(map(str, processes))
            environment["PACELINE_WIRE"] = str(measurement.wire or "")
            environment["PACELINE_TOKEN"] = (children.folder / "token").read_text(encoding="utf-8")
        command = testbed.in_rank[i]([sys.executable, "-m", "paceline.bench.rank", measurement.to_json()])
        stream = children.start(f"rank {i}", command, environment, pipe=i == 0)
        output = output or stream
    assert output is not None
    return output


def _messages(children: Children, output: IO[bytes]) -> Iterator[dict[str, Any]]:
    """What rank 0 tells, up to its status, while everybody is alive and none is late."""
    until = time.monotonic() + START_TIMEOUT_S + SIZE_TIMEOUT_S
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while True:
            _check(children)
            if time.monotonic() > until:
                raise ChildError(f"no result in time{children.last_words('rank 0')}")
            if not selector.select(_POLL_S):
                continue
            data = os.read(output.fileno(), 65536)
            if not data:
                children.wait("rank 0", END_TIMEOUT_S)
                raise ChildError("rank 0 ended without telling its status")
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                message: dict[str, Any] = json.loads(line)
                yield message
                if "status" in message:
                    return
                until = time.monotonic() + SIZE_TIMEOUT_S


def _check(children: Children) -> None:
    for name in children.children:
        children.check(name, may_end=not name.startswith(SWITCH))
