"""A rank's passport on disk: one line that says whose it is, then one record a reduction.

Each record is written by one system call as soon as the result is there, so a rank that is killed has all but the
reduction it died in. Reductions end in any order; `number` is the order in which they were begun, the same on all
ranks. What a killed rank has written half is not read.
"""

import contextlib
import json
import os
import re
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import UserError
from paceline.whole_files import read_bytes

FORMAT = 1
SUFFIX = ".passport"
KINDS = ("float32", "int32", "bfloat16", "float16")
OPS = ("sum", "avg")
RECORD = np.dtype(
    [
        ("number", "<u8"),  # of the reduction in its group, from 0
        ("elements", "<u8"),  # of the tensor
        ("digest", "<u8"),  # XXH64 of the result's bytes
        ("kind", "u1"),  # its place in KINDS
        ("op", "u1"),  # its place in OPS
        ("pad", "u1", 6),  # zeros
    ]
)
_RECORD = struct.Struct("<QQQBB6x")
"""The same; NumPy takes ten times as long to make one."""
assert _RECORD.size == RECORD.itemsize
_KINDS = {name: place for place, name in enumerate(KINDS)}
_OPS = {name: place for place, name in enumerate(OPS)}
HEADER_BYTES_MAX = 4096


@dataclass(frozen=True)
class Owner:
    """Whose passport it is."""

    job: str
    group: str
    rank: int
    ranks: int
    restart: int = 0
    """Of torchrun: how often the job was started anew before."""
    format: int = FORMAT

    @property
    def file_name(self) -> str:
        again = f".restart{self.restart}" if self.restart else ""
        return f"{plain_name(self.job)}.{plain_name(self.group)}.rank{self.rank}{again}{SUFFIX}"


def plain_name(text: str) -> str:
    """A name that is one part of a path, whatever it holds."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)[:80] or "_"


class PassportWriter:
    """A rank's passport while it is written; `note` may be called by any thread."""

    def __init__(self, folder: Path, owner: Owner) -> None:
        self.path = folder / owner.file_name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            self._fd = os.open(self.path, flags, 0o644)
            os.write(self._fd, json.dumps(asdict(owner)).encode() + b"\n")
        except OSError as error:
            raise UserError(f"cannot be written: {error.strerror or error}", place=str(self.path)) from None

    def note(self, number: int, elements: int, kind: str, op: str, digest: int) -> None:
        """One reduction has its result. `OSError` where the disk is full."""
        if self._fd < 0:
            return
        record = _RECORD.pack(number, elements, digest, _KINDS[kind], _OPS[op])
        if os.write(self._fd, record) != _RECORD.size:
            raise OSError(28, "no room for a whole record")

    def close(self) -> None:
        """Nothing is noted after it."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with contextlib.suppress(OSError):
                os.close(fd)


@dataclass(frozen=True)
class Passport:
    """A passport that was read; `records` in the order of their numbers."""

    owner: Owner
    path: Path
    records: npt.NDArray[Any]


def read_passport(path: Path) -> Passport:
    """A rank's passport; a file that is none is a `UserError`."""
    data = read_bytes(path)
    line, newline, rest = data[: HEADER_BYTES_MAX + 1].partition(b"\n")
    try:
        owner = Owner(**json.loads(line)) if newline else None
        known = owner is not None and owner.format == FORMAT and _is_sound(owner)
    except (ValueError, TypeError, RecursionError):
        known = False
    if not known or owner is None:
        raise UserError("is no passport of this version", place=str(path))
    rest = data[len(line) + 1 :]
    records = np.frombuffer(rest[: len(rest) // RECORD.itemsize * RECORD.itemsize], dtype=RECORD)
    if np.any(records["kind"] >= len(KINDS)) or np.any(records["op"] >= len(OPS)):
        raise UserError("is damaged: a record names no format or operation", place=str(path))
    records = records[np.argsort(records["number"], kind="stable")]
    if np.any(records["number"][1:] == records["number"][:-1]):
        raise UserError("is damaged: two records have one number", place=str(path))
    return Passport(owner, path, records)


def _is_sound(owner: Owner) -> bool:
    texts = isinstance(owner.job, str) and isinstance(owner.group, str)
    return texts and all(isinstance(n, int) and n >= 0 for n in (owner.rank, owner.ranks, owner.restart))
