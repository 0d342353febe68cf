"""Traffic of others: the rate that was asked for, on the link that was named, both ways."""

import json
import subprocess
import sys

from paceline.emulation import enclosure
from paceline.emulation.traffic import FRAME_BYTES, Flow
from paceline.schedule.inputs.cluster import Cluster, Server
from tests.emulation.test_namespaces import needs_root

ONE_BUSY = Cluster((Server("a", 1, background_bps=8e6), Server("b", 1)), inter_bps=20e6)
# Lets the traffic flow for a second, and prints what crossed each server's link, as its port on the bridge sees it.
WATCH = """
import json, time
from paceline.emulation.cluster import EmulatedCluster
from paceline.emulation.namespaces import ip
from tests.emulation.test_traffic import ONE_BUSY
network = EmulatedCluster.of(ONE_BUSY)
network.build()
def seen():
    links = {entry["ifname"]: entry["stats64"] for entry in json.loads(ip("-s", "-j", "link", "show"))}
    return [links[name][way]["bytes"] for name in ("server0", "server1") for way in ("rx", "tx")]
with network.background():
    time.sleep(1.0)
    before, began = seen(), time.monotonic()
    time.sleep(1.0)
    print([(b - a) / (time.monotonic() - began) for a, b in zip(before, seen())])
time.sleep(0.2)
before = seen()
time.sleep(0.3)
print([b - a for a, b in zip(before, seen())])
"""


class Counting:
    """A socket that counts."""

    sent = 0

    def sendto(self, data: bytes, _: tuple[str, int]) -> None:
        self.sent += 1


def test_a_flow_keeps_its_rate_and_does_not_catch_up_for_long() -> None:
    line = Counting()
    flow = Flow(line, ("", 9), 8 * 100 * FRAME_BYTES)  # type: ignore[arg-type]
    for _ in range(100):
        flow.send(0.01)
    assert 99 <= line.sent <= 100
    flow.send(10.0)
    assert line.sent <= 106


@needs_root
def test_the_busy_server_has_traffic_both_ways_and_the_others_have_none() -> None:
    command = [sys.executable, "-m", enclosure.__name__, sys.executable, "-c", WATCH]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    during, after = (json.loads(line) for line in done.stdout.splitlines())
    # A busy machine may carry less than asked for, never more.
    assert all(100_000 < rate <= 1.15e6 for rate in during[:2])
    assert max(during[2:]) < 20_000
    assert max(after) < 10_000
