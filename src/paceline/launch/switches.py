"""The switch of a run: started beside it (`auto`), or one that runs already; its figures go to the store.

A switch of ours runs under a supervisor like a job, so it outlives a planner that is killed, and the next
planner finds it again. It is stopped when the run ends.
"""

import contextlib
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from paceline.emulation.cluster import SWITCH_PORT, EmulatedCluster
from paceline.emulation.namespaces import inside
from paceline.errors import UserError
from paceline.launch.launchers import local
from paceline.launch.launchers.protocol import MARK, Share, Task
from paceline.launch.store import Store, Tell
from paceline.live.net.addresses import show_address, split_address
from paceline.live.net.sockets import own_address
from paceline.live.switch_client import ControlError, ControlPlane, parse_switches
from paceline.live.switch_tls import trust_in
from paceline.ports import free_port

READY_LIMIT_S = 300.0
"""The first switch on a machine compiles, on a busy one for minutes."""
POLL_EVERY_S = 1.0
ANSWER_S = 1.0
"""So long the planner waits for figures; it has other things to do."""
SLOTS, PREEMPTIONS = "paceline_slots_used", "paceline_preemptions_total"
SLOT_SECONDS = "paceline_slot_seconds_total"
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def default_command(
    address: str, token_file: Path, memory: str = "", level: Sequence[str] = (), within: Sequence[str] = (),
    policy: str = "",
) -> list[str]:  # fmt: skip
    """`paceline switch` by the interpreter that we run in.

    `level`: options of an upper switch or of one under it; `within`: what goes before a command in its namespace.
    """
    call = "from paceline.cli import main; main()"
    options = ["--listen", address, "--token-file", str(token_file), "--drain-timeout", "2"]
    options += ["--memory", memory] if memory else []
    options += ["--policy", policy] if policy else []
    return [*within, sys.executable, "-c", call, "switch", *options, *level]


class RunSwitch:
    """A switch that the run's jobs use."""

    def __init__(
        self, store: Store, address: str, token: str, folder: Path | None = None, mark: str = ""
    ) -> None:
        """`folder` and `mark`: of the supervised task, if the switch is the run's own."""
        self.store, self.address, self.token, self.folder, self.mark = store, address, token, folder, mark
        self._polled = 0.0  # when it was last asked
        self._silent = False  # whether it gave no answer then
        self._held: dict[
            str | None, tuple[float, float]
        ] = {}  # of each job: when, and slot-seconds until then

    def poll(self, now: float, tell: Tell) -> None:
        """Write a sample of every job's figures, at most once a second; tell when it falls silent."""
        if now - self._polled < POLL_EVERY_S:
            return
        self._polled = now
        try:
            text = _page(self.address, "/metrics", ANSWER_S)
        except ControlError as error:
            if not self._silent:
                tell(now, "switch", f"the switch {self.address} does not answer", reason=error.reason)
            self._silent = True
            return
        if self._silent:
            tell(now, "switch", f"the switch {self.address} answers again")
        self._silent = False
        with self.store.transaction():
            for job, figures in samples_of(text).items():
                self.store.insert(
                    "switch_samples", time=now, job=job, slots_in_use=self._in_use(now, job, figures),
                    preemptions=_sum(figures, PREEMPTIONS), figures=figures,
                )  # fmt: skip

    def _in_use(self, now: float, job: str | None, figures: dict[str, float]) -> float | None:
        """Aggregators held, on average since the last sample: a glance would miss what lasts milliseconds."""
        total = _sum(figures, SLOT_SECONDS)
        if total is None:
            return _sum(figures, SLOTS)
        then, before = self._held.get(job, (now, total))
        self._held[job] = (now, total)
        if now <= then or total < before:
            return _sum(figures, SLOTS)
        return (total - before) / (now - then)

    def stop(self, limit_s: float = 15.0) -> None:
        """Stop the switch if it is ours."""
        if self.folder is None:
            return
        local.stop_supervised(self.folder)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and local.observe(self.folder, self.mark).state == "running":
            time.sleep(0.1)


class SeveralSwitches:
    """Switches that somebody else runs, and that share the jobs' tensors."""

    def __init__(self, address: str, switches: Sequence[RunSwitch]) -> None:
        self.address, self.switches = address, switches
        self.token = switches[0].token

    def poll(self, now: float, tell: Tell) -> None:
        """Write a sample of each."""
        for switch in self.switches:
            switch.poll(now, tell)

    def stop(self) -> None:
        """They are not ours to stop."""


class SwitchTree:
    """A switch in each rack, under an upper one; jobs get their rack's from the emulated network."""

    def __init__(self, upper: RunSwitch, racks: Sequence[RunSwitch]) -> None:
        self.upper, self.racks = upper, racks
        self.address, self.token = upper.address, upper.token

    def poll(self, now: float, tell: Tell) -> None:
        """Write a sample of every rack's switch."""
        for rack in self.racks:
            rack.poll(now, tell)

    def stop(self) -> None:
        """Stop all of them."""
        for switch in (*self.racks, self.upper):
            switch.stop()


AnySwitch = RunSwitch | SeveralSwitches | SwitchTree


def _page(address: str, path: str, timeout_s: float) -> str:
    return ControlPlane.parse(address, timeout_s=timeout_s, trust=trust_in()).text(path)


def _mark(store: Store, name: str) -> str:
    return f"{store.meta()['run_id']}-{name}"


