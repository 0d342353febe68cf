"""Where live drills run: a real switch process and a process a worker, in namespaces (root) or on loopback.

One bed serves many drills one after another: workers sum as far as they are allowed, and tell every step. What strikes
is done to processes by their ids, and to paths by routes and devices inside the bed's own namespaces.
"""

import contextlib
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from paceline.bench.processes import ChildError, Children, die_with_parent
from paceline.drill.live_worker import ROUND, WorkerSpec
from paceline.drill.plan import SWITCH
from paceline.emulation import namespaces
from paceline.errors import UserError
from paceline.live.switch_client import ControlError, ControlPlane
from paceline.ports import free_port

START_S = 400.0
"""The first start on a machine compiles."""
CONTROL_PORT = 7077
RATE_BPS = 2e9
SLICE_S = 0.05
"""What is slow is stopped for a part of every so long."""


@dataclass(frozen=True)
class StepSeen:
    """One step of one worker."""

    worker: int
    step: int
    time: float
    digest: int
    right: bool
    path: str


class LiveBed:
    """A switch and the workers of one job; `with` ends them all."""

    def __init__(
        self, workers: int, seed: int, elements: int, pace_s: float, star: Any = None, ddp: bool = False
    ) -> None:
        self.workers, self._star, self._ddp = workers, star, ddp
        self.world = "namespaces" if star is not None else "loopback"
        self._children = Children()
        self._host = star.hub_address if star is not None else "127.0.0.1"
        self._port = CONTROL_PORT if star is not None else free_port(after=1)
        self._token = self._children.folder / "token"
        self._token.touch(mode=0o600)
        self._token.write_text(secrets.token_hex(16), encoding="utf-8")
        self._spec = (seed, elements, pace_s)
        self._inputs: list[IO[bytes]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._selector = selectors.DefaultSelector()
        self._pending: dict[int, bytes] = {}
        self._done = dict.fromkeys(range(workers), 0)  # steps, by worker
        self._slow: dict[int, threading.Event] = {}
        self.allowed = 0
        """Steps that the workers may do."""
        self.seen: list[StepSeen] = []
        self.reference: dict[int, int] = {}
        """By turn: the hash of a result that nothing disturbed."""

    @property
    def control(self) -> ControlPlane:
        return ControlPlane(self._host, self._port, self._token.read_text(encoding="utf-8"), 2.0)

    # --- start and end -------------------------------------------------------------------------------------

    def __enter__(self) -> "LiveBed":
        try:
            self.start_switch()
            self._await_switch()
            self._start_workers()
            self._meet()
            self._learn()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for event in self._slow.values():
            event.set()
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
        self.signal_switch(signal.SIGCONT)
        for stream in self._inputs:
            with contextlib.suppress(OSError):
                stream.close()
        until = time.monotonic() + 5.0
        for process in self._processes:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5.0)
            if process.stdout is not None:
                process.stdout.close()
        self._selector.close()
        self._children.__exit__(None, None, None)

    def start_switch(self, drop: float = 0.0, seed: int = 1) -> None:
        """`paceline switch`, again at the same place."""
        command = [sys.executable, "-c", "from paceline.cli import main; main()", "switch"]
        command += ["--listen", f"{self._host}:{self._port}", "--token-file", str(self._token)]
        command += ["--lease", "30", "--drain-timeout", "0"]
        command += ["--drop", str(drop), "--seed", str(seed)] if drop else []
        if self._star is not None:
            command = namespaces.inside(self._star.hub, command)
        self._children.start("switch", command, dict(os.environ))

    def _await_switch(self) -> None:
        until = time.monotonic() + START_S
        while True:
            self._children.check("switch")
            try:
                with self._at_hub():
                    self.control.text("/healthz")
                return
            except ControlError as error:
                if time.monotonic() > until:
                    raise ChildError(f"the switch does not come up: {error}") from None
            time.sleep(0.1)

    @contextlib.contextmanager
    def _at_hub(self) -> Iterator[None]:
        with namespaces.entered(self._star.hub) if self._star is not None else contextlib.nullcontext():
            yield

    def _start_workers(self) -> None:
        seed, elements, pace_s = self._spec
        for worker in range(self.workers):
            host = self._star.address(worker) if self._star is not None else "127.0.0.1"
            control = f"{self._host}:{self._port}"
            token = self._token.read_text(encoding="utf-8")
            spec = WorkerSpec(worker, self.workers, host, control, token, seed, elements, pace_s)
            program = "ddp_worker" if self._ddp else "live_worker"
            command = [sys.executable, "-m", f"paceline.drill.{program}", spec.to_json()]
            if self._star is not None:
                command = namespaces.inside(self._star.workers[worker], command)
            with (self._children.folder / f"worker {worker}").open("wb") as errors:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
            assert process.stdin is not None
            assert process.stdout is not None
            self._processes.append(process)
            self._inputs.append(process.stdin)
            self._pending[worker] = b""
            self._selector.register(process.stdout, selectors.EVENT_READ, worker)

    def _meet(self) -> None:
        """Tell everyone where the others are, and the job's admission."""
        found: dict[int, Any] = {}
        until = time.monotonic() + START_S
        while len(found) < self.workers:
            for worker, message in self._read(until):
                found[worker] = message["address"]
        told: dict[str, Any] = {"peers": [found[worker] for worker in range(self.workers)]}
        if not self._ddp:  # which is admitted as any training job is
            with self._at_hub():
                told["admission"] = self.control.admit("drill", self.workers).to_json()
        for worker in range(self.workers):
            self._say(worker, told)

    def _learn(self) -> None:
        """Two rounds that nothing disturbs: what every later result must be."""
        self.allow(2 * ROUND)
        self.collect(START_S)
        for seen in self.seen:
            expected = self.reference.setdefault(seen.step % ROUND, seen.digest)
            if seen.digest != expected or not seen.right:
                raise ChildError(f"step {seen.step} of worker {seen.worker} is wrong before any fault")
        self.seen.clear()

    # --- steps -----------------------------------------------------------------------------------------------

    def allow(self, steps: int) -> None:
        """Let the workers do so many steps more."""
        self.allowed += steps
        for worker in range(self.workers):
            self._say(worker, {"steps": self.allowed})

    def collect(self, limit_s: float) -> bool:
        """Wait until all have done what they may; False if time is over before."""
        until = time.monotonic() + limit_s
        while not self.is_done():
            if time.monotonic() > until:
                return False
            self.poll(min(0.2, max(0.0, until - time.monotonic())))
        return True

    def settle(self, limit_s: float) -> bool:
        """Let the workers go on until all use the switch again: a drill that finds them elsewhere shows little."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            self.seen.clear()
            self.allow(ROUND)
            if not self.collect(limit_s):
                return False
            if all(seen.path == "switch" for seen in self.seen):
                return True
        return False

    def is_done(self) -> bool:
        """Whether every worker has done what it may."""
        return min(self._done.values()) >= self.allowed

    def poll(self, wait_s: float) -> None:
        """Take what workers tell within a moment."""
        for worker, message in self._read(time.monotonic() + wait_s, once=True):
            self._done[worker] = int(message["step"]) + 1
            self.seen.append(StepSeen(worker, **message))

    def _say(self, worker: int, what: dict[str, Any]) -> None:
        try:
            self._inputs[worker].write(json.dumps(what).encode() + b"\n")
            self._inputs[worker].flush()
        except OSError:
            raise ChildError(
                f"worker {worker} has ended{self._children.last_words(f'worker {worker}')}"
            ) from None

    def _read(self, until: float, once: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
        """Messages until there are some, or (`once`) until a time; a worker that has ended is an error."""
        ready = self._selector.select(max(0.0, until - time.monotonic()))
        if not ready and not once:
            raise ChildError("the workers do not answer in time" + self._children.last_words("worker 0"))
        for key, _ in ready:
            worker = int(key.data)
            data = os.read(key.fd, 65_536)
            if not data:
                raise ChildError(f"worker {worker} has ended{self._children.last_words(f'worker {worker}')}")
            *lines, self._pending[worker] = (self._pending[worker] + data).split(b"\n")
            for line in lines:
                yield worker, json.loads(line)

    # --- what strikes ----------------------------------------------------------------------------------------

    def signal_switch(self, number: int) -> None:
        """To the switch, if it runs."""
        child = self._children.children.get("switch")
        if child is not None and child.poll() is None:
            child.send_signal(number)

    def kill_switch(self) -> None:
        """At once, and for good."""
        self.signal_switch(signal.SIGCONT)
        self.signal_switch(signal.SIGKILL)
        child = self._children.children.get("switch")
        if child is not None:
            child.wait(10.0)

    def send(self, target: int, number: int) -> None:
        """A signal to the switch or a worker."""
        if target == SWITCH:
            self.signal_switch(number)
        else:
            self._processes[target].send_signal(number)

    def slow(self, target: int, factor: float) -> None:
        """Stop a process for a part of every slice, until `unslow`."""
        ended = self._slow[target] = threading.Event()

        def pulse() -> None:
            while not ended.is_set():
                self.send(target, signal.SIGSTOP)
                ended.wait(SLICE_S * (1 - 1 / factor))
                self.send(target, signal.SIGCONT)
                ended.wait(SLICE_S / factor)

        threading.Thread(target=pulse, name="slow", daemon=True).start()

    def unslow(self, target: int) -> None:
        """Let it go on."""
        if target in self._slow:
            self._slow.pop(target).set()
            time.sleep(SLICE_S)
            self.send(target, signal.SIGCONT)

    def route(self, worker: int, direction: str, cut: bool) -> None:
        """Cut a worker from the switch, or mend it: a route that leads nowhere, at either end or at both."""
        self._need_namespaces("cut")
        change = "add" if cut else "delete"
        if direction in ("from", "both"):
            where = self._star.workers[worker]
            namespaces.ip("-n", where, "route", change, "blackhole", f"{self._star.hub_address}/32")
        if direction in ("to", "both"):
            where = self._star.address(worker)
            namespaces.ip("-n", self._star.hub, "route", change, "blackhole", f"{where}/32")

    def narrow(self, worker: int, mtu: int) -> None:
        """The worker's way to the switch takes no packet that is longer; 0: any again. Its ways to others stay."""
        self._need_namespaces("narrow")
        where, way = self._star.workers[worker], f"{self._star.hub_address}/32"
        if mtu:
            namespaces.ip("-n", where, "route", "add", way, "dev", namespaces.DEVICE, "mtu", "lock", str(mtu))
        else:
            namespaces.ip("-n", where, "route", "delete", way)

    def _need_namespaces(self, action: str) -> None:
        if self._star is None:
            raise UserError("needs namespaces, and so root", place=action)


@contextlib.contextmanager
def live_bed(
    workers: int,
    seed: int = 1,
    elements: int = 20_000,
    pace_s: float = 0.005,
    loopback: bool = False,
    ddp: bool = False,
) -> Iterator[LiveBed]:
    """A bed in namespaces where that is possible, else on loopback; `ddp`: of ranks that train with PyTorch."""
    if loopback or os.geteuid() != 0:
        with LiveBed(workers, seed, elements, pace_s, None, ddp) as bed:
            yield bed
        return
    with (
        namespaces.star(workers, RATE_BPS) as star,
        LiveBed(workers, seed, elements, pace_s, star, ddp) as bed,
    ):
        yield bed
