"""Files that others wrote or may change: read whole unless they have no end, or their end, without waiting for anybody.

`read_bytes` is for what a user names: a pipe is read to its end (`<(command)`), a device and what is larger than
`BYTES_MAX` are refused. `last_bytes` and `bytes_from` are for what jobs may put in their place: a pipe, a device or a
folder there is no file, and is never waited for.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from paceline.errors import UserError

BYTES_MAX = 1 << 30
"""The largest of the public traces has a quarter of it."""
_PIECE = 1 << 20


def read_bytes(path: Path) -> bytes:
    """The whole file, or a `UserError` that says why there is none."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if stat.S_ISCHR(found.st_mode) and not file.isatty() and not os.path.samestat(found, _null()):
                raise UserError("is a device, not a file", place=str(path))
            data = bytearray()
            while found.st_size <= BYTES_MAX and len(data) <= BYTES_MAX and (piece := file.read(_PIECE)):
                data += piece
            if max(found.st_size, len(data)) > BYTES_MAX:
                raise UserError(f"is larger than {BYTES_MAX >> 20} MiB", place=str(path))
            return bytes(data)
    except FileNotFoundError:
        raise UserError("no such file", place=str(path)) from None
    except IsADirectoryError:
        raise UserError("is a directory, not a file", place=str(path)) from None
    except (OSError, ValueError) as error:  # a name that is none
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot be read: {reason}", place=str(path)) from None


def _null() -> os.stat_result:
    return Path(os.devnull).stat()


def last_bytes(path: Path, most: int) -> tuple[bytes, bool]:
    """The end of a file, and whether that is all of it; nothing where there is no file that can be read."""
    try:
        with _opened(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            return file.read(most), size <= most
    except OSError:
        return b"", True


def bytes_from(path: Path, offset: int, most: int) -> bytes:
    """At most so many bytes from a place on; nothing where there is no file that can be read."""
    try:
        with _opened(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(offset)
            return file.read(max(0, min(most, size - offset)))
    except OSError:
        return b""


def _opened(path: Path) -> BinaryIO:
    """A regular file, or `OSError`; a pipe is not waited for."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path} is no file")
    return os.fdopen(fd, "rb")