def _sum(figures: dict[str, float], metric: str) -> float | None:
    """Over the metric's other labels, such as shards; None if the switch does not tell it."""
    values = [value for key, value in figures.items() if key.partition(",")[0] == metric]
    return sum(values) if values else None


def samples_of(text: str) -> dict[str | None, dict[str, float]]:
    """The figures of a Prometheus page by job (its name, else its number); those without a job under None."""
    found: dict[str | None, dict[str, float]] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None:
            continue
        name, labels_text, value_text = match.groups()
        labels = dict(_LABEL.findall(labels_text or ""))
        job = labels.pop("name", "") or labels.get("job") or None
        labels.pop("job", None)
        try:
            value = float(value_text)
        except ValueError:
            continue
        key = name + "".join(f",{label}={labels[label]}" for label in sorted(labels))
        figures = found.setdefault(job, {})
        figures[key] = figures.get(key, 0.0) + value
    return found


def check_named(text: str) -> list[str]:
    """The addresses in HOST:PORT, or in several with commas; a mistake is the user's."""
    try:
        addresses = [named.address for named in parse_switches(text)]
    except UserError as error:
        reason = (
            error.message if "," in text or "*" in text else f"{text!r} is neither auto, none nor HOST:PORT"
        )
        raise UserError(reason, place="--switch") from None
    for address in addresses:
        _, port = split_address(address.partition("#")[0].removeprefix("https://"), 0)
        if not port:
            raise UserError(f"{address!r} is neither auto, none nor HOST:PORT", place="--switch")
    return addresses


def attach(store: Store, text: str) -> RunSwitch | SeveralSwitches:
    """Use switches that somebody else runs; their token comes from the environment, as for any agent."""
    token = os.environ.get("PACELINE_TOKEN", "")
    found = []
    for address in check_named(text):
        try:
            _page(address, "/healthz", 5.0)
        except ControlError as error:
            raise UserError(f"no switch answers at {address}: {error.reason}", place="--switch") from None
        found.append(RunSwitch(store, address, token))
    return found[0] if len(found) == 1 else SeveralSwitches(text, found)


def start(
    store: Store,
    *,
    host: str,
    command: Callable[[str, Path], Sequence[str]] = default_command,
    limit_s: float = READY_LIMIT_S,
    name: str = "switch",
    port: int = 0,
    token: str = "",
) -> RunSwitch:
    """The run's own switch: the one a planner before us started if it lives, else a new one at its address.

    `host` is the address that it listens on; empty: this machine's own. `name` tells it from others of the run; `port`
    and `token` are chosen for it where they are not given.
    """
    known: dict[str, Any] = store.meta().get(name) or {}
    mark = _mark(store, name)
    folders = sorted((store.folder / name).glob("[0-9]*"), key=lambda path: int(path.name))
    if known and folders and local.observe(folders[-1], mark).state == "running":
        return RunSwitch(store, known["address"], known["token"], folders[-1], mark)
    host = host or own_address()
    if not port:
        port = int(known["address"].rpartition(":")[2]) if known else free_port(after=1)
    address = show_address(host, port)
    token = token or known.get("token") or secrets.token_hex(16)
    store.set_meta(**{name: {"address": address, "token": token}})
    folder = (store.folder / name / str(len(folders) + 1)).resolve()
    folder.mkdir(parents=True)
    token_file = folder / "token"
    token_file.touch(mode=0o600)
    token_file.write_text(token, encoding="utf-8")
    task = Task(
        store.meta()["run_id"], name, len(folders) + 1, mark, tuple(command(address, token_file)), {MARK: mark}, "",
        (Share("switch", (0,), (0,)),), str(folder),
    )  # fmt: skip
    local.write_task(folder, task, {})
    switch = RunSwitch(store, address, token, folder, mark)
    try:
        local.start_supervised(folder, {MARK: mark})
        _await(switch, limit_s)
    except BaseException:
        switch.stop()
        raise
    return switch


def start_tree(
    store: Store, network: EmulatedCluster, memory: str, policy: str = "", limit_s: float = READY_LIMIT_S
) -> SwitchTree:
    """An upper switch at the core of an emulated network, and one in each rack."""
    upper_command = partial(default_command, memory=memory, policy=policy, level=("--upper",))
    upper = start(store, host=network.core_address, command=upper_command, limit_s=limit_s, port=SWITCH_PORT)
    racks: list[RunSwitch] = []
    try:
        for r, rack in enumerate(network.racks):
            command = partial(
                default_command,
                memory=memory,
                policy=policy,
                level=("--upstream", upper.address),
                within=inside(rack.namespace, []),
            )
            racks.append(
                start(
                    store, host=rack.address, command=command, limit_s=limit_s, name=f"switch-rack{r}",
                    port=SWITCH_PORT, token=upper.token,
                )
            )  # fmt: skip
    except BaseException:
        SwitchTree(upper, racks).stop()
        raise
    return SwitchTree(upper, racks)


def _await(switch: RunSwitch, limit_s: float) -> None:
    assert switch.folder is not None
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        with contextlib.suppress(ControlError):
            _page(switch.address, "/healthz", 2.0)
            return
        seen = local.observe(switch.folder, switch.mark)
        if seen.state in ("ended", "lost"):
            log = (switch.folder / "rank-0.log").read_text(errors="replace").strip().splitlines()
            last = log[-1] if log else seen.reason
            raise UserError(f"the switch did not start: {last}", place="--switch")
        time.sleep(0.1)
    raise UserError(f"the switch was not ready within {limit_s:.0f} s", place="--switch")
