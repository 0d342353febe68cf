"""What the columns of tables mean: under a table with `--legend`, and folded under each table of a page."""

from collections.abc import Sequence

MEANINGS: dict[str, str] = {
    # of jobs and runs
    "job": "the job's name in the file",
    "state": "pending: not yet arrived; waiting: has no slots; starting, running; done, failed, stopped or cancelled",
    "slots": "GPUs, or places for a process, that it asks for",
    "servers": "where its ranks are, and how many slots it has on each",
    "iteration": "steps done of those asked for; told by the job, or counted in its rank 0",
    "rate": "iterations a second",
    "predicted": "time of an iteration by the model",
    "measured": "time of an iteration as it came out",
    "error": "measured over predicted, minus 1",
    "path": "how its gradients go: switch (summed in the switch), custodian (summed by a worker), ring (over Gloo), "
    "host (in one server's memory)",
    "expected end": "by the last plan, or by the job's own pace since",
    "arrived": "after the run's start",
    "started": "when its first attempt got slots",
    "ended": "when its last attempt ended",
    "attempts": "how often it was started: again after a lost server, or where retries allow it",
    # of plans and simulations
    "policy": "who decides: about places in a plan, about switch memory in a simulation",
    "makespan": "from the first arrival to the last end",
    "JCT": "job completion time: from a job's arrival to its end",
    "average JCT": "mean over the jobs of the time from arrival to end",
    "avg JCT": "mean over the jobs of the time from arrival to end",
    "p95 JCT": "the time within which 95 of 100 jobs are complete",
    "GPUs busy": "share of all GPU time, until the makespan, that jobs held",
    "gap to bound": "makespan over a bound that no schedule can beat, minus 1",
    "time to plan": "how long the policy took to decide",
    "change": "what was changed for the question",
    "change of makespan": "against the plan without the change",
    "change of JCT": "against the plan without the change",
    "vs best": "average JCT over the best policy's here",
    "memory used": "share of the switches' aggregators that were held, averaged over time",
    "completions": "sums that were completed in a switch",
    "preemptions": "times that a chunk took the aggregator of another, whose partial sum left for its custodian",
    "fallbacks": "packets that found no aggregator, and were summed by a custodian: slower, never wrong",
    "reminders": "times that a custodian asked a switch for what it held of a chunk",
    "downgrades": "failed tries that halved the priority of an aggregator's holder",
    "flushes": "partial sums given out to a packet that was sent again",
    "duplicates": "contributions that were there already, and not counted twice",
    "resent": "packets that were sent again",
    "traffic": "bytes over all links",
    "exact": "whether every result was, bit for bit, the sum over everyone, each once",
    # of the switch in a run
    "chunks summed": "pieces of gradients, a packet's worth each, whose sum was completed in the switch",
    "packets without a place": "packets that found no aggregator, and were summed by a custodian (fallbacks)",
    "preemptions by it": "aggregators that its chunks took from other chunks",
    "its lag": "how long after the first contribution to a chunk its own came, on average",
}


def meaning_of(column: str) -> str:
    """The meaning of a column, whatever its unit; empty where there is none to tell."""
    name = column.partition(",")[0].strip()
    return MEANINGS.get(name) or MEANINGS.get(column, "")


def legend(columns: Sequence[str]) -> list[tuple[str, str]]:
    """Those of the columns that have something to tell, in their order."""
    return [(column, meaning) for column in columns if (meaning := meaning_of(column))]
