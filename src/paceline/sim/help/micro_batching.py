"""Which iterations of a job are cut into micro-batches; whether that pays is the core's to say.

Exposed communication is noticed while it happens: everyone has computed, everyone waits, and longer than expected.
The iteration that they wait to begin is then not cut, nor are the next ones, so a slow link costs one iteration's
exchange and no more.
"""

from paceline.core.help.detect import BANDWIDTH_STRAGGLER, COMPUTE_STRAGGLER
from paceline.core.help.ledger import Ledgers
from paceline.core.help.micro_batching import CutPolicy, JobTimes
from paceline.core.wire import ENVELOPE_BYTES, HEADER_BYTES
from paceline.sim.build.arrays import NO_ITERATION, Setup
from paceline.sim.engine import world as w
from paceline.sim.help.watch import HelpedJob, ProgressWatch


class MicroBatching:
    """That of one job."""

    def __init__(self, setup: Setup, job: HelpedJob, watch: ProgressWatch, ledgers: Ledgers) -> None:
        self._job, self._watch, self._ledgers = job, watch, ledgers
        self.policy = CutPolicy(_times_of(setup, job))
        self._changed_at = 0
        self._judged_at = 0
        self._began_ns = 0
        self._blocked_ns = job.workers.blocked_ns.copy()
        """How long workers had waited for results, before the wait that they are in."""
        if job.spec.takes_over and not self.policy.is_free():
            self.cut(False)

    def cuts(self) -> bool:
        """Are the iterations to come cut?"""
        return bool(self._job.record.cut_until == NO_ITERATION)

    def cut(self, wanted: bool) -> None:
        """From the next iteration that nobody has begun."""
        job = self._job
        after = max((job.iteration_of(rank) for rank in job.alive()), default=0)
        first = after + 1 if job.record.started else 0
        if wanted == self.cuts():
            return
        if wanted:
            job.record.cut_from, job.record.cut_until = first, NO_ITERATION
        else:
            job.record.cut_until = first
        self._changed_at = first

    def end_window(self, now_ns: int) -> None:
        job = self._job
        moving = job.workers.phase != w.BLOCKED
        self._blocked_ns[moving] = job.workers.blocked_ns[moving]
        if job.spec.takes_over:
            self._check_exchange(now_ns)

    def _check_exchange(self, now_ns: int) -> None:
        """Everyone has computed an iteration that was cut, and waits: longer than expected?"""
        job, record = self._job, self._job.record
        iteration = self._watch.iteration
        alive = job.alive()
        waiting = job.workers[alive]
        last = iteration - 1
        if (
            record.helping
            or not record.cut_from <= last < record.cut_until
            or (waiting.iteration != iteration).any()
            or (waiting.phase != w.BLOCKED).any()
            or (waiting.layer != 0).any()
            or (waiting.cut == 1).all()
        ):
            return
        since_ns = int((self._blocked_ns[alive] - waiting.blocked_ns).max())
        longest_ns = self.policy.longest_wait_ns()
        if now_ns - since_ns < longest_ns:
            job.plan(since_ns + int(longest_ns) + 1, self._check_exchange)
            return
        for rank in alive:
            job.workers[rank].cut = 1
        record.cut_until, self._changed_at = iteration, iteration
        until = self.policy.note_exposed(iteration)
        job.say(
            now_ns,
            "takeover",
            None,
            f"iterations {iteration} to {until - 1} are not cut: everyone has waited for "
            f"{(now_ns - since_ns) * 1e-6:.3g} ms for the results of iteration {last}, and "
            f"{self.policy.expected_wait_ns() * 1e-6:.3g} ms were expected",
        )

    def consider(self, now_ns: int) -> bool:
        """Cut the iterations to come, or do not; True if there is anything new in that."""
        job, policy = self._job, self.policy
        if not job.spec.takes_over:
            return False
        roles = self._watch.roles()
        before = policy.pays, int(job.record.cut_until)
        policy.set_stragglers(tuple(rank for rank, role in roles.items() if role == COMPUTE_STRAGGLER))
        for rank in policy.stragglers:
            self._note_slowness(rank)
        self._note_times(now_ns)
        if job.dead:
            policy.pays = True
        elif reason := policy.judge_help():
            job.say(now_ns, "takeover", None, reason)
        if min((job.iteration_of(rank) for rank in job.alive()), default=0) >= self._changed_at:
            # One change at a time: all workers of an iteration do the same.
            held_up = BANDWIDTH_STRAGGLER in roles.values()
            self.cut(bool(job.dead) or policy.wants_cut(self._watch.iteration, held_up))
        return (policy.pays, int(job.record.cut_until)) != before

    def _note_times(self, now_ns: int) -> None:
        """Keep how long the last iteration took."""
        record, iteration = self._job.record, self._watch.iteration
        if iteration <= self._judged_at:
            return
        was_cut = bool(record.cut_from <= self._judged_at < record.cut_until)
        took_ns = now_ns - max(self._began_ns, int(record.started_ns))
        if self._judged_at == 0:
            # It ended with its computation, and did not wait for an exchange before.
            took_ns += round(self.policy.times.exposed_ns(self._job.spec.parts if was_cut else 1))
        if iteration == self._judged_at + 1 and not (was_cut and self._judged_at == 0):
            self.policy.note_iteration(was_cut, took_ns)
        self._judged_at, self._began_ns = iteration, now_ns

    def _note_slowness(self, rank: int) -> None:
        """How far a straggler has come in its iteration by itself, against the leaders' median."""
        job, detection = self._job, self._watch.detection
        began = job.iteration_of(rank) * job.chunks
        given = (
            job.chunks * self._ledgers.given_in(rank, job.iteration_of(rank)) * job.unit_ns // job.compute_ns
        )
        done = int(detection.workers[rank].computed) - began - given
        self.policy.note_slowness(rank, done, int(detection.median[1]) - began, job.chunks)


def _times_of(setup: Setup, job: HelpedJob) -> JobTimes:
    network = setup.scenario.network
    packet_ns = 8 * (4 * network.elements + HEADER_BYTES + ENVELOPE_BYTES) / network.rate * 1e9
    return JobTimes(
        workers=job.n,
        micro_batches=job.spec.parts,
        forward_ns=int(job.record.forward_ns),
        backward_ns=int(job.record.backward_ns),
        exchange_ns=job.chunks * packet_ns,
        round_trip_ns=network.links_of_a_round_trip * (network.delay + packet_ns),
    )
