"""Ray as launcher: a placement group for each attempt, its bundles pinned to the plan's nodes, an actor on each.

A server of the plan is a node that alone has a resource of that name (`ray start --resources '{"s0": 1}'`), or
the address of a node. Groups and actors are detached and named after the attempt's token: they outlive the
planner, and the next one finds them. An actor of one name is made once, however often it is asked for, and never
restarted by Ray, so an attempt starts once. They are cleared away only when their end is on disk.

On its node an actor keeps the ranks under the same supervisor as on one machine, at the end of a pipe: when the actor
is gone, with its node or without, its ranks are killed. Log and status files lie in a folder of the node's own; `poll`
hands over what is new in them. So the nodes need Paceline installed, and nothing else in common with the planner.

Slots are GPUs where a node has some, else processors. `import ray` happens here only when a run asks for it.
"""

import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.launch.launchers import supervisor
from paceline.launch.launchers.protocol import (
    MARK,
    EngineHandle,
    FoundServer,
    GoneError,
    Observation,
    OpenAttempt,
    RefusedError,
    ServerState,
    Task,
    UnreachableError,
)
from paceline.ports import FIRST_PORT, PORTS
from paceline.whole_files import bytes_from, last_bytes

NAMESPACE = "paceline"
PIN = 0.001
"""So much of a node's own resource is asked for."""
ANSWER_S = 10.0
UNBORN_S = 60.0
"""So long a group may be there without its actor answering."""
PIECE_BYTES = 1 << 20
"""Of a log, handed over at a time."""
_COMMON = ("CPU", "GPU", "memory", "object_store_memory")


@dataclass(frozen=True)
class RayNode:
    """A node that can be a server: how it is pinned, and what it offers."""

    name: str
    pin: str
    """The resource that this node alone has: what asks for a little of it runs there."""
    kind: str
    """Of its slots: `GPU` or `CPU`."""
    slots: int
    address: str


def nodes_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, RayNode]:
    """The nodes by every name they can be called by, from what Ray tells of them; a name is one node's alone."""
    alive = [row for row in rows if row["Alive"]]
    holders: dict[str, int] = {}
    for row in alive:
        for resource in row["Resources"]:
            holders[resource] = holders.get(resource, 0) + 1
    found: dict[str, RayNode] = {}
    for row in alive:
        offered, address = row["Resources"], str(row["NodeManagerAddress"])
        kind = "GPU" if offered.get("GPU") else "CPU"
        slots = int(offered.get(kind, 0))
        own = sorted(r for r in offered if holders[r] == 1 and r not in _COMMON and ":" not in r)
        names = [(name, name) for name in own]
        if holders.get(f"node:{address}") == 1:
            names += [(address, f"node:{address}"), (str(row["NodeManagerHostname"]), f"node:{address}")]
        for name, pin in names:
            if slots:
                found.setdefault(name, RayNode(name, pin, kind, slots, address))
    return found


