"""The process that stands over one attempt of a job on one machine, and outlives the planner.

`python -m paceline.launch.launchers.supervisor FOLDER` reads FOLDER/task.json, claims the attempt, starts its ranks and
writes FOLDER/exit.json when all have ended. Room for that file is taken at the start, so that a full disk does not
lose the outcome; where there was none, it goes to a second place (`keep_outcome`). The claim is a file that can be made
only once: of two supervisors for one attempt, the second does nothing. If a rank fails, the others are stopped: a gang
is whole or ended. SIGTERM stops all: SIGTERM to each rank's process group, a time of grace, SIGKILL. With `--lifeline`,
the end of standard input does the same at once, so that ranks never outlive the process at the other end. What a rank
has started in a session of its own ends with the last rank: orphans of its ranks become this process's children, and
a variable in their environment marks those that do not.

A process is known by its id and its start time, so that a reused id is never taken for the old process.

Standard library only, no imports of this package: it starts once for each job.
"""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
OWN = "PACELINE_SUPERVISOR"
"""Tells processes that this supervisor's ranks have started from those of another, of the same attempt too."""
ROOM, ROOM_BYTES = "exit.room", 4096
"""What `exit.json` is made of."""
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that ask for an orderly end. They are held back until there is somebody to take them."""
_PR_SET_CHILD_SUBREAPER = 36


# Which process is which --------------------------------------------------------------------------------


def _boot_id() -> str:
    """Differs from one start of the machine to the next; start times count from there."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def _fields(pid: int) -> list[str] | None:
    """What /proc tells of a process from its state letter on, or None if there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in brackets may hold anything, brackets included.
    return text[text.rindex(")") + 2 :].split()


def _stat(pid: int) -> tuple[str, int] | None:
    """State letter and start time in clock ticks, or None if there is no such process."""
    fields = _fields(pid)
    return None if fields is None else (fields[0], int(fields[19]))


def process_identity(pid: int) -> dict[str, Any] | None:
    """What tells this process from every other, here and after a restart; None if it is gone."""
    found = _stat(pid)
    if found is None:
        return None
    return {"pid": pid, "start": found[1], "boot": _boot_id(), "host": socket.gethostname()}


def is_alive(who: Mapping[str, Any]) -> bool:
    """Whether exactly this process still runs; one that has ended and waits for its parent does not."""
    found = _stat(int(who["pid"]))
    return (
        found is not None and found[0] not in "ZX" and found[1] == who["start"] and who["boot"] == _boot_id()
    )


def signal_process(who: Mapping[str, Any], number: int) -> bool:
    """Signal exactly this process; False if it is gone."""
    if not is_alive(who):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(who["pid"]), number)
        return True
    return False


def marked_processes(name: str, value: str) -> list[int]:
    """The processes that have `name=value` in the environment they were started with, but for this one."""
    wanted = f"{name}={value}".encode()
    found = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in variables:
            found.append(int(entry.name))
    return found


def kill_marked(name: str, value: str) -> int:
    """Kill what is left of an attempt; returns how many processes it was."""
    killed: set[int] = set()
    for _ in range(20):
        # Again until none is new: one of them may just have started another.
        left = set(marked_processes(name, value)) - killed
        if not left:
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= left
    return len(killed)


def adopt_orphans() -> None:
    """Whoever has no parent any more below this process becomes its child, whatever session or environment it has."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> set[int]:
    """The processes below this one that run."""
    parents = {}
    for entry in _PROC.iterdir():
        fields = _fields(int(entry.name)) if entry.name.isdigit() else None
        if fields is not None and fields[0] not in "ZX":
            parents[int(entry.name)] = int(fields[1])
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return below - {os.getpid()}


def bury(known: set[int]) -> None:
    """Take note of the end of adopted children, so that the kernel forgets them; not of those that are `known`."""
    with contextlib.suppress(ChildProcessError):
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid in known:
                return
            os.waitpid(found.si_pid, 0)


def kill_descendants() -> None:
    """End everything below this process: nothing of it may go on after the attempt."""
    for _ in range(200):
        left = descendants()
        if not left:
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        bury(set())
        time.sleep(0.005)
    bury(set())


# Files of an attempt -------------------------------------------------------------------------------------


def write_once(path: Path, data: Any) -> bool:
    """Make the file with this content, whole; False if it is there already."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(data), encoding="utf-8")
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def read_json(path: Path) -> Any:
    """The file's content; None if it is not there (files of ours are never half written)."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def reserve_room(folder: Path) -> None:
    """Take the room that the outcome will need, while there is some; without it the second place has to do."""
    with contextlib.suppress(OSError), (folder / ROOM).open("xb") as file:
        file.write(b" " * ROOM_BYTES)
        file.flush()
        os.fsync(file.fileno())


def keep_outcome(folder: Path, token: str, outcome: Mapping[str, Any]) -> None:
    """Write how an attempt ended, once: into the reserved room, as a new file, or in the second place."""
    if (folder / "exit.json").exists():
        return
    text = json.dumps(outcome).encode()
    if len(text) > ROOM_BYTES:
        text = json.dumps({**outcome, "ranks": {}, "reason": str(outcome["reason"])[:500]}).encode()
    text = text.ljust(ROOM_BYTES)
    with contextlib.suppress(OSError):
        with (folder / ROOM).open("r+b") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        (folder / ROOM).rename(folder / "exit.json")
        return
    with contextlib.suppress(OSError):
        write_once(folder / "exit.json", outcome)
        return
    for place in second_places(token):
        with contextlib.suppress(OSError):
            place.parent.mkdir(mode=0o700, exist_ok=True)
            write_once(place, outcome)
            return


