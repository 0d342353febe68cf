"""What packets carry when results are checked: integers that tell jobs, workers, micro-batches and lanes apart.

A worker's contribution is the sum over its micro-batches, no matter which worker computes them. A helper's packet
holds its own contribution and the micro-batches that it took over; a result must be the sum over all workers, each
whole.
"""

import numpy as np

from paceline.compile.decorators import compiled_apart, compiled_inner
from paceline.core.bits import bit
from paceline.sim.engine.world import World

_PART_SHIFT = 6
"""Parts are smaller than contributions, so that no sum of them leaves 32 bits."""


@compiled_inner
def contribution(job: int, rank: int, chunk: int, lane: int) -> int:
    """What a worker contributes to a chunk: any number that tells workers, chunks and lanes apart."""
    h = (np.int64(rank) + 1) * 0x2545F491 + (np.int64(job) + 1) * 0x27D4EB2F + lane * 0x165667B1
    h = (h ^ (np.int64(chunk) * 0x9E3779B1)) & 0x7FFFFFFF
    h = ((h ^ (h >> 15)) * 0x2C1B3C6D) & 0x7FFFFFFF
    h = ((h ^ (h >> 13)) * 0x297A2D39) & 0x7FFFFFFF
    return int(((h ^ (h >> 16)) & 0x1FFFFFF) - 0x1000000)


@compiled_inner
def first_bit(m: int, micro_batches: int) -> int:
    """Where micro-batch `m` begins in a share of 64 bits."""
    return 64 * m // micro_batches


@compiled_apart
def part(job: int, rank: int, m: int, micro_batches: int, chunk: int, lane: int) -> int:
    """What micro-batch `m` adds to a worker's contribution; all of them together are the contribution."""
    if m + 1 < micro_batches:
        return int(contribution(job + 7919 * (m + 1), rank, chunk, lane) >> _PART_SHIFT)
    rest = contribution(job, rank, chunk, lane)
    for other in range(micro_batches - 1):
        rest -= contribution(job + 7919 * (other + 1), rank, chunk, lane) >> _PART_SHIFT
    return int(rest)


@compiled_apart
def fill_helped(world: World, w: int, p: int) -> None:
    """The values of a packet of a worker that helps or is helped: whole contributions, and shares of others."""
    worker = world.workers[w]
    job = world.jobs[worker.job]
    chunk = world.pool.packets[p].chunk
    for lane in range(world.pool.values.shape[1]):
        total = 0
        for rank in range(job.workers):
            if worker.carries & bit(rank):
                total += contribution(worker.job, rank, chunk, lane)
            elif rank < world.shares.shape[1] and world.shares[w, rank] != np.uint64(0):
                for m in range(job.micro_batches):
                    if world.shares[w, rank] & bit(first_bit(m, job.micro_batches)):
                        total += part(worker.job, rank, m, job.micro_batches, chunk, lane)
        world.pool.values[p, lane] = total


@compiled_apart
def check_result(world: World, w: int, p: int) -> None:
    """Compare a new result with the true sum, and keep it for those whose copy was lost.

    Workers that a policy left out of this iteration are expected to be missing: the job is marked inexact for it.
    """
    packet = world.pool.packets[p]
    worker = world.workers[w]
    job = world.jobs[worker.job]
    place = packet.chunk % world.held.shape[1]
    out = world.left_out[worker.job, (packet.chunk // job.chunks) & 1]
    job.checked += 1
    right = True
    for lane in range(world.pool.values.shape[1]):
        total = 0
        for rank in range(job.workers):
            if out == np.uint64(0) or not out & bit(rank):
                total += contribution(worker.job, rank, packet.chunk, lane)
        world.held[w, place, lane] = world.pool.values[p, lane]
        right &= world.pool.values[p, lane] == total
    if not right:
        job.wrong += 1
