"""A closed place for an emulated cluster: network, mount and process namespaces that end with the command inside.

`python -m paceline.emulation.enclosure COMMAND...` runs the command there. Three processes stand in a row:

    keeper (outside)  ->  init (process 1 inside)  ->  the command, and whatever it starts

**Nothing stays behind, because the kernel cleans.** The keeper's death kills init, whatever killed the keeper; the end
of init kills every process inside; with the last of them go the namespaces, their interfaces, and the private file
systems over /dev/shm and over the list of named network namespaces. No name of ours is ever seen outside, but for
control groups of servers with limited processors: the keeper removes them, or the next one does.

Root makes the namespaces directly. Anybody else does so as root of a new user namespace, where the kernel allows that.
The command finds `PACELINE_ENCLOSED` in its environment: `as root` or `in a user namespace`.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from paceline.emulation import processors
from paceline.emulation.namespaces import own_name
from paceline.errors import EXIT_USAGE

MARK = "PACELINE_ENCLOSED"
AS_ROOT, AS_USER = "as root", "in a user namespace"
TOOLS = ("ip", "tc", "nsenter")
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x20000, 0x10000000, 0x20000000, 0x40000000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_PR_SET_PDEATHSIG = 1
_NAMED = Path("/run/netns")


def enclosed() -> str:
    """How this process was enclosed: `as root`, `in a user namespace`, or nothing."""
    return os.environ.get(MARK, "")


def enter(command: list[str]) -> None:
    """Become the keeper of the command, in place of this program."""
    own = [sys.executable, "-m", "paceline.emulation.enclosure", *command]
    os.execv(sys.executable, own)


def keep(command: list[str]) -> int:
    """The keeper: make the place, start its init, hand on signals; the command's exit code."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return _refuse(f"it needs the command {missing[0]!r} (packages iproute2 and util-linux)")
    try:
        how = _unshare()
    except OSError as error:
        return _refuse(f"it needs root, or a kernel that lets users make namespaces ({error.strerror})")
    keeper, groups = own_name(""), processors.parent()
    os.environ[processors.KEEPER] = keeper
    processors.remove_leftovers()
    lifeline, held = os.pipe()
    # A signal that comes before its handler is there waits for it: process 1 would never see it otherwise.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    init = os.fork()
    if init == 0:
        os.close(held)
        os._exit(_init(command, how, lifeline))
    os.close(lifeline)
    code = _hand_on_until_end(init)
    processors.remove_own(keeper, groups)
    return code


def _refuse(why: str) -> int:
    print(f"paceline: --network emulated: no emulated network can be made here: {why}", file=sys.stderr)
    return EXIT_USAGE


def _unshare() -> str:
    """Leave the namespaces that we are in; processes started from here on are inside."""
    wanted = _CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWNET
    if os.geteuid() == 0 and _LIBC.unshare(wanted) == 0:
        return AS_ROOT
    user, group = os.geteuid(), os.getegid()
    _check(_LIBC.unshare(wanted | _CLONE_NEWUSER))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    return AS_USER


def _init(command: list[str], how: str, lifeline: int) -> int:
    """Process 1: private mounts, the command, and a wait for whatever ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if select.select([lifeline], [], [], 0)[0]:
        return 1  # the keeper died before this process could ask to be killed with it
    os.setsid()  # Ctrl-C on a terminal reaches the keeper alone, which hands it on once
    try:
        _mount()
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return _refuse(f"{error}")
    child = os.fork()
    if child == 0:
        os.environ[MARK] = how
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            print(f"paceline: {command[0]}: {error.strerror}", file=sys.stderr)
            os._exit(127)
    return _hand_on_until_end(child)


def _hand_on_until_end(child: int) -> int:
    """Hand signals on to this child until it ends, reap orphans; its exit code as a shell tells it."""
    for number in _FORWARDED:
        signal.signal(number, lambda got, _: os.kill(child, got))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _mount() -> None:
    _check(_LIBC.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "/")
    _check(_LIBC.mount(b"proc", b"/proc", b"proc", 0, None), "/proc")
    try:
        _NAMED.mkdir(exist_ok=True)
        named = _NAMED
    except OSError:
        named = _NAMED.parent  # not ours to write: all of /run is hidden instead
    for folder in (named, Path("/dev/shm")):
        _check(_LIBC.mount(b"none", os.fsencode(folder), b"tmpfs", 0, None), str(folder))
    _NAMED.mkdir(exist_ok=True)


def _check(result: int, what: str = "") -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what or None)


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]))
