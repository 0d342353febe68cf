"""What a coordinator tells a worker or a job: the entry points from Python into the compiled hosts."""

from paceline.compile.decorators import compiled
from paceline.core.sender.program import NEVER_NS
from paceline.sim.engine.event_queue import set_time
from paceline.sim.engine.world import ABSENT, BACKWARD, FORWARD, TIMERS, World
from paceline.sim.hosts.compute import begin_backward, begin_exchange, begin_micro_batch, end_job, fail_job

ANOTHER = 0
"""Compute another micro-batch."""
NOT_LAST = 1
"""The backward pass of a micro-batch after which another one may come."""
LAST = 2
"""The backward pass of the last micro-batch: gradients leave layer by layer."""
SEND = 3
"""Nothing more to compute: all gradients of this iteration leave at once."""
WAKE = 4
"""Look at the timers again; there may be something to send."""
STOP = 5
"""The worker is gone."""


@compiled
def tell_worker(world: World, w: int, what: int, now_ns: int) -> None:
    """Give one worker its next step, and set its timer."""
    worker = world.workers[w]
    due_ns = now_ns
    if what == ANOTHER:
        begin_micro_batch(world, w, now_ns)
    elif what == NOT_LAST:
        begin_backward(world, w, False, now_ns)
    elif what == LAST:
        begin_backward(world, w, True, now_ns)
    elif what == SEND:
        if worker.phase == FORWARD:
            begin_exchange(world, w)
        worker.phase = BACKWARD
        worker.layer = 0
        worker.released = world.jobs[worker.job].layers - 1
        worker.piece_ns = 0
        worker.due_ns = now_ns
    elif what == STOP:
        worker.phase = ABSENT
        worker.due_ns = NEVER_NS
        due_ns = NEVER_NS
    if what != WAKE and what != STOP:
        due_ns = min(worker.due_ns, world.senders.state[w].timer_ns)
    set_time(world.queue, world.control[TIMERS] + w, due_ns)


@compiled
def tell_job(world: World, j: int, failed: bool, now_ns: int) -> None:
    """The job has failed, or all that are left have finished."""
    if failed:
        fail_job(world, j, now_ns)
    else:
        end_job(world, j, now_ns)
