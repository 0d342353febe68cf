"""What is left of a job while somebody floods its switch, and whether it leaves the switch on a busy machine.

    python -m benchmarks.floods            each flood beside two agents, on loopback
    python -m benchmarks.floods --load     processes that only compute, beside agents, then beside ranks of DDP

All of it on this machine, each flood for some seconds. A row has the steps a second that all workers completed, the
longest time without one, sums with other bits, and when the job took which path.
"""

import argparse
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.core import wire
from paceline.core.auth import key_words, seal
from paceline.drill.live_bed import LiveBed, live_bed
from paceline.drill.live_worker import ROUND

STEPS = 1 << 20
PACKETS_MAX = 30_000_000
"""A flooder ends after so many, or when its time is over."""
TRAIN = 40
UDP_SEGMENT = 103
COUNT = 300
"""Numbers in a packet of a flood."""
COMPUTE = "import time\nend = time.monotonic() + {}\nwhile time.monotonic() < end: sum(range(10000))"
MEMORY = (
    "import time, numpy\nend = time.monotonic() + {}\nx = numpy.zeros(30_000_000)\n"
    "while time.monotonic() < end: x += 1"
)


def main(arguments: list[str]) -> int:
    """All rows, or one flooder, which the rows start."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.floods", description=__doc__)
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each row")
    parser.add_argument("--flooder", nargs=6, help=argparse.SUPPRESS)
    given: Any = parser.parse_args(arguments)
    if given.flooder:
        kind, port, seconds, job, key, own = given.flooder
        flood(kind, int(port), float(seconds), int(job), bytes.fromhex(key), int(own))
    elif given.load:
        beside_load(given.seconds)
    else:
        under_floods(given.seconds)
    return 0


def flood(kind: str, port: int, seconds: float, job: int, key: bytes, own: int) -> None:
    """Send to a shard on loopback as fast as it goes; genuine where `key` is the job's and `own` a worker's port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", own))
        if kind == "noise":
            train, packets = b"x" * 64, 1
        else:
            # A result goes to every worker: each costs a copy for each of them.
            packet = wire.new_packets(1)[0]
            wire.clear(packet, wire.RESULT)
            packet.job, packet.count, packet.fan_in = job, COUNT, 2
            data = np.frombuffer(bytearray(wire.encode(packet)), dtype=np.uint8)
            seal(*key_words(key), data, 0, len(data), False)
            train, packets = data.tobytes() * TRAIN, TRAIN
            sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, len(data))
        end, sent = time.monotonic() + seconds, 0
        while time.monotonic() < end and sent < PACKETS_MAX:
            try:
                sock.sendto(train, ("127.0.0.1", port))
                sent += packets
            except OSError:
                time.sleep(0.0005)
    print(sent)


def _row(bed: LiveBed, name: str, seconds: float, start: Callable[[], list[Any]] = list) -> None:
    bed.seen.clear()
    bed.allow(STEPS)
    processes = start()
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        bed.poll(0.05)
    seen = list(bed.seen)
    ends: dict[int, list[float]] = defaultdict(list)
    for each in seen:
        ends[each.step].append(each.time)
    whole = sorted(max(times) for times in ends.values() if len(times) == bed.workers)
    gaps = [
        later - earlier for earlier, later in zip([begun, *whole], [*whole, begun + seconds], strict=True)
    ]
    wrong = sum(not each.right or each.digest != bed.reference[each.step % ROUND] for each in seen)
    paths = [(round(each.time - begun, 1), each.path) for each in seen if each.worker == 0]
    taken = [each for k, each in enumerate(paths) if k == 0 or paths[k - 1][1] != each[1]]
    sent = sum(int(process.communicate(timeout=60)[0] or 0) for process in processes)
    print(
        f"{name:34} {len(whole) / seconds:6.1f} steps/s, longest {max(gaps):.2f} s, {wrong} wrong, "
        f"{sent / 1e6:.1f} M packets, {taken}",
        flush=True,
    )


def under_floods(seconds: float) -> None:
    """Forged packets, noise, and genuine packets of admitted jobs."""
    with live_bed(2, loopback=True) as bed:
        shard = bed.control.admit("shards", 1).shards[0]

        def flooders(kind: str, many: int, job: int = 0, key: str = "00" * 16, own: int = 0) -> list[Any]:
            command = [sys.executable, "-m", "benchmarks.floods", "--flooder", kind, str(shard), str(seconds)]
            return [
                subprocess.Popen([*command, str(job), key, str(own)], stdout=subprocess.PIPE)
                for _ in range(many)
            ]

        def of_jobs(many: int) -> list[Any]:
            started = []
            for number in range(many):
                admission = bed.control.admit(f"flood {number}", 8)
                ports = [_free_port() for _ in range(8)]
                for worker, port in enumerate(ports):
                    bed.control.bind(admission, worker, ("127.0.0.1", port))
                started += flooders("genuine", 1, admission.job, admission.key.hex(), ports[0])
            return started

        _row(bed, "nothing", seconds / 2)
        for many in (1, 2, 10):
            _row(bed, f"forged, {many}", seconds, lambda many=many: flooders("forged", many))  # type: ignore[misc]
            _row(bed, "nothing", seconds / 2)
        _row(bed, "noise, 2", seconds, lambda: flooders("noise", 2))
        for many in (1, 6):
            _row(bed, "nothing", seconds / 2)
            _row(bed, f"genuine, of {many} jobs", seconds, lambda many=many: of_jobs(many))  # type: ignore[misc]
        _row(bed, "nothing", seconds / 2)


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def beside_load(seconds: float) -> None:
    """Processes that compute or run through memory, beside agents and beside ranks that train."""
    for ddp in (False, True):
        with live_bed(2 if ddp else 3, loopback=True, ddp=ddp) as bed:
            who = "DDP" if ddp else "agents"
            _row(bed, f"{who}, nothing", seconds / 2)
            for what, program, many in (
                ("compute", COMPUTE, 4),
                ("compute", COMPUTE, 16),
                ("memory", MEMORY, 4),
            ):

                def start(program: str = program, many: int = many) -> list[Any]:
                    command = [sys.executable, "-c", program.format(seconds)]
                    return [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(many)]

                _row(bed, f"{who}, {many} that {what}", seconds, start)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
