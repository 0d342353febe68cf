"""What a shard of the live switch does in a second of processor time, against a bare receiver in the same run.

    python -m benchmarks.live_switch [--workers 4] [--rounds 300] [--json]

Workers (one compiled loop) send trains of sealed gradients over loopback; the switch sums them and multicasts the
results. The peer takes the same packets by the same system calls (recvmmsg with GRO) and throws them away. Both are
measured in processor time of their own thread, so that a busy machine moves the figures little.
"""

import argparse
import io
import json
import threading
import time
from typing import Any

import numpy as np

from paceline.compile.decorators import compiled
from paceline.core import auth, wire
from paceline.live.net import sockets, syscalls, udp
from paceline.live.switch.daemon import LiveSwitch, SwitchOptions
from paceline.live.switch.jobs import Events

CHUNKS = 64
PATIENCE_NS = 2_000_000_000


@compiled
def send_round(
    fd: int, outbox: Any, waiter: Any, packet: Any, first: int, chunks: int, key: Any, to: Any
) -> None:
    """One worker's gradients of a round of chunks, sealed, in trains."""
    for k in range(chunks):
        packet.chunk = first + k
        packet.index = k
        size = 64 + 4 * packet.count
        start = udp.room_for(outbox, size)
        wire.encode_at(packet, outbox.data, start)
        auth.seal(key[0], key[1], outbox.data, start, size, False)
        udp.post(outbox, start, size, to)
    while udp.flush(fd, outbox) > 0:
        syscalls.wait(waiter, 1_000_000, True)


@compiled
def take(fd: int, inbox: Any, waiter: Any, wanted: int) -> int:
    """Receive this many packets, or as many as come."""
    got = 0
    while got < wanted:
        count = udp.receive(fd, inbox)
        if count == 0 and syscalls.wait(waiter, PATIENCE_NS, False) == 0:
            break
        got += count
    return got


def thread_seconds(thread: threading.Thread) -> float:
    """Processor time that a thread has used."""
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


class Bench:
    """Workers of one job at loopback sockets."""

    def __init__(self, workers: int, elements: int) -> None:
        self.sockets = [sockets.open_socket("127.0.0.1") for _ in range(workers)]
        self.waiters = [syscalls.new_waiter(made.fd) for made in self.sockets]
        self.outbox, self.inbox = udp.new_outbox(), udp.new_inbox()
        self.packet = wire.new_packets(1)[0]
        self.packet.kind, self.packet.level, self.packet.fan_in_upper = wire.GRADIENT, 1, 1
        self.packet.fan_in, self.packet.count, self.packet.priority = workers, elements, 100

    def send(self, first: int, key: Any, to: Any) -> None:
        for worker, made in enumerate(self.sockets):
            self.packet.worker, self.packet.mask = worker, 1 << worker
            send_round(made.fd, self.outbox, self.waiters[worker], self.packet, first, CHUNKS, key, to)

    def take(self) -> int:
        return sum(
            take(made.fd, self.inbox, waiter, CHUNKS)
            for made, waiter in zip(self.sockets, self.waiters, strict=True)
        )

    def close(self) -> None:
        for made, waiter in zip(self.sockets, self.waiters, strict=True):
            syscalls.close_waiter(waiter)
            made.close()


def measure_switch(workers: int, elements: int, rounds: int) -> dict[str, float]:
    """Packets a second of the shard's processor time: those it gets, and those it sends."""
    options = SwitchOptions(elements=elements, memory_bytes=CHUNKS * 2 * (4 * elements + 256))
    switch = LiveSwitch(options, Events(stream=io.StringIO()))
    bench = Bench(workers, elements)
    try:
        job = switch.admit("benchmark", workers)
        for worker, made in enumerate(bench.sockets):
            switch.bind_worker(job, worker, sockets.pack_address("127.0.0.1", made.port))
        bench.packet.job = job.number
        key = auth.key_words(job.key)
        to = np.uint64(sockets.pack_address("127.0.0.1", switch.ports[0]))
        thread = switch.threads[0]._thread
        missing = 0
        for number in range(rounds + 10):
            if number == 10:
                before_s, wall_s = thread_seconds(thread), time.perf_counter()
            bench.send(number * CHUNKS, key, to)
            missing += workers * CHUNKS - bench.take()
        used_s, wall_s = thread_seconds(thread) - before_s, time.perf_counter() - wall_s
        packets = rounds * CHUNKS * workers
        size = 64 + 4 * elements
        return {
            "packets_per_cpu_s": packets / used_s,
            "gbit_per_cpu_s": packets * size * 8 / used_s / 1e9,
            "us_per_packet": used_s / packets * 1e6,
            "packets_per_s": packets / wall_s,
            "missing": missing,
        }
    finally:
        bench.close()
        switch.close()


def measure_receiver(workers: int, elements: int, rounds: int) -> dict[str, float]:
    """The same packets, received by the same calls, and thrown away."""
    bench = Bench(workers, elements)
    sink = sockets.open_socket("127.0.0.1")
    waiter, inbox = syscalls.new_waiter(sink.fd), udp.new_inbox()
    key, to = auth.key_words(bytes(16)), np.uint64(sockets.pack_address("127.0.0.1", sink.port))
    used: list[float] = []

    def receive() -> None:
        started = time.thread_time()
        taken = take(sink.fd, inbox, waiter, rounds * CHUNKS * workers)
        used.extend((time.thread_time() - started, taken))

    bench.send(0, key, to)  # compiles
    take(sink.fd, inbox, waiter, CHUNKS * workers)
    thread = threading.Thread(target=receive)
    thread.start()
    for number in range(rounds):
        bench.send(number * CHUNKS, key, to)
        time.sleep(0.0005)
    thread.join(60)
    bench.close()
    syscalls.close_waiter(waiter)
    sink.close()
    return {"packets_per_cpu_s": used[1] / used[0], "us_per_packet": used[0] / used[1] * 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for elements in (352, 2048):
        receiver = measure_receiver(arguments.workers, elements, arguments.rounds)
        switch = measure_switch(arguments.workers, elements, arguments.rounds)
        rows.append(
            {
                "packet_bytes": 64 + 4 * elements,
                **{name: round(value, 3) for name, value in switch.items()},
                "receiver_us_per_packet": round(receiver["us_per_packet"], 3),
                "ratio_to_receiver": round(switch["packets_per_cpu_s"] / receiver["packets_per_cpu_s"], 3),
            }
        )
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print(
            f"{row['packet_bytes']} B: {row['packets_per_cpu_s'] / 1e6:.2f} M packets/s of processor time "
            f"({row['us_per_packet']:.2f} us each, {row['gbit_per_cpu_s']:.1f} Gbit/s), "
            f"{row['ratio_to_receiver']:.2f} of a bare receiver ({row['receiver_us_per_packet']:.2f} us each); "
            f"{row['packets_per_s'] / 1e6:.2f} M packets/s of wall time with the workers beside it"
        )


if __name__ == "__main__":
    main()
