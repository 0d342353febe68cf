"""What a worker computes: layer by layer, micro-batch by micro-batch.

An iteration is cut into micro-batches whose gradients add up. The forward pass of the first one goes through the
layers in order, each waiting for its own result of the iteration before; the backward pass of the last one goes
back and releases each layer's gradient as it is computed. What lies between is computed in whole passes: nothing
waits for it and nothing leaves. With one micro-batch, the default, there is nothing between. A job need not cut all
of its iterations (`sim/help/micro_batching.py`): those from `cut_from` on, before `cut_until`, are.

While leading workers help a straggler (`job.helping`), a worker asks its coordinator after each pass what comes
next: the mail is read between two events, by `sim/help/coordinator.py`. The answer comes through `tell_worker`, the
entry point from Python.

Where all servers are one machine (`hosts.cores`), passes that need a processor share its cores: a pass of a layer
begins when a core is free.
"""

from paceline.compile.decorators import compiled, compiled_apart, compiled_inner
from paceline.core.bits import mix
from paceline.core.sender import program as sending
from paceline.core.sender.program import NEVER_NS
from paceline.core.switch.program import release_job
from paceline.sim.engine.event_queue import set_time
from paceline.sim.engine.world import (
    ABSENT,
    ASKING,
    BACKWARD,
    BLOCKED,
    CLOCK,
    DDP,
    DRAINING,
    FINISHED,
    FORWARD,
    FORWARD_DONE,
    JITTER_SEED,
    JOBS_LEFT,
    MAIL,
    MICRO_BACKWARD,
    MICRO_BATCH_DONE,
    MICRO_FORWARD,
    RING,
    TIMERS,
    World,
    free_core,
    overhead_ns,
    work_on_core,
)
from paceline.sim.hosts import ring

MILLION = 1_000_000

# What a coordinator tells a worker.
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


@compiled_inner
def _compute_ns(world: World, w: int, nominal_ns: int, now_ns: int) -> int:
    """Compute time of this worker from now on: its slowness, a seeded jitter, and a spell that may end within."""
    worker = world.workers[w]
    time_ns = nominal_ns * worker.slow_num // worker.slow_den
    if worker.jitter_num > 0:
        noise = mix(world.control[JITTER_SEED], w * 1_000_003 + worker.iteration)
        time_ns += time_ns * (worker.jitter_num * (noise & 0xFFFF) >> 16) // MILLION
    if worker.spell_until_ns > now_ns:
        factor = world.jobs[worker.job].spell_num
        left_ns = worker.spell_until_ns - now_ns
        stretched_ns = time_ns * factor // MILLION
        time_ns = stretched_ns if stretched_ns <= left_ns else left_ns + time_ns - left_ns * MILLION // factor
    return int(max(1, time_ns))


@compiled_inner
def _start_piece(world: World, w: int, nominal_ns: int, now_ns: int) -> None:
    worker = world.workers[w]
    worker.piece_ns = nominal_ns
    core = free_core(world) if worker.processor_num > 0 else -1
    if core < 0:
        worker.due_ns = now_ns + _compute_ns(world, w, nominal_ns, now_ns)
        return
    begin_ns = max(now_ns, world.computing_ns[core])
    time_ns = _compute_ns(world, w, nominal_ns, begin_ns)
    world.computing_ns[core] = begin_ns + time_ns * worker.processor_num // MILLION
    worker.due_ns = begin_ns + time_ns


@compiled_apart
def begin_iteration(world: World, w: int, now_ns: int) -> None:
    """The first forward pass of `worker.iteration`; here a slow spell may begin."""
    worker = world.workers[w]
    job = world.jobs[worker.job]
    worker.released = 0
    worker.micro = 0
    is_cut = job.cut_from <= worker.iteration and worker.iteration < job.cut_until
    worker.cut = job.micro_batches if is_cut else 1
    worker.work_ns = 0
    worker.layer = 0
    if job.spell_chance > 0 and worker.spell_until_ns <= now_ns:
        noise = mix(world.control[JITTER_SEED] + 1, w * 1_000_003 + worker.iteration)
        if noise & 0xFFFF < job.spell_chance:
            more_ns = (job.spell_high_ns - job.spell_low_ns) * (noise >> 16) // 0x7FFF
            worker.spell_until_ns = now_ns + job.spell_low_ns + more_ns
    _begin_forward(world, w, now_ns)


