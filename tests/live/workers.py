"""Workers for tests of a live switch: the core's sender and custodian over real sockets, driven by plain Python.

One object drives all workers of one job in one thread. Every contribution is known, so every result can be checked.
"""

import json
import select
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paceline.core import auth, wire
from paceline.core.bits import NO_BITS, bit
from paceline.core.custodian import program as custodian
from paceline.core.sender import program as sender
from paceline.core.sender.congestion import FIXED, TOGETHER
from paceline.live.net import sockets, udp

MS = 1_000_000
TIMEOUT_S = 240.0
"""Long: the first run of all compiles the core, beside whatever else the machine does."""
SHARD_SHIFT = 5


def ask(
    port: int, method: str, path: str, body: Any = None, *, token: str = "", key: str = ""
) -> tuple[int, dict[str, Any]]:
    """One request to a control plane on loopback; status and JSON answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    if key:
        request.add_header("X-Paceline-Key", key)
    data = None if body is None else (body if isinstance(body, bytes) else json.dumps(body).encode())
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, data, 20) as response:
            status, text = response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            status, text = error.code, error.read()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, {"text": text.decode()}


def contribution(job: int, worker: int, chunk: int, count: int) -> Any:
    """What a worker puts into a chunk: 32-bit integers that tell workers, chunks and lanes apart, and wrap."""
    lanes = np.arange(count, dtype=np.int64)
    mixed = (job * 40_503 + worker * 69_069 + chunk * 1_566_083_941 + lanes * 362_437 + 12_345) % (1 << 32)
    return (mixed * 2_654_435_761 % (1 << 32)).astype(np.uint32).view(np.int32)


class Workers:
    """All workers of a job; `racks[i]` is the rack of worker i, `ports[r]` the control port of rack r's switch."""

    def __init__(
        self,
        ports: Sequence[int],
        racks: Sequence[int],
        *,
        name: str = "test",
        count: int = 64,
        span: int = 64,
        window: float = 32.0,
        priority: int = 100,
        token: str = "",
        admission: dict[str, Any] | None = None,
        record: int = 0,
    ) -> None:
        self.ports, self.racks, self.count, self.priority, self.token = (
            list(ports),
            list(racks),
            count,
            priority,
            token,
        )
        self.admission: dict[str, Any] = {}
        self.switches: list[list[Any]] = []
        request: dict[str, Any] = {
            "name": name,
            "workers": len(racks),
            "racks": len(ports),
            **(admission or {}),
        }
        for rack, port in enumerate(ports):
            if rack > 0:
                request |= {"job": self.admission["job"], "key": self.admission["key"]}
            status, self.admission = ask(port, "POST", "/v1/jobs", {**request, "rack": rack}, token=token)
            assert status == 201, self.admission
            self.switches.append(
                [np.uint64(sockets.pack_address("127.0.0.1", p)) for p in self.admission["shards"]]
            )
        self.job, self.key = int(self.admission["job"]), str(self.admission["key"])
        self.key0, self.key1 = auth.key_words(bytes.fromhex(self.key))
        self.full = self.admission["auth"] == "full"
        self.sockets = [sockets.open_socket("127.0.0.1") for _ in racks]
        self.addresses = [np.uint64(sockets.pack_address("127.0.0.1", s.port)) for s in self.sockets]
        for worker, made in enumerate(self.sockets):
            self.bind(worker, made.port)
        self.inbox, self.outbox = udp.new_inbox(8), udp.new_outbox(1 << 20)
        self.header = wire.new_packets(1)
        self.values = np.zeros((1, count), dtype=np.int32)
        self.results: list[dict[int, bytes]] = [{} for _ in racks]
        self.forged = 0
        self.recorded: list[tuple[int, bytes]] = []
        """The first packets sent, up to `record` of them: worker and bytes."""
        self.record = record
        self._hire(span, window)

    def bind(self, worker: int, udp_port: int) -> None:
        port = self.ports[self.racks[worker]]
        path = f"/v1/jobs/{self.job}/workers/{worker}"
        status, answer = ask(port, "PUT", path, {"address": f"127.0.0.1:{udp_port}"}, key=self.key)
        assert status == 200, answer

    def _hire(self, span: int, window: float) -> None:
        pool, slots = int(self.admission["pool"]), int(self.admission["slots"])
        racks, count = self.racks, len(self.racks)
        self.pool = pool
        self.senders = sender.new_senders(count, pool or span)
        self.custodians = custodian.new_custodians(count, 2 * span, len(self.ports), self.count)
        for i, rack in enumerate(racks):
            state = self.senders.state[i]
            state.job, state.worker, state.rack = self.job, i, rack
            state.mask = bit(racks[:i].count(rack))
            state.fan_in, state.fan_in_upper = racks.count(rack), len(self.ports)
            state.count, state.span, state.slots = self.count, pool or span, pool or slots
            state.pool, state.flush = int(pool > 0), int(pool == 0)
            state.inquires = state.in_order = int(pool == 0)
            state.congestion, state.increase = FIXED if pool else TOGETHER, 1.0
            state.window_min, state.window_max = 1.0, float(pool or window)
            state.rto_min_ns, state.rto_max_ns = 20 * MS, 500 * MS
            state.reorder_chunks, state.reorder_rtts, state.resends_max = 3, 1.0, 1000
            sender.start(self.senders, i, window, 50 * MS)
            keeper = self.custodians.state[i]
            keeper.job, keeper.endpoint, keeper.ring = self.job, i, 2 * span
            keeper.reminders = keeper.pulls = int(self.admission["policy"] != "atp" and pool == 0)
            keeper.fan_in_upper, keeper.count, keeper.slots = len(self.ports), self.count, slots
            keeper.patience_ns, keeper.patience_max_ns = 40 * MS, 500 * MS
            for r in set(racks):
                self.custodians.fan_in[i, r] = racks.count(r)

    # --- working --------------------------------------------------------------------------------------------

    def run(
        self,
        chunks: int,
        timeout_s: float = TIMEOUT_S,
        until: Callable[[], bool] | None = None,
        only: int | None = None,
    ) -> None:
        """Reduce chunks 0..chunks-1; returns when every worker has every result, or `until` is true.

        `only`: this worker sends, the others do not.
        """
        senders = range(len(self.racks)) if only is None else [only]
        for i in senders:
            sender.release(self.senders, i, chunks)
        deadline = time.monotonic() + timeout_s
        by_fd = {made.fd: i for i, made in enumerate(self.sockets)}
        poller = select.poll()
        for fd in by_fd:
            poller.register(fd, select.POLLIN)
        while any(len(results) < chunks for results in self.results) and not (until and until()):
            assert time.monotonic() < deadline, [len(results) for results in self.results]
            assert not self.senders.state.failed.any()
            for i in senders:
                self._pump(i)
            for fd, _ in poller.poll(5):
                self._receive(by_fd[fd])

    def check(self, chunks: int) -> None:
        """Every worker has, for every chunk, exactly the sum."""
        for chunk in range(chunks):
            total = np.zeros(self.count, dtype=np.int64)
            for worker in range(len(self.racks)):
                total += contribution(self.job, worker, chunk, self.count)
            wanted = (total % (1 << 32)).astype(np.uint32).tobytes()
            for results in self.results:
                assert results[chunk] == wanted, f"chunk {chunk} is wrong"

    def _pump(self, i: int) -> None:
        now_ns = time.monotonic_ns()
        packet = self.header[0]
        if self.senders.state[i].timer_ns <= now_ns:
            sender.handle_timeout(self.senders, i, now_ns)
        while sender.poll_transmit(self.senders, i, packet, now_ns):
            chunk = int(packet.chunk)
            packet.priority = self.priority
            packet.custodian = custodian.custodian_for(chunk, len(self.racks), NO_BITS, 0)
            self.values[0] = contribution(self.job, i, chunk, self.count)
            self._send(i, self._switch_for(i, chunk))
        if self.custodians.state[i].timer_ns <= now_ns:
            custodian.handle_timeout(self.custodians, i, now_ns)
            while custodian.poll_transmit(self.custodians, i, packet):
                self._send(i, self._switch_for(i, int(packet.chunk)))
        udp.flush(self.sockets[i].fd, self.outbox)

    def _switch_for(self, i: int, chunk: int) -> Any:
        shards = self.switches[self.racks[i]]
        return shards[(chunk >> SHARD_SHIFT) % len(shards)]

    def sealed(self, packet: Any, values: Any = None) -> Any:
        """The packet's bytes, tagged."""
        data = np.frombuffer(wire.encode(packet, values), dtype=np.uint8).copy()
        auth.seal(self.key0, self.key1, data, 0, len(data), self.full)
        return data

    def _send(self, i: int, destination: Any) -> None:
        data = self.sealed(self.header[0], self.values[0])
        if len(self.recorded) < self.record:
            self.recorded.append((i, data.tobytes()))
        start = udp.room_for(self.outbox, len(data))
        if start < 0:
            udp.flush(self.sockets[i].fd, self.outbox)
            start = 0
        self.outbox.data[start : start + len(data)] = data
        if not udp.post(self.outbox, start, len(data), destination):
            udp.flush(self.sockets[i].fd, self.outbox)
            udp.post(self.outbox, start, len(data), destination)

    def _receive(self, i: int) -> None:
        for s in range(udp.receive(self.sockets[i].fd, self.inbox)):
            segment = self.inbox.segments[s]
            start, length = int(segment.start), int(segment.length)
            packet = self.header[0]
            if wire.decode_at(self.inbox.data, start, length, packet) != wire.OK:
                self.forged += 1
                continue
            if not auth.is_genuine(self.key0, self.key1, self.inbox.data, start, length, self.full):
                self.forged += 1
                continue
            payload = self.inbox.data[start + wire.HEADER_BYTES : start + length]
            self.values[0, : packet.count] = payload.view(np.int32)
            self._take(i)
        udp.flush(self.sockets[i].fd, self.outbox)

    def _take(self, i: int) -> None:
        packet, now_ns = self.header[0], time.monotonic_ns()
        kind, chunk = int(packet.kind), int(packet.chunk)
        if kind == wire.RESULT:
            mine = custodian.custodian_for(chunk, len(self.racks), NO_BITS, 0) == i
            if mine and not self.pool:
                custodian.keep_result(self.custodians, i, packet, self.values, 0, now_ns)
            if sender.handle_result(self.senders, i, packet, now_ns) == sender.NEW:
                self.results[i][chunk] = self.values[0].tobytes()
        elif kind == wire.PULL:
            if sender.handle_pull(self.senders, i, packet) == sender.ANSWER_IT:
                packet.kind, packet.worker, packet.count = wire.ANSWER, i, self.count
                packet.rack = self.racks[i]
                self.values[0] = np.frombuffer(self.results[i][chunk], dtype=np.int32)
                self._send(i, self.addresses[packet.custodian])
        elif kind == wire.ACK:
            sender.handle_ack(self.senders, i, packet, now_ns)
        elif kind == wire.NACK:
            sender.handle_nack(self.senders, i, packet, now_ns)
        else:
            verdict = custodian.handle_packet(self.custodians, i, packet, self.values, 0, now_ns)
            packet.custodian = i
            if verdict in (custodian.MULTICAST, custodian.PULL_REST):
                self._send(i, self._switch_for(i, chunk))
            elif verdict == custodian.UNICAST:
                self._send(i, self.addresses[packet.worker])

    def leave(self) -> dict[str, Any]:
        answers = [ask(port, "DELETE", f"/v1/jobs/{self.job}", key=self.key) for port in self.ports]
        return answers[0][1]

    def close(self) -> None:
        for made in self.sockets:
            made.close()
