"""Is a switch reachable both ways with packets of full size? One packet of a job of one worker, there and back.

The control plane admits a job and is told a UDP address of ours; the widest packet that the switch serves goes there as
a contribution, and its sum comes back: the whole way that a training job's packets take, in both directions.
"""

import contextlib
import socket
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.core import auth, wire
from paceline.core.bits import bit
from paceline.live.switch_client import Admission, ControlError, ControlPlane

TRIES = 5
WAIT_S = 0.5
_KIND_AT = 3
"""Where a header has its kind."""
_IP_MTU_DISCOVER = 10
_IP_PMTUDISC_DO = 2


@dataclass(frozen=True)
class Echo:
    """What came of a probe."""

    payload_bytes: int
    """Of the UDP packet."""
    answered: bool
    """Whether the sum came back, right."""
    round_trip_s: float
    error: str = ""


def probe(control: ControlPlane) -> Echo:
    """Send one full packet by the switch; the job is gone afterwards. `ControlError` if the control plane refuses."""
    # What is compiled is compiled now: later the job's lease would end meanwhile.
    _packet(0, 0, bytes(16), True, np.ones(1, dtype=np.int32))
    admission = control.admit("doctor", 1)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            # Never in pieces: a path that cannot carry it is what we look for.
            line.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
            line.connect((admission.host, admission.shards[0]))
            control.bind(admission, 0, (line.getsockname()[0], line.getsockname()[1]))
            return _exchange(line, admission)
    finally:
        with contextlib.suppress(ControlError):
            control.leave(admission)


def _exchange(line: socket.socket, admission: Admission) -> Echo:
    values = np.arange(1, admission.elements + 1, dtype=np.int32)
    packet = contribution(admission, values)
    line.settimeout(WAIT_S)
    began = time.monotonic()
    error = "no answer"
    for _ in range(TRIES):
        try:
            line.send(packet)
            sent = time.monotonic()
            answer = line.recv(65_535)
        except TimeoutError:
            continue
        except OSError as problem:
            # EMSGSIZE: wider than the path; ECONNREFUSED: nobody listens there.
            error = problem.strerror or str(problem)
            time.sleep(0.05)
            continue
        if answer[_KIND_AT] == wire.RESULT and answer[wire.HEADER_BYTES :] == packet[wire.HEADER_BYTES :]:
            return Echo(len(packet), True, time.monotonic() - sent)
        error = "an answer, but not the sum"
    return Echo(len(packet), False, time.monotonic() - began, error)


def contribution(admission: Admission, values: NDArray[np.int32]) -> bytes:
    """A contribution of worker 0 to chunk 0, sealed."""
    return _packet(admission.job, admission.epoch, admission.key, admission.auth == "full", values)


def _packet(job: int, epoch: int, key: bytes, full: bool, values: NDArray[np.int32]) -> bytes:
    header = wire.new_packets(1)[0]
    wire.clear(header, wire.GRADIENT)
    header.job, header.epoch, header.count = job, epoch, len(values)
    header.mask, header.level = bit(0), 1
    header.fan_in, header.fan_in_upper, header.priority = 1, 1, 0
    header.window = 1
    data = np.frombuffer(wire.encode(header, values), dtype=np.uint8).copy()
    key0, key1 = auth.key_words(key)
    auth.seal(key0, key1, data, 0, len(data), full)
    return data.tobytes()
