"""The simulator's ring beside Gloo's: the same jobs on the same limited links, seconds a step.

    python -m benchmarks.ring                 1 and 2 jobs at 200 Mbit/s and 1 Gbit/s (root; three minutes)
    python -m benchmarks.ring --steps 20

Setting and processes are those of `benchmarks.sharing`: four servers are namespaces, a step is a sleep of 0.3 s and the
gradients of an MLP (12.6 MB). `tensors` are processes without a model, `ddp` those with DistributedDataParallel. The
simulator is given links, sizes, computing time and the limits of Linux's retransmission timer; no window. (Its own
limits are for links a thousand times as fast: on these its timer goes off while packets wait in a queue.)
"""

import argparse
import statistics
import sys
from dataclasses import replace

from benchmarks.sharing_rank import BUCKETS
from benchmarks.sharing_run import HOSTS, Setting, measure
from paceline.bench.measurement import ETHERNET_BYTES
from paceline.core.wire import ENVELOPE_BYTES, HEADER_BYTES
from paceline.emulation.namespaces import QUEUE_BYTES
from paceline.errors import UserError
from paceline.experiments.live.predict import LINUX_TIMERS
from paceline.sim.run import simulate
from paceline.sim.scenario import Scenario

_MTU = 1500
_IP_TCP_BYTES = 20 + 32
RATES = (200e6, 1e9)
JOBS = (1, 2)


def scenario_of(setting: Setting) -> Scenario:
    """The same jobs and links; packets that carry as many gradients a second as TCP's would."""
    payload = _MTU - _IP_TCP_BYTES
    elements = payload // 4
    counted = (HEADER_BYTES + ENVELOPE_BYTES + payload) / (_MTU + ETHERNET_BYTES)
    job = {
        "workers": HOSTS,
        "hosts": list(range(HOSTS)),
        "iterations": setting.steps,
        "size": setting.gradient_bytes,
        "layers": len(BUCKETS),
        "ratio": setting.gradient_bytes * 8 / (setting.rate_bps * counted) / setting.compute_s,
        "overlap": "ddp",
        "jitter": 0.02,
    }
    return Scenario.model_validate(
        {
            "name": setting.name,
            "network": {
                "hosts": HOSTS,
                "rate": setting.rate_bps * counted,
                "delay": "20 us",
                "queue": QUEUE_BYTES,
                "elements": elements,
                "ecn": "100 MB",
            },
            "transport": LINUX_TIMERS,
            "job": [{**job, "name": f"job{number}"} for number in range(setting.jobs)],
        }
    )


def simulated_step_s(setting: Setting) -> float:
    """Seconds a step of the simulator's ring."""
    result = simulate(scenario_of(setting), "ring", seed=1)
    if result.avg_jct_s is None:
        raise RuntimeError(f"the simulation did not end: {result.failed}")
    return result.avg_jct_s / setting.steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--simulate-only", action="store_true")
    options = parser.parse_args()
    print(f"{'':28s} {'tensors':>8s} {'ddp':>8s} {'simulated':>10s}", flush=True)
    for rate in RATES:
        for jobs in JOBS:
            setting = Setting(jobs, rate, steps=options.steps)
            live = []
            for kind in () if options.simulate_only else ("agents", "ddp"):
                try:
                    steps = measure(replace(setting, kind=kind).like_gloo()).steps
                except UserError as error:
                    sys.exit(str(error))
                live.append(statistics.mean(statistics.median(times) for times in steps))
            ours = simulated_step_s(setting)
            cells = " ".join(f"{each:8.3f}" for each in live)
            errors = " ".join(f"{ours / each - 1:+.1%}" for each in live)
            print(f"{jobs} x {rate / 1e6:5.0f} Mbit/s {cells:>28s} {ours:10.3f}  {errors}", flush=True)


if __name__ == "__main__":
    main()
