"""Child processes that do not outlive us: each is ended by its id, and by the kernel if we are killed."""

import contextlib
import ctypes
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
GRACE_S = 5.0
LINES_SHOWN = 6


class ChildError(Exception):
    """A child ended badly, or not in time; the text has its last lines."""


class Children:
    """Processes started here, with what they write to stderr; `with` ends them all."""

    def __init__(self) -> None:
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self._errors = Path(tempfile.mkdtemp(prefix="paceline-bench-"))

    def __enter__(self) -> "Children":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        for path in self._errors.iterdir():
            path.unlink()
        self._errors.rmdir()

    @property
    def folder(self) -> Path:
        """A private folder that goes with the children."""
        return self._errors

    def start(
        self, name: str, command: list[str], environment: dict[str, str], *, pipe: bool = False
    ) -> IO[bytes] | None:
        """Start a process; with `pipe`, what it writes to stdout."""
        with (self._errors / name).open("wb") as errors:
            child = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipe else subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is ours to handle
                preexec_fn=die_with_parent,
            )
        self.children[name] = child
        return child.stdout

    def check(self, name: str, *, may_end: bool = False) -> None:
        """Raise if a child has ended badly, or ended at all unless it may."""
        code = self.children[name].poll()
        if code is None or (may_end and code == 0):
            return
        raise ChildError(f"{name} ended with {_meaning(code)}{self.last_words(name)}")

    def wait(self, name: str, timeout_s: float) -> None:
        """Wait for a child to end well."""
        try:
            self.children[name].wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ChildError(f"{name} did not end within {timeout_s:.0f} s{self.last_words(name)}") from None
        self.check(name, may_end=True)

    def last_words(self, name: str) -> str:
        """The end of what a child wrote to stderr."""
        with contextlib.suppress(OSError):
            text = (self._errors / name).read_text(encoding="utf-8", errors="replace")
            lines = [line for line in text.splitlines() if line.strip()]
            if lines:
                return ":\n  " + "\n  ".join(lines[-LINES_SHOWN:])
        return ""

    def end(self) -> None:
        """End what still runs: ask, wait, then insist."""
        running = [child for child in self.children.values() if child.poll() is None]
        for child in running:
            child.terminate()
        until = time.monotonic() + GRACE_S
        for child in running:
            try:
                child.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(GRACE_S)
        for child in self.children.values():
            if child.stdout is not None:
                child.stdout.close()


def die_with_parent() -> None:
    """In a child before it begins: the kernel kills it when its parent dies."""
    parent = os.getppid()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died in between
        os._exit(1)


def _meaning(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
