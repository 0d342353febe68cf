"""Warm processes: ranks forked from one that has loaded Python, torch and compiled code already.

    python -m paceline.launch.launchers.pool SOCKET MODULE...      # keeps ready; ends with its standard input
    python pool.py --start SOCKET python SCRIPT ARGUMENT...        # runs the script in a process forked from it

Loading torch takes a processor one to two seconds a rank, which on a small machine is longer than a short job trains.
`--start` stands for the rank: it hands over its environment, folder, output and network namespace, hands on signals,
and ends as the rank ends. If it is killed, so is the rank. Where nobody listens, it runs the command itself.

The forking process has a single thread, or what it forks could find locks held for ever.

Standard library only at the top, no imports of this package: `--start` runs once for each rank.
"""

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_FDS = 4
"""Input, output, errors, and the network namespace."""
_REQUEST_BYTES = 1 << 20


# One rank ------------------------------------------------------------------------------------------------


def start(path: str, command: list[str]) -> int:
    """Have the command run by a warm process; its exit code."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        line.connect(path)
    except OSError:
        os.execvp(command[0], command)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)
    with Path("/proc/self/ns/net").open("rb") as here:
        request = {"command": command, "env": dict(os.environ), "workdir": str(Path.cwd())}
        socket.send_fds(line, [json.dumps(request).encode()], [0, 1, 2, here.fileno()])
    rank = int(line.recv(64) or b"0")
    if not rank:
        return 1
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _: _signal(rank, got))
    code = int(line.recv(64) or b"1")
    if code < 0:  # a signal ended it, and so one ends us: whoever waits sees which
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


# The process that forks ----------------------------------------------------------------------------------


class ForkServer:
    """Forks a rank for each request; `lines` are the connections of ranks that run."""

    def __init__(self, path: str) -> None:
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listening.bind(f"{path}.made")
        self.listening.listen(256)
        Path(f"{path}.made").rename(path)  # whoever finds it can connect
        self.lines: dict[int, socket.socket] = {}

    def serve(self) -> None:
        """Until standard input ends."""
        wake, woken = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(woken)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        selector = selectors.DefaultSelector()
        for source in (self.listening.fileno(), sys.stdin.fileno(), wake):
            selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == sys.stdin.fileno():
                    return
                if key.fd == wake:
                    os.read(wake, 4096)
                    self._reap(selector)
                elif key.fd == self.listening.fileno():
                    line = self.listening.accept()[0]
                    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _REQUEST_BYTES)
                    pid = self._fork(line)
                    if pid:
                        selector.register(line, selectors.EVENT_READ, pid)
                elif key.data in self.lines:  # who started it is gone
                    selector.unregister(key.fileobj)
                    _signal(key.data, signal.SIGKILL)

    def _reap(self, selector: selectors.BaseSelector) -> None:
        while self.lines:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            line = self.lines.pop(pid)
            if line.fileno() in selector.get_map():
                selector.unregister(line)
            with contextlib.suppress(OSError):  # whoever started it may be gone
                line.send(str(os.waitstatus_to_exitcode(status)).encode())
            line.close()

    def _fork(self, line: socket.socket) -> int:
        text, fds, _, _ = socket.recv_fds(line, _REQUEST_BYTES, _FDS)
        if len(fds) != _FDS:
            line.close()
            return 0
        pid = os.fork()
        if pid == 0:
            self.listening.close()
            line.close()
            os._exit(_run(json.loads(text), fds))
        for fd in fds:
            os.close(fd)
        self.lines[pid] = line
        line.send(str(pid).encode())
        return pid


def _run(request: dict[str, Any], fds: list[int]) -> int:
    """The rank: as if it had been started by itself."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if _LIBC.setns(fds[3], _CLONE_NEWNET) != 0:
        return 126
    for number in range(3):
        os.dup2(fds[number], number)
    for fd in fds:
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["env"])
    _show_environment(request["env"])
    if (
        "PACELINE_CPU_GROUP" in os.environ
    ):  # of a server with limited processors; this process was forked elsewhere
        with contextlib.suppress(OSError):
            Path(os.environ["PACELINE_CPU_GROUP"]).write_text("0")
    os.chdir(request["workdir"])
    script, sys.argv = request["command"][1], request["command"][1:]
    sys.path[0] = str(Path(script).resolve().parent)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=True)  # type: ignore[union-attr]
    code = 0
    try:
        if "torch" in sys.modules:
            # torch was loaded before this rank had an environment; by its name, since only a rank knows torch.
            importlib.import_module("paceline.torch_autoload").adapt()
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    # What an interpreter does at its end: wait for threads, then call what was registered.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _show_environment(env: dict[str, str]) -> None:
    """Write our variables to where `/proc` reads them, as far as there is room.

    A forked process shows what the one was started with that it was forked from; but by its environment whatever a rank
    leaves behind is known for its own, and ended. Nobody else uses this memory: all variables have been replaced.
    """
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    first, end = int(fields[47]), int(fields[48])
    shown = b""
    for name in sorted(env, key=lambda name: not name.startswith("PACELINE_")):
        entry = os.fsencode(f"{name}={env[name]}") + b"\0"
        if len(shown) + len(entry) < end - first:
            shown += entry
    if first < end:
        ctypes.memmove(first, shown.ljust(end - first, b"\0"), end - first)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--start"]:
        return start(arguments[1], arguments[2:])
    path, modules = arguments[0], arguments[1:]
    for name in modules:
        module = importlib.import_module(name)
        if hasattr(module, "warm_up"):
            module.warm_up()
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        print(f"{' '.join(modules)}: {threads} threads run after loading; not forked from", file=sys.stderr)
        return 1
    ForkServer(path).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