def read_outcome(folder: Path, token: str) -> Any:
    """How an attempt ended, from wherever it could be written; None if it has not, or could not be written at all."""
    for path in (folder / "exit.json", folder / ROOM, *second_places(token)):
        with contextlib.suppress(ValueError, OSError):
            found = read_json(path)
            if isinstance(found, dict) and "exit_code" in found:
                return found
    return None


def second_places(token: str) -> list[Path]:
    """Where an outcome goes that the run's own folder has no room for; folders of this user alone."""
    name = f"paceline-outcomes-{os.getuid()}"
    places = [Path(root) / name for root in ("/dev/shm", "/tmp", "/var/tmp")]
    return [place / f"{token}.json" for place in places if _is_ours(place)]


def _is_ours(place: Path) -> bool:
    """It is not there yet, or a folder that nobody else may write to."""
    try:
        found = place.lstat()
    except OSError:
        return True
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def exit_code_of(returncode: int) -> int:
    """A process's end as a shell tells it: 128 + N for signal N."""
    return returncode if returncode >= 0 else 128 - returncode


# The ranks -----------------------------------------------------------------------------------------------


class Gang:
    """The ranks of one attempt on this machine."""

    def __init__(self, folder: Path, task: dict[str, Any]) -> None:
        self.folder, self.task = folder, task
        self.ranks: dict[int, subprocess.Popen[bytes]] = {}
        self.ended: dict[int, int] = {}
        self.verdict: int | None = None
        """Exit code of the first rank that failed."""
        self.reason = ""
        self.kill_at: float | None = None
        self.mark = "{pid}-{start}-{boot}".format(**(process_identity(os.getpid()) or {}))

    def start(self) -> None:
        for entry in self.task["ranks"]:
            rank = int(entry["rank"])
            with (self.folder / f"rank-{rank}.log").open("ab") as log:
                try:
                    self.ranks[rank] = subprocess.Popen(
                        [*entry.get("within", ()), *self.task["command"]], cwd=self.task["workdir"] or None,
                        env={**os.environ, **entry["env"], OWN: self.mark}, stdin=subprocess.DEVNULL,
                        stdout=log, stderr=log, start_new_session=True,
                    )  # fmt: skip
                except OSError as error:
                    log.write(f"paceline: cannot start: {error}\n".encode())
                    self._fail(127, f"cannot start: {error}")
                    break

    def reap(self) -> None:
        for rank, process in list(self.ranks.items()):
            code = process.poll()
            if code is None:
                continue
            del self.ranks[rank]
            # What a rank leaves behind in its group goes with it.
            self._signal(process, signal.SIGKILL)
            self.ended[rank] = exit_code_of(code)
            if code != 0:
                self._fail(exit_code_of(code), f"rank {rank} ended with {exit_code_of(code)}")
        bury({process.pid for process in self.ranks.values()})

    def _fail(self, code: int, reason: str) -> None:
        if self.verdict is None:
            self.verdict, self.reason = code, self.reason or reason
            self.stop(float(self.task["grace_s"]))

    def stop(self, grace_s: float) -> None:
        """SIGTERM now, SIGKILL after the grace."""
        if self.kill_at is None or grace_s == 0.0:
            self.kill_at = time.monotonic() + grace_s
            for process in self.ranks.values():
                self._signal(process, signal.SIGTERM)

    def kill_if_due(self) -> None:
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            for process in self.ranks.values():
                self._signal(process, signal.SIGKILL)

    @staticmethod
    def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
        # The group's id is the process's own: each rank began a session.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


def watch(gang: Gang, lifeline: bool) -> None:
    """Until every rank has ended: on signals and on the lifeline, without polling."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.set_blocking(read, False)
    signal.set_wakeup_fd(write)
    asked: list[int] = []
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in STOPS:
        signal.signal(number, lambda got, _: asked.append(got))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    with selectors.DefaultSelector() as selector:
        selector.register(read, selectors.EVENT_READ)
        if lifeline:
            selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        gang.start()
        gang.reap()
        while gang.ranks:
            wait_s = 5.0 if gang.kill_at is None else max(0.01, min(5.0, gang.kill_at - time.monotonic()))
            for key, _ in selector.select(wait_s):
                data = os.read(key.fd, 4096)
                if key.fd != read and not data:
                    selector.unregister(key.fd)
                    gang.reason = gang.reason or "the process that started it is gone"
                    gang.verdict = gang.verdict or 128 + signal.SIGKILL
                    gang.stop(0.0)
            if asked:
                gang.reason = gang.reason or "stopped"
                gang.stop(float(gang.task["grace_s"]))
            gang.kill_if_due()
            gang.reap()


def supervise(folder: Path, lifeline: bool) -> int:
    """The whole life of an attempt here; returns its exit code."""
    task = read_json(folder / "task.json")
    reserve_room(folder)
    adopt_orphans()
    gang = Gang(folder, task)
    watch(gang, lifeline)
    kill_descendants()
    kill_marked(OWN, gang.mark)
    code = gang.verdict if gang.verdict is not None else 0
    outcome = {"exit_code": code, "reason": gang.reason, "ranks": gang.ended, "ended": time.time()}
    keep_outcome(folder, str(task.get("token", "")), outcome)
    return code


def main() -> int:
    folder = Path(sys.argv[1])
    if "--lifeline" in sys.argv:
        return supervise(folder, lifeline=True)
    # A daemon: the caller returns once the claim is made, and has no child to wait for.
    read, write = os.pipe()
    if os.fork():
        os.close(write)
        return 0 if os.read(read, 1) == b"1" else 3
    os.close(read)
    # From the claim on we can be asked to stop.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    if not write_once(folder / "claim.json", process_identity(os.getpid())):
        os._exit(0)
    os.write(write, b"1")
    os.close(write)
    supervise(folder, lifeline=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
