"""The agent's loop: one compiled call that lasts as long as the agent, without the GIL.

Take what was submitted, take what has arrived, run the timers that are due, send what may be sent; then sleep
until the socket, a submission or a timer wakes it. Nothing spins: an idle agent uses no processor.
"""

from paceline.compile.decorators import compiled_inner, compiled_loop
from paceline.core.custodian import program as custody
from paceline.core.sender import program as sending
from paceline.core.sender.program import NEVER_NS
from paceline.live.agent.path import (
    custodian_round,
    handle_command,
    take_leave,
    watch_deadline,
    watch_progress,
    watch_switch,
)
from paceline.live.agent.receive import take_segment
from paceline.live.agent.roles import watch_workers
from paceline.live.agent.send import BATCH, pump
from paceline.live.agent.state import SEND_BLOCKED, WAITS, Loop
from paceline.live.agent.tensors import take_tasks
from paceline.live.net.syscalls import FOREVER_NS, now_ns, wait
from paceline.live.net.udp import flush, receive


@compiled_inner
def step(loop: Loop) -> bool:
    """One turn; True if there is more to do at once."""
    control = loop.control[0]
    fd = control.fd
    time_ns = now_ns(loop.waiter)
    if control.command != 0:
        handle_command(loop, time_ns)
    if control.head > control.taken:
        take_tasks(loop, time_ns)
    segments = receive(fd, loop.inbox)
    for i in range(segments):
        take_segment(loop, loop.inbox.segments[i], time_ns)
    if segments > 0:
        custody.follow(loop.custodians, 0, loop.senders.state[0])
    wake_ns = run_timers(loop, time_ns)
    control.blocked = 1 if flush(fd, loop.outbox) != 0 else 0
    sent = 0
    if control.blocked == 0:
        # Nothing new queues behind what the kernel had no room for: it would only age there, and time out.
        sent = pump(loop, time_ns)
        control.blocked = 1 if flush(fd, loop.outbox) != 0 else 0
    if control.blocked != 0:
        loop.counters[SEND_BLOCKED] += 1
    # How long a turn takes, when it takes long: a starved loop waits longer before it declares the switch dead.
    control.step_ns = max(now_ns(loop.waiter) - time_ns, control.step_ns - control.step_ns // 64)
    if segments > 0 or control.stop != 0 or (sent >= BATCH and control.blocked == 0):
        return True
    wake_ns = min(wake_ns, loop.senders.state[0].timer_ns)
    loop.counters[WAITS] += 1
    timeout_ns = FOREVER_NS if wake_ns >= NEVER_NS else max(0, wake_ns - time_ns)
    wait(loop.waiter, timeout_ns, control.blocked != 0)
    return False


@compiled_inner
def run_timers(loop: Loop, time_ns: int) -> int:
    """What is due now; when something is due next."""
    control = loop.control[0]
    sender = loop.senders.state[0]
    if sender.timer_ns <= time_ns:
        sending.handle_timeout(loop.senders, 0, time_ns)
    if loop.custodians.state[0].timer_ns <= time_ns:
        custodian_round(loop, time_ns)
    wake_ns = min(watch_switch(loop, time_ns), watch_deadline(loop, time_ns), watch_progress(loop, time_ns))
    if loop.roles.watch[0].watches != 0:
        wake_ns = min(wake_ns, watch_workers(loop, time_ns))
    if control.closing != 0:
        wake_ns = min(wake_ns, take_leave(loop, time_ns))
    return int(min(wake_ns, sender.timer_ns, loop.custodians.state[0].timer_ns))


@compiled_loop
def run(loop: Loop) -> None:
    """Until Python says stop, or the agent has taken its leave."""
    control = loop.control[0]
    while control.stop == 0 and control.left == 0:
        step(loop)
    flush(loop.control[0].fd, loop.outbox)
