"""What a machine needs for Paceline, looked at piece by piece: each finding says what is there, and what to do.

Nothing is changed on the machine. A check that does not concern what is asked for is left out and says so; `bad` is
only what would keep a command from working.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paceline.errors import UserError

if TYPE_CHECKING:
    from paceline.live.switch_client import ControlPlane

State = Literal["ok", "worth a look", "bad", "left out"]
SHM_WANTED_BYTES = 256 << 20
LIMIT_S = 20.0
OLDEST_PYTHON = (3, 11)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    state: State
    text: str
    todo: str = ""
    """What to do about it, as a command where there is one."""

    def to_dict(self) -> dict[str, str]:
        return dict(asdict(self))


@dataclass(frozen=True)
class Wanted:
    """What the machine is to be used for."""

    switch: str = ""
    """HOST:PORT of a switch; empty: none."""
    token: str = ""
    launcher: str = "local"
    address: str = ""
    """Of a Ray cluster."""


def examine(wanted: Wanted) -> Iterator[Finding]:
    """All findings, as they come."""
    checks: tuple[Callable[[Wanted], Finding], ...] = (
        _python, _torch, _caches, _mtu, _udp_buffers, _shared_memory, _namespaces, _slurm, _ray,
    )  # fmt: skip
    for check in checks:
        yield check(wanted)
    yield from _switch(wanted)


def _python(wanted: Wanted) -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    if tuple(sys.version_info[:2]) < OLDEST_PYTHON:
        return Finding("Python", "bad", version, "install Python 3.11 or newer")
    return Finding("Python", "ok", f"{version} ({sys.executable})")


def _torch(wanted: Wanted) -> Finding:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Finding(
            "torch", "worth a look", "not installed; simulate, plan and switch work without, training does not",
            "pip install 'paceline[torch]'",
        )  # fmt: skip
    numbers = [int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit()]
    if numbers < [2, 6]:
        return Finding("torch", "bad", f"{version}, too old for the backend", "pip install 'torch>=2.6'")
    return Finding("torch", "ok", version)


def _caches(wanted: Wanted) -> Finding:
    from paceline.compile.cache import folder_of, is_on_disk

    try:
        from paceline.live.agent.loop import run as run_agent
        from paceline.live.switch.shard import run_shard
        from paceline.schedule.kernels import run_queues
    except UserError as error:
        return Finding("compiled code", "bad", str(error), "export PACELINE_CACHE=/a/folder/of/yours")
    folder = folder_of(run_queues).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        return Finding(
            "compiled code", "bad", f"{folder} cannot be written: every start compiles for a minute",
            "export PACELINE_CACHE=/a/folder/of/yours",
        )  # fmt: skip
    cold = [
        name
        for name, function in (("planner", run_queues), ("switch", run_shard), ("agent", run_agent))
        if not is_on_disk(function)
    ]
    if cold:
        return Finding(
            "compiled code", "worth a look",
            f"not there yet: {', '.join(cold)}; the first start compiles for a minute or more",
            "python -m paceline.launch.warm",
        )  # fmt: skip
    return Finding("compiled code", "ok", str(folder))


def _mtu(wanted: Wanted) -> Finding:
    from paceline.live.net.sockets import elements_for, path_mtu
    from paceline.live.switch_client import parse_switches

    named = [named.control.host for named in parse_switches(wanted.switch)]
    towards = f"towards {', '.join(named)}" if named else "of the default route"
    try:
        mtu = min(map(path_mtu, named or ["192.0.2.1"]))  # all use the packets of the narrowest way
    except UserError as error:
        state: State = "bad" if wanted.switch else "left out"
        return Finding(
            "MTU", state, f"no way {towards}: {error.message}", "see `ip route`" if wanted.switch else ""
        )
    try:
        text = f"{mtu} {towards}: {4 * elements_for(mtu)} bytes of gradient a packet"
    except UserError as error:
        return Finding("MTU", "bad", f"{mtu} {towards}: {error.message}", "ip link set dev IFACE mtu 1500")
    if mtu < 1500:
        return Finding(
            "MTU", "worth a look", text, "ip link set dev IFACE mtu 1500, or 9000 where switches allow it"
        )
    return Finding("MTU", "ok", text)


def _udp_buffers(wanted: Wanted) -> Finding:
    from paceline.live.net.sockets import open_socket

    line = open_socket("127.0.0.1")
    try:
        if line.warnings:
            text, _, todo = line.warnings[0].partition(": ")
            return Finding("UDP buffers", "worth a look", text, todo)
        return Finding("UDP buffers", "ok", f"{line.receive_bytes >> 20} MiB to receive")
    finally:
        line.socket.close()


def _shared_memory(wanted: Wanted) -> Finding:
    folder = Path("/dev/shm")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return Finding(
            "shared memory", "bad", "/dev/shm cannot be written: ranks of one host meet there",
            "mount -t tmpfs tmpfs /dev/shm",
        )  # fmt: skip
    free = shutil.disk_usage(folder).free
    if free < SHM_WANTED_BYTES:
        return Finding(
            "shared memory", "worth a look", f"{free >> 20} MiB are free in /dev/shm, large tensors need more",
            "docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm",
        )  # fmt: skip
    return Finding("shared memory", "ok", f"{free >> 20} MiB are free in /dev/shm")


def _namespaces(wanted: Wanted) -> Finding:
    from paceline.emulation.enclosure import TOOLS

    command = [sys.executable, "-m", "paceline.emulation.enclosure", "true"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return Finding("namespaces", "worth a look", f"no answer within {LIMIT_S:.0f} s")
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["cannot be made; only --network emulated needs them"]
        tools = all(shutil.which(tool) for tool in TOOLS)
        return Finding(
            "namespaces", "worth a look", said[-1].removeprefix("paceline: --network emulated: "),
            "run as root, or sysctl -w kernel.unprivileged_userns_clone=1" if tools
            else "apt install iproute2 util-linux",
        )  # fmt: skip
    return Finding("namespaces", "ok", "an emulated network can be made")


def _slurm(wanted: Wanted) -> Finding:
    needed = wanted.launcher == "slurm"
    if shutil.which("scontrol") is None:
        if needed:
            return Finding(
                "Slurm", "bad", "scontrol is not here", "run on a login node, or install slurm-client"
            )
        return Finding("Slurm", "left out", "not installed; only --launcher slurm needs it")
    try:
        done = subprocess.run(
            ["scontrol", "ping"], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding("Slurm", "bad" if needed else "worth a look", "scontrol ping does not answer")
    lines = (done.stdout + done.stderr).strip().splitlines() or ["nothing was said"]
    said = lines[0].strip() if done.returncode else " ".join(" ".join(lines).split())
    if done.returncode or "DOWN" in said:
        return Finding(
            "Slurm", "bad" if needed else "worth a look", f"the controller does not answer: {said}",
            "look at SLURM_CONF, munged and slurmctld",
        )  # fmt: skip
    return Finding("Slurm", "ok", said)


def _ray(wanted: Wanted) -> Finding:
    needed = wanted.launcher == "ray"
    if importlib.util.find_spec("ray") is None:
        if needed:
            return Finding("Ray", "bad", "not installed", "pip install 'paceline[ray]'")
        return Finding("Ray", "left out", "not installed; only --launcher ray needs it")
    address = wanted.address or os.environ.get("RAY_ADDRESS", "")
    if not address:
        return Finding(
            "Ray", "bad" if needed else "left out", "installed; no address was given",
            "--address HOST:6379, or export RAY_ADDRESS" if needed else "",
        )  # fmt: skip
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5.0):
            return Finding("Ray", "ok", f"{address} takes connections")
    except (OSError, ValueError) as error:
        return Finding(
            "Ray", "bad" if needed else "worth a look", f"{address} cannot be reached: {error}",
            "ray status on the head node",
        )  # fmt: skip


def _switch(wanted: Wanted) -> Iterator[Finding]:
    from paceline.live.switch_client import parse_switches

    if not wanted.switch:
        yield Finding("switch", "left out", "none was named", "paceline doctor --switch HOST:PORT")
        return
    for named in parse_switches(wanted.switch, wanted.token):
        yield from _one_switch(named.control, bool(wanted.token))


def _one_switch(control: "ControlPlane", has_token: bool) -> Iterator[Finding]:
    from paceline.launch.probe import probe
    from paceline.live.switch_client import ControlError

    try:
        control.text("/metrics")
        yield Finding("switch", "ok", f"{control.host}:{control.port} answers")
    except ControlError as error:
        if not error.status:
            yield Finding(
                "switch",
                "bad",
                str(error),
                f"start it there: paceline switch --listen {control.host}:{control.port}",
            )
            return
        yield Finding("switch", "ok", f"{control.host}:{control.port} answers")
    try:
        echo = probe(control)
    except ControlError as error:
        if error.status == 401:
            kind = "is not the switch's" if has_token else "was given, and the switch asks for one"
            yield Finding(
                "token", "bad", f"the token {kind}" if has_token else f"no token {kind}",
                "--token-file FILE, the same file as the switch's, or export PACELINE_TOKEN",
            )  # fmt: skip
            return
        yield Finding(
            "token", "bad", f"the switch refuses a job: {error.reason}", "see `paceline switch --help`"
        )
        return
    yield Finding("token", "ok", "a job is admitted")
    if echo.answered:
        yield Finding(
            "packets", "ok",
            f"{echo.payload_bytes} bytes there and back in {echo.round_trip_s * 1e3:.2g} ms, both ways open",
        )  # fmt: skip
    else:
        yield Finding(
            "packets", "bad", f"{echo.payload_bytes} bytes by UDP: {echo.error}",
            "open UDP to the switch's ports and back; if only large packets are lost: paceline switch --mtu 1500",
        )  # fmt: skip


def to_json(findings: list[Finding]) -> dict[str, Any]:
    """For scripts; `ok` is the exit code's meaning."""
    return {
        "ok": all(each.state != "bad" for each in findings),
        "findings": [each.to_dict() for each in findings],
    }