@compiled_inner
def _is_missing(world: World, w: int) -> bool:
    """Has a result that the forward pass of `worker.layer` waits for not come?"""
    worker = world.workers[w]
    if world.jobs[worker.job].overlap == DDP:
        return bool(worker.remaining > 0)
    return bool(world.pending[w, worker.layer] > 0)


@compiled_inner
def _begin_forward(world: World, w: int, now_ns: int) -> None:
    """Start the forward pass of `worker.layer`, or wait for its result."""
    worker = world.workers[w]
    if worker.iteration > 0 and _is_missing(world, w):
        worker.phase = BLOCKED
        worker.due_ns = NEVER_NS
        worker.blocked_ns -= now_ns
    else:
        worker.phase = FORWARD
        nominal_ns = world.layers[worker.job, worker.layer].forward_ns
        _start_piece(world, w, nominal_ns // worker.cut, now_ns)


@compiled_apart
def compute_done(world: World, w: int, now_ns: int) -> None:
    """A pass over one layer, or over a whole micro-batch, has ended: go on to the next."""
    worker = world.workers[w]
    job = world.jobs[worker.job]
    worker.work_ns += worker.piece_ns
    if worker.phase == FORWARD:
        if worker.layer + 1 < job.layers:
            worker.layer += 1
            _begin_forward(world, w, now_ns)
            return
        begin_exchange(world, w)
        _forward_done(world, w, now_ns)
    elif worker.phase == MICRO_FORWARD:
        _forward_done(world, w, now_ns)
    elif worker.phase == MICRO_BACKWARD:
        worker.micro += 1
        if job.helping != 0:
            _ask(world, w, MICRO_BATCH_DONE, now_ns)
        else:
            begin_micro_batch(world, w, now_ns)
    else:
        _layer_done(world, w, now_ns)


@compiled_apart
def begin_exchange(world: World, w: int) -> None:
    """All results of the iteration before are here: those of this one are awaited now."""
    worker = world.workers[w]
    job = world.jobs[worker.job]
    worker.first_chunk = worker.iteration * job.chunks
    worker.remaining = job.chunks
    for layer in range(job.layers):
        world.pending[w, layer] = world.layers[worker.job, layer].chunks


@compiled_inner
def _forward_done(world: World, w: int, now_ns: int) -> None:
    """A forward pass is over: the last one's backward pass sends, the others' do not."""
    worker = world.workers[w]
    job = world.jobs[worker.job]
    if job.helping != 0:
        _ask(world, w, FORWARD_DONE, now_ns)
    else:
        begin_backward(world, w, worker.micro + 1 >= worker.cut, now_ns)


@compiled_inner
def _ask(world: World, w: int, what: int, now_ns: int) -> None:
    worker = world.workers[w]
    worker.phase = ASKING
    worker.due_ns = NEVER_NS
    at = world.control[MAIL]
    world.mail[at, 0] = what
    world.mail[at, 1] = w
    world.control[MAIL] = at + 1


@compiled_apart
def begin_micro_batch(world: World, w: int, now_ns: int) -> None:
    """The forward pass of another micro-batch."""
    worker = world.workers[w]
    job = world.jobs[worker.job]
    worker.phase = MICRO_FORWARD
    _start_piece(world, w, job.forward_ns // worker.cut, now_ns)


@compiled_apart
def begin_backward(world: World, w: int, last: bool, now_ns: int) -> None:
    """The backward pass: layer by layer if it is the last of the iteration, else in one piece."""
    worker = world.workers[w]
    job = world.jobs[worker.job]
    if last:
        worker.phase = BACKWARD
        worker.layer = job.layers - 1
        _start_layer(world, w, now_ns)
    else:
        worker.phase = MICRO_BACKWARD
        _start_piece(world, w, job.backward_ns // worker.cut, now_ns)


@compiled_apart
def _start_layer(world: World, w: int, now_ns: int) -> None:
    """What the exchange of a layer's gradient costs its worker, and the backward pass after which it goes."""
    worker = world.workers[w]
    job = world.jobs[worker.job]
    time_ns = world.layers[worker.job, worker.layer].backward_ns // worker.cut
    if job.overhead_ns > 0 and job.transport != RING and job.workers > 1:
        now_ns = work_on_core(world, overhead_ns(world, worker.job, worker.iteration), now_ns)
    _start_piece(world, w, time_ns, now_ns)


@compiled_inner
def _layer_done(world: World, w: int, now_ns: int) -> None:
    """The gradient of a layer is complete: release it."""
    worker = world.workers[w]
    job = world.jobs[worker.job]
    layer = world.layers[worker.job, worker.layer]
    worker.released += 1
    if job.workers == 1:
        layer_progress(world, w, worker.layer, layer.chunks, now_ns)
    elif job.transport == RING:
        ring.release(world, w)
    else:
        sending.release(world.senders, w, worker.first_chunk + layer.ready)
    if worker.layer > 0:
        worker.layer -= 1
        _start_layer(world, w, now_ns)
    elif worker.iteration + 1 < job.iterations:
        worker.iteration += 1
        begin_iteration(world, w, now_ns)
    else:
        worker.phase = DRAINING
        worker.due_ns = NEVER_NS
        if worker.remaining == 0:
            _finish_worker(world, w, now_ns)


@compiled_inner
def layer_progress(world: World, w: int, layer: int, chunks: int, now_ns: int) -> None:
    """Results of `chunks` chunks of a layer have come."""
    worker = world.workers[w]
    world.pending[w, layer] -= chunks
    worker.remaining -= chunks
    unblocks = worker.phase == BLOCKED and layer == worker.layer and world.pending[w, layer] <= 0
    if worker.phase == BLOCKED and world.jobs[worker.job].overlap == DDP:
        unblocks = worker.remaining == 0
    if unblocks or (worker.remaining == 0 and worker.phase == DRAINING):
        _advance(world, w, now_ns)


@compiled_apart
def _advance(world: World, w: int, now_ns: int) -> None:
    """What a worker waited for has come: its next layer, or its end."""
    worker = world.workers[w]
    if worker.phase == DRAINING:
        _finish_worker(world, w, now_ns)
    else:
        worker.blocked_ns += now_ns
        _begin_forward(world, w, now_ns)


@compiled_inner
def _finish_worker(world: World, w: int, now_ns: int) -> None:
    worker = world.workers[w]
    worker.phase = FINISHED
    worker.done_ns = now_ns
    job = world.jobs[worker.job]
    job.finished += 1
    if job.finished == job.needed:
        end_job(world, worker.job, now_ns)


@compiled_apart
def end_job(world: World, j: int, now_ns: int) -> None:
    """Everyone who is still there has everything."""
    world.jobs[j].done_ns = now_ns
    _leave(world, j, now_ns)


@compiled_apart
def fail_job(world: World, j: int, now_ns: int) -> None:
    """A worker gave up: the job ends without its result."""
    job = world.jobs[j]
    if job.done_ns == 0 and job.failed_ns == 0:
        job.failed_ns = now_ns
        _leave(world, j, now_ns)


@compiled_inner
def _leave(world: World, j: int, now_ns: int) -> None:
    """Leave the switches; what is still on its way finds nobody, and timers go quiet by themselves.

    The clock looks for jobs that waited for this one.
    """
    world.control[JOBS_LEFT] -= 1
    set_time(world.queue, world.control[CLOCK], now_ns)
    for s in range(world.switch.config.shape[0]):
        release_job(world.switch, s, j)


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
