"""What the simulator says of a row of `benchmarks.allreduce`: one job, one tensor, no computation, the same links.

The simulator counts preamble, gap and checksum of each frame, a token bucket does not: the rate is raised by that
share, so that both carry the same number of packets a second.
"""

from paceline.bench.measurement import ETHERNET_BYTES, IP_UDP_BYTES, Measurement
from paceline.core.wire import ENVELOPE_BYTES, HEADER_BYTES
from paceline.errors import UserError
from paceline.live.net.sockets import elements_for
from paceline.sim.run import simulate
from paceline.sim.scenario import Scenario

DELAY = "20us"
"""Of a link, one way: about what a wake-up costs on a quiet machine; at the rates measured it hardly counts."""
PATIENCE = {"patience": "50ms", "patience_max": "1s"}
TIMERS = {"rto_min": "5ms", "rto_start": "50ms", "rto_max": "500ms"}


def scenario(measurement: Measurement, size_bytes: int) -> Scenario:
    """The measured setting, as the simulator takes it."""
    if measurement.rate_bps is None:
        raise UserError("a simulation needs the rate of the links", place="--rate")
    elements = elements_for(measurement.mtu)
    payload = HEADER_BYTES + 4 * elements
    counted = (payload + ENVELOPE_BYTES) / (payload + ETHERNET_BYTES + IP_UDP_BYTES)
    worker_rate, own = measurement.worker_rate_bps, {}
    assert worker_rate is not None
    if measurement.switches:
        own = {"switches": measurement.switches, "switch_rate": measurement.rate_bps * counted}
    job = {"workers": measurement.workers, "iterations": 1, "size": size_bytes, "layers": 1, "ratio": 1e9}
    return Scenario.model_validate(
        {
            "name": f"{measurement.workers} workers, {size_bytes} bytes",
            "network": {"rate": worker_rate * counted, "elements": elements, "delay": DELAY, **own},
            "switch": {"slots": 1024},
            "transport": TIMERS,
            "custodians": {"placement": "workers", "per_job": measurement.workers, **PATIENCE},
            "job": [job],
        }
    )


def simulated_s(measurement: Measurement, size_bytes: int) -> float:
    """Seconds that the simulator gives for one measured all-reduce."""
    result = simulate(scenario(measurement, size_bytes), measurement.policy)
    if result.avg_jct_s is None:
        raise RuntimeError(f"the simulation did not end: {result.failed}")
    return result.avg_jct_s
