"""From an `AgentConfig` to the records that the loop works on; and the loop compiled ahead, once a machine.

The loop takes a minute of processor time to compile. The workers of a host start together, and each would do it: on two
cores that is minutes. In `warm_up` they take turns instead: the first compiles, and whoever finds the compiled code on
disk loads it in a second.
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
from paceline.core.auth import key_words
from paceline.core.bits import bit
from paceline.core.numbers.layout import ELEMENTS_MIN, LAYOUT, lay_out
from paceline.core.sender.congestion import FIXED, QUEUE_NS, TOGETHER
from paceline.core.sender.program import start
from paceline.core.switch.memory import EARLY, POLICIES, POLICY_SWITCHML
from paceline.core.wire import HEADER_BYTES
from paceline.errors import UserError
from paceline.live.agent.config import AgentConfig
from paceline.live.agent.loop import run
from paceline.live.agent.state import (
    BY_CUSTODIANS,
    BY_SWITCH,
    EVENTS_KEPT,
    SHARDS_MAX,
    Loop,
    Roles,
    new_loop,
    new_roles,
)
from paceline.live.agent.tensors import sleep_while
from paceline.live.net.addresses import pack_address, resolve
from paceline.live.net.syscalls import address_of, close_waiter, new_waiter
from paceline.live.net.udp import fit

RTO_MIN_NS = 100_000_000
RTO_MAX_NS = 2_000_000_000
RTO_START_NS = 200_000_000
PATIENCE_NS = 20_000_000
PATIENCE_MIN_NS = 1_000_000
PATIENCE_MAX_NS = 1_000_000_000
PATIENCE_RTTS = 2.0
_HELP_PATIENCE_NS = 1_000_000_000
"""Sums that wait for a straggler alone are not asked for at once: thousands of questions fill a slow link."""
_HOLD_OFF_NS = 10_000_000_000
REORDER_CHUNKS = 64
"""Shards and GRO change the order by up to this many chunks."""
_SPAN_MIN = 64
_SPAN_MAX = 16384

TELL_S = 10.0
_once = threading.Lock()
_done = False


def build(config: AgentConfig, fd: int) -> Loop:
    """The state of an agent at its beginning."""
    pool = POLICIES[config.policy] == POLICY_SWITCHML
    window = max(8, config.window_bytes // (HEADER_BYTES + 4 * config.elements))
    if pool:
        span = window = config.slots
    else:
        window = min(window, _SPAN_MAX // 4)
        # Room behind a chunk that is late, so that one loss does not stop the stream.
        span = max(_SPAN_MIN, 1 << (4 * window - 1).bit_length())
    chunk_bytes = HEADER_BYTES + 4 * config.elements
    budget = 0
    if config.straggler != "off":
        # Less than the window would hold leaders back further than no help does.
        budget = min(max(config.budget_bytes // chunk_bytes, window), _SPAN_MAX)
        span = max(span, 1 << (budget - 1).bit_length())
    racks = list(config.racks) or [0] * config.workers
    roles = _new_roles(config, racks, chunk_bytes)
    loop = new_loop(
        config.tensors_max, span, config.elements, max(racks) + 1, config.workers, new_waiter(fd), roles
    )
    fit(loop.outbox, fd)
    _fill_control(loop, config, pool)
    _fill_sender(loop, config, racks, span, window, pool)
    _fill_custodian(loop, config, racks, pool)
    loop.senders.state[0].budget = budget
    return loop


def _new_roles(config: AgentConfig, racks: list[int], chunk_bytes: int) -> Roles:
    theta = max(1, config.straggler_theta_bytes // chunk_bytes)
    windows, clean = config.straggler_windows, config.straggler_clean
    roles = new_roles(config.workers, EVENTS_KEPT, theta, windows, clean)
    roles.racks[:] = racks
    watch = roles.watch[0]
    watch.helps = int(config.straggler != "off")
    watch.watches = int(watch.helps and config.worker == 0 and config.workers > 1)
    watch.window_ns = max(1_000_000, int(config.straggler_window_s * 1e9))
    watch.patience_ns = _HELP_PATIENCE_NS
    return roles


def _fill_control(loop: Loop, config: AgentConfig, pool: bool) -> None:
    control = loop.control[0]
    control.key0, control.key1 = key_words(config.key)
    control.silence_ns = int(config.silence_s * 1e9)
    control.hold_off_ns = _HOLD_OFF_NS
    control.workers, control.worker = config.workers, config.worker
    control.job, control.elements = config.job, config.elements
    control.next_job = config.job
    control.full = int(config.auth == "full")
    control.pool = int(pool)
    control.all_workers = np.uint64((1 << config.workers) - 1)
    # Under ATP the workers' resends drive everything. With custody they do not: what is counted is not sent again.
    control.reminds = int(config.policy in EARLY or (config.policy == "atp" and config.straggler != "off"))
    control.source_shard = control.source_peer = -1
    control.path = BY_CUSTODIANS if config.switch is None else BY_SWITCH
    for worker, (host, port) in enumerate(config.peers):
        loop.peers[worker] = pack_address(resolve(host), port)
    if config.switch is not None:
        host, ports = config.switch
        if len(ports) > SHARDS_MAX:
            raise UserError(f"at most {SHARDS_MAX} ports", place="agent switch")
        loop.switch[: len(ports)] = [pack_address(resolve(host), port) for port in ports]
        control.shards = len(ports)
        control.switch_allowed = 1


def _fill_sender(
    loop: Loop, config: AgentConfig, racks: list[int], span: int, window: int, pool: bool
) -> None:
    sender = loop.senders.state[0]
    rack = racks[config.worker]
    sender.job, sender.worker, sender.rack, sender.epoch = config.job, config.worker, rack, config.epoch
    sender.mask = bit(racks[: config.worker].count(rack))
    sender.fan_in, sender.fan_in_upper = racks.count(rack), len(set(racks))
    sender.count = config.elements
    sender.slots = config.slots
    sender.span = span
    sender.pool = int(pool)
    sender.flush = int(not pool)
    sender.congestion = FIXED if pool else TOGETHER
    sender.in_order = sender.inquires = int(not pool)
    sender.queue_ns = QUEUE_NS
    sender.minds_memory = int(config.policy in EARLY)
    sender.increase = max(1.0, window / 64)
    sender.window_max, sender.window_min = float(window), min(8.0, float(window))
    sender.rto_min_ns, sender.rto_max_ns = RTO_MIN_NS, RTO_MAX_NS
    sender.reorder_chunks, sender.reorder_rtts = REORDER_CHUNKS, 2.0
    # A late worker is waited for until the deadline, which `path` keeps.
    sender.resends_max = 1 << 30
    start(loop.senders, 0, float(window if pool else min(window, config.window_start)), RTO_START_NS)


def _fill_custodian(loop: Loop, config: AgentConfig, racks: list[int], pool: bool) -> None:
    custodian = loop.custodians.state[0]
    custodian.job, custodian.endpoint, custodian.epoch = config.job, config.worker, config.epoch
    custodian.ring = loop.custodians.chunks.shape[1]
    custodian.reminders = int(loop.control[0].reminds and config.switch is not None)
    custodian.pulls = int(not pool)
    custodian.eager = 1
    custodian.fan_in_upper = len(set(racks))
    custodian.count = config.elements
    custodian.slots = config.slots
    custodian.patience_ns, custodian.patience_max_ns = PATIENCE_NS, PATIENCE_MAX_NS
    custodian.patience_min_ns, custodian.patience_rtts = PATIENCE_MIN_NS, PATIENCE_RTTS
    custodian.reorder_chunks = REORDER_CHUNKS
    for rack in set(racks):
        loop.custodians.fan_in[0, rack] = racks.count(rack)


def warm_up() -> None:
    """Compile the agent's loop, or load it; says so where it takes long."""
    global _done
    with _once:
        if _done or interpreted():
            return
        if is_on_disk(run):
            _compile()  # loads; nobody has to wait for whoever else loads
            _done = True
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
    loop = build(config, -1)
    loop.control[0].stop = 1
    run(loop)
    close_waiter(loop.waiter)
    layout = np.zeros(1, dtype=LAYOUT).view(np.recarray)[0]
    lay_out(layout, 1, 0, 0, ELEMENTS_MIN, 1, 32)
    word = np.zeros(1, dtype=np.int32)
    sleep_while(address_of(word), 1, 0.0)


if __name__ == "__main__":
    warm_up()
