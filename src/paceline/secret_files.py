"""Files that hold a secret: read only where nobody but their owner, or a group chosen by the owner, may.

And written so that nobody but their owner may.
"""

import os
import stat
from pathlib import Path

from paceline.errors import UserError

_TOO_OPEN = stat.S_IWGRP | stat.S_IRWXO


def write_private(path: Path, text: str) -> None:
    """Write a file that nobody else may read, from its first moment on."""
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)


def check_private(path: Path, place: str = "") -> None:
    """Refuse a file that everybody may read or write, or its group may write; `place` names the option."""
    where = place or str(path)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror or error}", place=where) from None
    if stat.S_ISREG(mode) and mode & _TOO_OPEN:
        shown = stat.filemode(mode)
        raise UserError(f"others may read or change {path} ({shown}): chmod 600 {path}", place=where)


def read_token(path: Path | None, place: str = "") -> str:
    """A cluster's token, empty without a file; the file as for `read_secret`."""
    if path is None:
        return ""
    token = read_secret(path, place)
    if len(token) < 16 or not token.isascii() or not token.isprintable():
        raise UserError("a token has at least 16 printable ASCII characters", place=place or str(path))
    return token


def read_secret(path: Path, place: str = "") -> str:
    """The text of a file that nobody else may read, without white space around it."""
    where = place or str(path)
    check_private(path, place)
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {getattr(error, 'strerror', None) or error}", place=where) from None
