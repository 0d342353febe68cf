"""What a late worker costs another job on its switch, with and without custody: `python -m benchmarks.custody_live`.

One job of three workers reduces int32 tensors, and its last worker comes late in every iteration. Another job reduces
without a pause. The switch has fewer aggregators than the two together use. With `off` and `custody` in turn,
several times, each for some seconds: aggregators that the waiting job holds, what the other job gets through the
switch, and how fast it is. Ratios are of neighbouring turns; the seconds of a single line mean little.
"""

import argparse
import statistics
import threading
import time
from typing import Any

import numpy as np

from tests.live.agents import Job, RunningSwitch, job_of, running_switch

WORKERS = 3
ELEMENTS = 352
CHUNK_BYTES = 64 + 4 * ELEMENTS


def _late_job(job: Job, lateness_s: float, chunks: int, stop: threading.Event) -> list[float]:
    """Iterations with a late worker, until told to stop; how long each took."""
    took = []
    while not stop.is_set():
        arrays = [np.ones(chunks * ELEMENTS, dtype=np.int32) for _ in range(WORKERS)]
        began = time.perf_counter()
        handles = [job.agents[worker].submit(arrays[worker]) for worker in range(WORKERS - 1)]
        time.sleep(lateness_s)
        handles.append(job.agents[-1].submit(arrays[-1]))
        for handle in handles:
            handle.wait(120)
        assert all((array == WORKERS).all() for array in arrays)
        took.append(time.perf_counter() - began)
    return took


def _other_job(job: Job, chunks: int, stop: threading.Event) -> int:
    """Reductions one after the other, until told to stop; how many."""
    count = 0
    arrays = [np.ones(chunks * ELEMENTS, dtype=np.int32) for _ in range(WORKERS)]
    while not stop.is_set():
        job.reduce(arrays)
        count += 1
    return count


def _counters(switch: RunningSwitch, job: Job) -> dict[str, int]:
    from paceline.core.switch.program import COUNTER_NAMES

    number = job.agents[0].config.job
    rows = [thread.shard.switch.counters[0, number] for thread in switch.switch.threads]
    return {name: int(sum(row[i] for row in rows)) for i, name in enumerate(COUNTER_NAMES)}


def measure(policy: str, mode: str, options: argparse.Namespace) -> dict[str, float]:
    """One turn of one mode."""
    memory = options.slots * (56 + 4 * ELEMENTS)
    with (
        running_switch(policy=policy, memory_bytes=memory) as switch,
        job_of(WORKERS, switch, straggler=mode, straggler_theta_bytes=32 * CHUNK_BYTES) as late,
        job_of(WORKERS, switch) as other,
    ):
        stop = threading.Event()
        took: list[float] = []
        waiting = threading.Thread(
            target=lambda: took.extend(_late_job(late, options.late, options.chunks, stop))
        )
        waiting.start()
        time.sleep(4 * options.late)
        before, began = _counters(switch, other), time.perf_counter()
        done = threading.Event()
        counted: list[int] = []
        running = threading.Thread(
            target=lambda: counted.append(_other_job(other, options.chunks // 4, done))
        )
        running.start()
        held = []
        number = late.agents[0].config.job
        while time.perf_counter() - began < options.seconds:
            held.append(sum(int(t.shard.switch.jobs[0, number].used) for t in switch.switch.threads))
            time.sleep(0.005)
        done.set()
        running.join(120)
        seconds = time.perf_counter() - began
        after = _counters(switch, other)
        stop.set()
        waiting.join(120)
        completed, fell = (after[name] - before[name] for name in ("completions", "fallbacks"))
        credits = late.agents[0].status()["counters"]["credits"]
        return {
            "held": statistics.mean(held),
            "in_switch": completed / max(1, counted[0] * (options.chunks // 4)),
            "fallbacks": fell / max(1, counted[0]),
            "other_per_s": counted[0] / seconds,
            "late_iteration_s": statistics.median(took),
            "credits": credits,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--late", type=float, default=0.5, help="seconds that the last worker is late")
    parser.add_argument("--slots", type=int, default=96)
    parser.add_argument("--chunks", type=int, default=400, help="chunks of a tensor of the late job")
    parser.add_argument("--policies", nargs="+", default=["atp", "esa"])
    options = parser.parse_args()
    for policy in options.policies:
        figures: dict[str, list[dict[str, float]]] = {"off": [], "custody": []}
        for _ in range(options.turns):
            for mode in figures:
                figures[mode].append(measure(policy, mode, options))
        for mode, rows in figures.items():
            medians: dict[str, Any] = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
            print(
                f"{policy:4} {mode:8} aggregators held by the late job {medians['held']:6.1f} of {options.slots}; "
                f"the other job: {100 * medians['in_switch']:5.1f} % of chunks summed in the switch, "
                f"{medians['other_per_s']:6.1f} reductions/s; an iteration of the late job "
                f"{medians['late_iteration_s']:.3f} s",
                flush=True,
            )
        pairs = zip(figures["off"], figures["custody"], strict=True)
        ratios = [with_["other_per_s"] / without["other_per_s"] for without, with_ in pairs]
        print(f"{policy:4} the other job with custody, against off: {', '.join(f'{r:.2f}' for r in ratios)}")


if __name__ == "__main__":
    main()