class RayCluster:
    """Runs jobs on a Ray cluster."""

    name = "ray"
    poll_s = 0.5

    def __init__(self, address: str = "") -> None:
        try:
            import ray
        except ImportError:
            raise UserError(
                "Ray is not installed: pip install 'paceline[ray]'", place="--launcher ray"
            ) from None
        self._ray: Any = ray
        self._actors: dict[str, Any] = {}
        self._offsets: dict[str, dict[int, int]] = {}
        self._unborn: dict[str, int] = {}
        self._ours = not ray.is_initialized()
        if self._ours:
            self._connect(address or os.environ.get("RAY_ADDRESS", "auto"))

    def _connect(self, address: str) -> None:
        if address != "auto":
            # Ray itself would try for a minute.
            host, _, port = address.removeprefix("ray://").rpartition(":")
            try:
                socket.create_connection((host, int(port)), 5.0).close()
            except (OSError, ValueError, OverflowError) as error:
                raise UnreachableError(f"nothing answers at {address!r}: {error}") from None
        try:
            self._ray.init(
                address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UnreachableError(" ".join(str(error).split())) from None

    def _nodes(self) -> dict[str, RayNode]:
        with self._reaching():
            return nodes_of(self._ray.nodes())

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        errors = self._ray.exceptions
        try:
            yield
        except (ConnectionError, errors.GetTimeoutError, errors.RaySystemError) as error:
            raise UnreachableError(" ".join(str(error).split())) from None

    def discover(self) -> list[FoundServer]:
        found, seen = [], set()
        for node in self._nodes().values():
            if node.pin not in seen:
                found.append(FoundServer(node.name, node.slots))
            seen |= {node.pin, f"node:{node.address}"} if node.pin.startswith("node:") else {node.pin}
        return sorted(found, key=lambda server: server.name)

    def check(self, slots: Mapping[str, int]) -> None:
        known = self._nodes()
        for name, wanted in slots.items():
            node = known.get(name)
            if node is None:
                names = ", ".join(sorted(known)[:8]) or "none that can be told apart"
                raise UserError(f"Ray has no node {name!r}; it has {names}", place="--cluster")
            if wanted > node.slots:
                raise UserError(
                    f"server {name!r} has {wanted} slots in the file, its node {node.slots} of {node.kind}",
                    place="--cluster",
                )

    def servers(self, names: Sequence[str]) -> dict[str, ServerState]:
        known = self._nodes()
        return {
            name: ServerState(name in known, "" if name in known else "Ray lost the node") for name in names
        }

    # An attempt ------------------------------------------------------------------------------------------

    def prepare(self, task: Task) -> EngineHandle:
        from ray.util import get_placement_group, placement_group

        known = self._nodes()
        missing = [name for name in task.servers if name not in known]
        if missing:
            raise GoneError(f"node {missing[0]} is gone")
        handle = {
            "group": f"paceline-{task.token}",
            "actors": [f"paceline-{task.token}-{i}" for i in range(len(task.shares))],
            "kinds": [known[name].kind for name in task.servers],
            "address": known[task.servers[0]].address,
        }
        with contextlib.suppress(ValueError):
            get_placement_group(handle["group"])
            return handle
        bundles = [
            {known[share.server].kind: float(share.slots), known[share.server].pin: PIN}
            for share in task.shares
        ]
        with self._reaching():
            placement_group(bundles, strategy="PACK", name=handle["group"], lifetime="detached")
        return handle

    def release(self, task: Task, handle: EngineHandle) -> None:
        from ray.util import get_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        try:
            group = get_placement_group(handle["group"])
        except ValueError:
            raise RefusedError(f"Ray has no placement group {handle['group']}") from None
        actor_class = self._ray.remote(NodeActor)
        for i, (share, name, kind) in enumerate(
            zip(task.shares, handle["actors"], handle["kinds"], strict=True)
        ):
            resources = {"num_gpus" if kind == "GPU" else "num_cpus": share.slots}
            with self._reaching():
                self._actors[name] = actor_class.options(
                    name=name, namespace=NAMESPACE, lifetime="detached", get_if_exists=True, max_restarts=0,
                    max_task_retries=0, scheduling_strategy=PlacementGroupSchedulingStrategy(group, i), **resources,
                ).remote(_spec(task, i, str(handle["address"])))  # fmt: skip

    def poll(self, attempts: Sequence[OpenAttempt]) -> dict[str, Observation]:
        asked: dict[str, Any] = {}
        gone: set[str] = set()
        for each in attempts:
            for name in each.handle["actors"]:
                try:
                    actor = self._actors.get(name) or self._ray.get_actor(name, namespace=NAMESPACE)
                except ValueError:
                    gone.add(name)
                    continue
                self._actors[name] = actor
                asked[name] = actor.poll.remote(self._offsets.get(name, {}))
        if asked:
            # Those that live answer in milliseconds; those that wait for their group do not answer at all.
            self._ray.wait(list(asked.values()), num_returns=len(asked), timeout=0.5)
        return {each.task.token: self._observe(each.task, each.handle, asked, gone) for each in attempts}

    def _observe(
        self, task: Task, handle: EngineHandle, asked: Mapping[str, Any], gone: set[str]
    ) -> Observation:
        errors = self._ray.exceptions
        answers: list[dict[str, Any] | None] = []
        for name in handle["actors"]:
            if name in gone:
                return Observation("lost", reason="its actor is gone from Ray")
            try:
                answers.append(self._ray.get(asked[name], timeout=0))
                self._unborn.pop(name, None)
            except errors.GetTimeoutError:
                answers.append(None)
            except errors.ActorUnavailableError:
                answers.append(None)
            except errors.RayActorError as error:
                return Observation("lost", reason=f"Ray: {str(error).splitlines()[0]}")
            except errors.RayTaskError as error:
                return Observation("lost", reason=f"its actor failed: {error.cause}")
        for name, answer in zip(handle["actors"], answers, strict=True):
            if answer is not None:
                self._keep(task, name, answer)
        if None in answers:
            return self._not_all_there(handle, answers)
        return self._together(handle, [answer for answer in answers if answer is not None])

    def _not_all_there(self, handle: EngineHandle, answers: list[dict[str, Any] | None]) -> Observation:
        if any(answers):
            return Observation("running")
        from ray.util import get_placement_group, placement_group_table

        with contextlib.suppress(ValueError):
            if placement_group_table(get_placement_group(handle["group"]))["state"] == "PENDING":
                return Observation("queued", reason="Ray has no room on the nodes yet")
        # A planner that died while it asked for an actor may leave a name without an actor behind it.
        name = handle["actors"][0]
        self._unborn[name] = self._unborn.get(name, 0) + 1
        if self._unborn[name] * self.poll_s > UNBORN_S:
            return Observation("lost", reason="its actor never came to be")
        return Observation("queued", reason="the actors start")

    def _together(self, handle: EngineHandle, answers: list[dict[str, Any]]) -> Observation:
        ended = [answer for answer in answers if answer["ended"]]
        verdicts = [answer["verdict"] for answer in ended]
        if any(verdict is None for verdict in verdicts):
            return Observation("lost", reason="a supervisor was killed")
        bad = [verdict for verdict in verdicts if verdict["exit_code"] != 0]
        if len(ended) < len(answers):
            if bad:
                # A gang is whole or ended, on other nodes too.
                self._stop(handle)
            return Observation("running")
        worst = min(bad, key=lambda verdict: float(verdict["ended"])) if bad else verdicts[0]
        at = max(float(verdict["ended"]) for verdict in verdicts)
        return Observation("ended", int(worst["exit_code"]), str(worst["reason"]), at)

    def _keep(self, task: Task, name: str, answer: Mapping[str, Any]) -> None:
        folder = Path(task.folder)
        folder.mkdir(parents=True, exist_ok=True)
        offsets = self._offsets.setdefault(name, {})
        for rank, piece in answer["logs"].items():
            if piece:
                # At its place, not at the end: a planner that starts anew fetches the whole log again.
                path = folder / f"rank-{rank}.log"
                with path.open("r+b" if path.exists() else "wb") as file:
                    file.seek(offsets.get(rank, 0))
                    file.write(piece)
                offsets[rank] = offsets.get(rank, 0) + len(piece)
        for name, content in answer["files"].items():
            (folder / name).write_bytes(content)

    def stop(self, task: Task, handle: EngineHandle) -> None:
        from ray.util import get_placement_group, placement_group_table

        try:
            state = placement_group_table(get_placement_group(handle["group"]))["state"]
        except ValueError:
            return
        if state == "CREATED":
            self._stop(handle)
        else:
            self.forget(task, handle)

    def _stop(self, handle: EngineHandle) -> None:
        for name in handle["actors"]:
            with contextlib.suppress(ValueError):
                actor = self._actors.get(name) or self._ray.get_actor(name, namespace=NAMESPACE)
                actor.stop.remote()

    def forget(self, task: Task, handle: EngineHandle) -> None:
        from ray.util import get_placement_group, remove_placement_group

        errors = self._ray.exceptions
        for name in handle["actors"]:
            try:
                actor = self._ray.get_actor(name, namespace=NAMESPACE)
            except ValueError:
                self._actors.pop(name, None)
                continue
            with contextlib.suppress(errors.RayError):
                self._ray.get(actor.clear.remote(), timeout=ANSWER_S if name in self._offsets else 1.0)
            self._ray.kill(actor)
            self._actors.pop(name, None)
            self._offsets.pop(name, None)
        with contextlib.suppress(ValueError):
            remove_placement_group(get_placement_group(handle["group"]))

    def close(self) -> None:
        if self._ours and self._ray.is_initialized():
            self._ray.shutdown()


def _spec(task: Task, index: int, address: str) -> dict[str, Any]:
    """What one node's supervisor is to run."""
    port = FIRST_PORT + zlib.crc32(task.token.encode()) % PORTS
    master = {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    first = sum(share.slots for share in task.shares[:index])
    ranks = [
        {"rank": rank, "env": {**task.env, **master, **own}}
        for rank, own in enumerate(task.rank_environments())
        if first <= rank < first + task.shares[index].slots
    ]
    return {
        "token": task.token,
        "command": list(task.command),
        "workdir": task.workdir,
        "grace_s": task.grace_s,
        "remaining_s": task.env["PACELINE_REMAINING_S"],
        "ranks": ranks,
    }


class NodeActor:
    """The actor on a node: holds the ranks of one attempt there; made once, starts them at once."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="paceline-"))
        for entry in spec["ranks"]:
            for file in ("status", "progress"):
                entry["env"][f"PACELINE_{file.upper()}"] = str(self.folder / f"{file}-{entry['rank']}")
            entry["env"]["PACELINE_REMAINING_FILE"] = str(self.folder / "remaining_s")
        (self.folder / "remaining_s").write_text(f"{spec['remaining_s']}\n", encoding="utf-8")
        (self.folder / "task.json").write_text(json.dumps(spec), encoding="utf-8")
        self.ranks = [int(entry["rank"]) for entry in spec["ranks"]]
        self.token = str(spec["token"])
        # A request to stop that comes while it starts is kept for later: it would end it without a verdict.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.STOPS)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "paceline.launch.launchers.supervisor", str(self.folder), "--lifeline"],
                stdin=subprocess.PIPE, env={**os.environ, MARK: self.token}, start_new_session=True,
            )  # fmt: skip
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def poll(self, offsets: dict[int, int]) -> dict[str, Any]:
        """How the ranks do, and what is new in their files."""
        code = self.process.poll()
        verdict = supervisor.read_json(self.folder / "exit.json") if code is not None else None
        if code is not None and verdict is None:
            supervisor.kill_marked(MARK, self.token)  # it was killed, and its ranks have nobody now
        logs = {}
        for rank in self.ranks:
            logs[rank] = bytes_from(self.folder / f"rank-{rank}.log", offsets.get(rank, 0), PIECE_BYTES)
        files = {}
        for name in ("status-0", "progress-0"):
            files[name] = last_bytes(self.folder / name, PIECE_BYTES)[0]
        # The end is told only with the last piece of every log.
        whole = all(len(piece) < PIECE_BYTES for piece in logs.values())
        return {"ended": code is not None and whole, "verdict": verdict, "logs": logs, "files": files}

    def stop(self) -> None:
        """SIGTERM, grace, SIGKILL: the supervisor's business."""
        if self.process.poll() is None:
            self.process.terminate()

    def clear(self) -> None:
        """Leave nothing on the node."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        shutil.rmtree(self.folder, ignore_errors=True)
