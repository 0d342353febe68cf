"""Floods are refused by the kernel: a filter on a shard's socket that lets through a part of one job's packets.

A shard drops what a job sends beyond its share (`turns`), but has received it by then, and other jobs' packets found
the queue full. So a job of which much is dropped gets a filter: the socket takes each of its packets (or trains) with
a probability, set to what the shard would serve, and raised again step by step once nothing is over.

Only genuine packets beyond a job's share bring the filter about, but it goes by the number in the header: forged
packets that bear it are refused with the same probability.
"""

import errno
import socket
import struct
from collections.abc import Sequence
from ctypes import addressof, create_string_buffer

from paceline.core.wire import WIRE
from paceline.live.switch.shard_state import DROP_SHARE, Shard

assert WIRE.fields is not None
_JOB_AT = 8 + int(WIRE.fields["job"][1])
"""Behind the UDP header, where a socket's filter begins to look."""
_LOAD_HALF, _LOAD_WORD, _IF_EQUAL, _IF_NOT_BELOW, _RETURN = 0x28, 0x20, 0x15, 0x35, 0x06
_RANDOM = 0xFFFFF038
_ALL = 0xFFFFFFFF
_ATTACH, _DETACH = 26, 27
KEEP_MIN = 1 / 256
_RISE = 1.5
_MUCH = 0.25
"""So much of what is served is over the share: the job is policed."""


def filter_program(keep: dict[int, float]) -> list[tuple[int, int, int, int]]:
    """Classic BPF: packets of these jobs are taken with their probability, all others always."""
    code = [(_LOAD_HALF, 0, 0, _JOB_AT)]
    for job, part in sorted(keep.items()):
        code += [
            (_IF_EQUAL, 0, 4, job),
            (_LOAD_WORD, 0, 0, _RANDOM),
            (_IF_NOT_BELOW, 0, 1, int(part * _ALL)),
            (_RETURN, 0, 0, 0),
            (_RETURN, 0, 0, _ALL),
        ]
    return [*code, (_RETURN, 0, 0, _ALL)]


def set_filter(sock: socket.socket, keep: dict[int, float]) -> None:
    """Have the socket refuse a part of these jobs' packets; none: it takes everything again."""
    if not keep:
        try:
            sock.setsockopt(socket.SOL_SOCKET, _DETACH, 0)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
        return
    code = b"".join(struct.pack("=HBBI", *line) for line in filter_program(keep))
    held = create_string_buffer(code, len(code))
    sock.setsockopt(socket.SOL_SOCKET, _ATTACH, struct.pack("HP", len(code) // 8, addressof(held)))


class ShardPolice:
    """What one shard's socket lets through, job by job."""

    def __init__(self, sock: socket.socket, shard: Shard) -> None:
        self._sock, self._shard = sock, shard
        self._over: dict[int, int] = {}
        self._served: dict[int, int] = {}
        self.keep: dict[int, float] = {}

    def look(self, jobs: Sequence[int]) -> list[int]:
        """Set the filter by what came and was dropped since the last look; the jobs that it is new for."""
        before, keep = dict(self.keep), {}
        for job in jobs:
            over = self._since(self._over, job, int(self._shard.drops[job, DROP_SHARE]))
            served = self._since(self._served, job, int(self._shard.jobs[job].packets_in))
            part = self.keep.get(job, 1.0)
            if over > _MUCH * served:
                part = max(KEEP_MIN, part * served / (served + over))
            else:
                part = min(1.0, part * _RISE)
            if part < 1.0:
                keep[job] = part
        if keep != before:
            set_filter(self._sock, keep)
            self.keep = keep
        return [job for job in keep if job not in before]

    @staticmethod
    def _since(known: dict[int, int], job: int, total: int) -> int:
        """How much was added; a number that a new job has begins again."""
        last = known.get(job, 0)
        known[job] = total
        return total - last if total >= last else total
