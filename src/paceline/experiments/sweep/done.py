"""What a sweep has finished, on disk: one line a point, so that an interrupted sweep goes on from there.

The file is only ever appended to. A line's key is a hash of the function, of the point with all its settings, and of
every source that the function can reach (`paceline.compile.sources`): a point of other settings or of other code is
another point. A line that a kill has torn is dropped; its point runs again.
"""

import fcntl
import functools
import hashlib
import json
import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

from paceline.compile.sources import tree
from paceline.errors import UserError

FILE_NAME = "points.jsonl"
_LIBRARIES = ("numpy", "numba", "ortools")


@functools.cache
def sources_hash(function: Callable[..., Any]) -> str:
    """Of the code that the function's results depend on: ours, and the versions of what computes for it."""
    digest = hashlib.sha256(platform.python_version().encode())
    digest.update(tree().key(Path(function.__code__.co_filename).resolve()).encode())
    for name in _LIBRARIES:
        try:
            digest.update(f"{name} {metadata.version(name)}\n".encode())
        except metadata.PackageNotFoundError:
            digest.update(f"{name} is not there\n".encode())
    return digest.hexdigest()


def key_of(function: Callable[..., Any], point: Any) -> str:
    """The name under which a point's result is kept."""
    shown = repr(point)
    if " at 0x" in shown:
        raise TypeError(
            f"a point must show all that it is made of, as a dataclass does; this one shows {shown}"
        )
    text = f"{function.__module__}.{function.__qualname__}\n{shown}\n{sources_hash(function)}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def as_stored(result: Any) -> Any:
    """The result as the file would give it back: whoever runs a sweep sees the same values, resumed or not."""
    return json.loads(json.dumps(result, default=_plain))


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a point's result is made of plain values, not of {type(value).__name__}")


class DoneFile:
    """The finished points of the folder; one sweep at a time may hold it."""

    def __init__(self, folder: Path, resume: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / FILE_NAME
        self._file = self.path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UserError("another sweep is writing here; give another --out", place=str(folder)) from None
        self._results: dict[str, Any] = {}
        whole = self._read() if resume else 0
        self._file.truncate(whole)

    def _read(self) -> int:
        """Take in every whole line; how many bytes of the file are whole lines."""
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        for line in content[:whole].splitlines():
            try:
                entry = json.loads(line)
                self._results[entry["key"]] = entry["result"]
            except (ValueError, KeyError, TypeError):
                continue
        return whole

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def __getitem__(self, key: str) -> Any:
        return self._results[key]

    def add(self, key: str, result: Any) -> None:
        """One line, in the system's hands before this returns."""
        self._results[key] = result
        self._file.write(json.dumps({"key": key, "result": result}).encode() + b"\n")
        self._file.flush()

    def __enter__(self) -> "DoneFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
