"""A rank's connection to the keeper: requests that are answered later, leases that are kept alive, the keeper's loss.

One thread reads: it hands out answers, remembers which claims are fenced, and renews the
leases while the rank computes; and where the rank computes all of its own without a question, it gives back what is not
begun as soon as the keeper recalls it. No wait is without end: a keeper that says nothing for `silence_s` is lost.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

CONNECT_S = 30.0


class TakeoverError(RuntimeError):
    """An iteration cannot be completed: the keeper is lost, or a rank with what only it knew."""


class KeeperClient:
    """The connection of one rank."""

    def __init__(
        self, addresses: Sequence[tuple[str, int]], token: str, rank: int, lease_s: float, silence_s: float
    ) -> None:
        self.fenced: set[tuple[int, int, int]] = set()
        """Claims, as (step, owner, number), whose result somebody else has given."""
        self._rank, self._silence_s = rank, silence_s
        self._beat_s = lease_s / 4
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._held: set[tuple[int, int, int]] = set()
        self._whole: list[int] | None = None
        """Nanoseconds of each own micro-batch that was computed without a claim; None: there are claims."""
        self._at_work_ns = 0
        """When the rank began its present one of those; 0: it is between two."""
        self._step = 0
        self._next_id = 0
        self._lost = ""
        self._unsent = b""
        """Messages that go out with the next one."""
        self._socket = _connect(addresses)
        self._socket.settimeout(min(self._beat_s, 1.0))
        self._write({"token": token, "rank": rank})
        self._thread = threading.Thread(target=self._read, name="paceline-takeover-client", daemon=True)
        self._thread.start()

    def tell(self, kind: str, step: int, more: bool = False, **fields: Any) -> None:
        """Say something that has no answer; `more`: it goes out with the next message, which follows at once."""
        self._write({"kind": kind, "step": step, **fields}, more)

    def ask(self, kind: str, step: int, more: bool = False, **fields: Any) -> "Future[dict[str, Any]]":
        """Ask; the answer comes with `wait_for`. `more`: as in `tell`."""
        answer: Future[dict[str, Any]] = Future()
        with self._lock:
            self._next_id += 1
            number = self._next_id
            if not self._lost:
                self._waiting[number] = answer
        if number not in self._waiting:
            raise TakeoverError(self._lost)
        self._write({"kind": kind, "step": step, "id": number, **fields}, more)
        return answer

    def wait_for(self, answer: "Future[dict[str, Any]]", timeout_s: float) -> dict[str, Any]:
        """The answer to a request; an error that the keeper tells is raised."""
        try:
            message = answer.result(timeout_s)
        except TimeoutError:
            raise TakeoverError(
                f"no micro-batch to compute and no end of the iteration within {timeout_s:g} s"
            ) from None
        if "error" in message:
            raise TakeoverError(message["error"])
        return message

    def hold(self, step: int, claim: tuple[int, int, int]) -> None:
        """This claim's lease is renewed until `release`."""
        with self._lock:
            self._step = step
            self._held.add(claim)

    def release(self, claim: tuple[int, int, int]) -> None:
        with self._lock:
            self._held.discard(claim)

    def begin_whole(self, step: int, micro_batches: Sequence[Any]) -> None:
        """Compute all of one's own without a claim, between `start_own` and `end_own`, until one of them says no."""
        with self._lock:
            self._step, self._whole, self._at_work_ns = step, [], 0
        self.tell("begin", step, micro_batches=micro_batches, whole=True)

    def start_own(self) -> bool:
        """Begin the next one; False: the keeper has recalled what is left, so claim."""
        with self._lock:
            self._at_work_ns = time.monotonic_ns()
            return self._whole is not None

    def end_own(self, took_ns: int) -> bool:
        """The present one counts; False: it was recalled meanwhile, and is under a claim."""
        with self._lock:
            self._at_work_ns = 0
            if self._whole is None:
                return False
            self._whole.append(took_ns)
            return True

    def end_whole(self) -> None:
        """All are computed, unless what was left was recalled; goes out with the next message."""
        with self._lock:
            self._tell_whole(more=True)

    def _tell_whole(self, more: bool) -> None:
        """What was computed without a claim; what is at work is under a claim from now on. Under the lock."""
        if self._whole is None:
            return
        at_work_ns = time.monotonic_ns() - self._at_work_ns if self._at_work_ns else None
        message = {"kind": "whole", "step": self._step, "took_ns": self._whole, "working_ns": at_work_ns}
        if at_work_ns is not None:
            self._held.add((self._rank, len(self._whole), len(self._whole) + 1))
        self._whole = None
        self._send(message, more)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=10.0)
        self._socket.close()

    def _write(self, message: dict[str, Any], more: bool = False) -> None:
        with self._lock:
            self._send(message, more)

    def _send(self, message: dict[str, Any], more: bool) -> None:
        """Under the lock."""
        self._unsent += json.dumps(message).encode() + b"\n"
        if more:
            return
        data, self._unsent = self._unsent, b""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise TakeoverError(self._lost or f"the keeper is lost: {error}") from None

    def _read(self) -> None:
        heard = beat = time.monotonic()
        rest = b""
        reason = "it closed the connection"
        while True:
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                data = None
            except OSError as error:
                reason = str(error)
                break
            now = time.monotonic()
            if data == b"":
                break
            if data is not None:
                heard = now
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))
            elif now - heard > self._silence_s:
                reason = f"it has said nothing for {self._silence_s:g} s"
                break
            if now - beat > self._beat_s:
                beat = now
                self._renew()
        self._lose(f"the keeper is lost: {reason}; the rank that keeps the ledgers has ended or hangs")

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("kind") == "fenced":
            step, owner, number = message["claim"]
            self.fenced.add((step, owner, number))
        elif message.get("kind") == "recall":
            with self._lock, contextlib.suppress(TakeoverError):
                if message["step"] == self._step:
                    self._tell_whole(more=False)
        elif "id" in message:
            with self._lock:
                answer = self._waiting.pop(message["id"])
            answer.set_result(message)

    def _renew(self) -> None:
        with self._lock:
            claims, step = list(self._held), self._step
        if claims:
            with contextlib.suppress(TakeoverError):
                self.tell("renew", step, claims=claims)

    def _lose(self, reason: str) -> None:
        with self._lock:
            self._lost = reason
            waiting, self._waiting = list(self._waiting.values()), {}
        for answer in waiting:
            answer.set_result({"error": reason})


def _connect(addresses: Sequence[tuple[str, int]]) -> socket.socket:
    """To the first address that answers; the keeper may be known by several names."""
    problem: OSError | None = None
    until = time.monotonic() + CONNECT_S
    while time.monotonic() < until:
        for address in addresses:
            try:
                found = socket.create_connection(address, timeout=5.0)
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return found
            except OSError as error:
                problem = error
        time.sleep(0.1)
    shown = ", ".join(f"{host}:{port}" for host, port in addresses)
    raise TakeoverError(f"the keeper does not answer at {shown}: {problem}")
