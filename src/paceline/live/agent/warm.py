"""Compile the agent once a machine, not once a process: the first to come compiles, the others wait and load.

The loop takes a minute of processor time to compile. The workers of a host start together, and each would do it: on two
cores that is minutes. They take turns instead; whoever finds the compiled code on disk loads it in a second.
"""

import contextlib
import fcntl
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np

from paceline.compile.cache import folder_of, is_on_disk
from paceline.compile.decorators import interpreted
from paceline.core.numbers.layout import ELEMENTS_MIN, LAYOUT, lay_out
from paceline.live.agent import setup
from paceline.live.agent.config import AgentConfig
from paceline.live.agent.loop import run
from paceline.live.agent.wait import sleep_while
from paceline.live.net.libc import address_of
from paceline.live.net.wait import close_waiter

TELL_S = 10.0
_once = threading.Lock()
_done = False


def warm_up() -> None:
    """Compile the agent's loop, or load it; says so where it takes long."""
    global _done
    with _once:
        if _done or interpreted():
            return
        folder = folder_of(run)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "agent.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with told("waiting for another process of this machine, which compiles the agent"):
                    fcntl.flock(file, fcntl.LOCK_EX)
            if is_on_disk(run):
                _compile()
            else:
                with told("compiling the agent, once a machine (a minute or more)"):
                    _compile()
        _done = True


@contextlib.contextmanager
def told(what: str, every_s: float = TELL_S) -> Iterator[None]:
    """Say what takes long, at once and from time to time, with the seconds so far."""
    over, begin = threading.Event(), time.monotonic()

    def tell() -> None:
        while not over.wait(every_s):
            print(f"paceline: {what}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)

    print(f"paceline: {what} ...", file=sys.stderr, flush=True)
    thread = threading.Thread(target=tell, name="paceline-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _compile() -> None:
    """Run everything that is called from Python, on an agent that stops at once."""
    config = AgentConfig(0, 1, [("127.0.0.1", 9)], 0, bytes(16), elements=ELEMENTS_MIN, window_bytes=4096)
    loop = setup.build(config, -1)
    loop.control[0].stop = 1
    run(loop)
    close_waiter(loop.waiter)
    layout = np.zeros(1, dtype=LAYOUT).view(np.recarray)[0]
    lay_out(layout, 1, 0, 0, ELEMENTS_MIN, 1)
    word = np.zeros(1, dtype=np.int32)
    sleep_while(address_of(word), 1, 0.0)


if __name__ == "__main__":
    warm_up()
