"""An emulated cluster: addresses, racks, and links that carry what they should."""

import subprocess
import sys

import pytest

from paceline.emulation import enclosure
from paceline.emulation.cluster import EmulatedCluster
from paceline.errors import UserError
from paceline.schedule.inputs.cluster import Cluster, Server
from tests.emulation.test_namespaces import needs_root

TWO_RACKS = Cluster(
    (Server("a", 2, "left"), Server("b", 2, "left"), Server("c", 2, "right", slow=2.5)),
    inter_bps=40e6,
    uplink_bps=20e6,
)
# Sends a megabyte from one server to another, and prints the rate that it saw, in Mbit/s.
MEASURE = """
import socket, subprocess, sys, time
from paceline.emulation.cluster import EmulatedCluster
from tests.emulation.test_cluster import TWO_RACKS
network = EmulatedCluster.of(TWO_RACKS)
network.build()
receive = '''
import socket, time
listening = socket.create_server(("", 5000)); print("ready", flush=True)
line = listening.accept()[0]; began = None; got = 0
while data := line.recv(1 << 16):
    got += len(data)
    if began is None and got > 400_000: began, first = time.monotonic(), got
print((got - first) * 8e-6 / (time.monotonic() - began))
'''
send = 'import socket,sys; socket.create_connection((sys.argv[1], 5000)).sendall(bytes(2_500_000))'
for sender, receiver in (("a", "b"), ("a", "c")):
    there = subprocess.Popen(
        [*network.within(receiver), sys.executable, "-c", receive], stdout=subprocess.PIPE, text=True)
    there.stdout.readline()
    address = network.servers[receiver].address
    subprocess.run([*network.within(sender), sys.executable, "-c", send, address], check=True)
    print(there.communicate()[0].strip())
"""


def test_racks_have_uplinks_and_one_rack_has_none() -> None:
    network = EmulatedCluster.of(TWO_RACKS)
    assert [(server.name, server.rack, server.slow) for server in network.servers.values()] == [
        ("a", 0, 1.0),
        ("b", 0, 1.0),
        ("c", 1, 2.5),
    ]
    assert [rack.uplink_bps for rack in network.racks] == [20e6, 20e6]
    assert len({server.address for server in network.servers.values()}) == 3
    found = network.environment("c", switched=True)
    assert (found["PACELINE_SLOW"], found["PACELINE_RACK"]) == ("2.5", "right")
    assert found["PACELINE_SWITCH"] == f"{network.racks[1].address}:7070"
    assert "PACELINE_SWITCH" not in network.environment("c", switched=False)
    (rack,) = EmulatedCluster.of(Cluster.uniform(2, 1)).racks
    assert (rack.namespace, rack.address) == ("", network.core_address)


def test_an_uplink_has_what_the_servers_have_together_unless_told() -> None:
    racks = EmulatedCluster.of(Cluster.uniform(4, 1, racks=2, inter_bps=1e8)).racks
    assert [rack.uplink_bps for rack in racks] == [2e8, 2e8]


def test_too_many_servers_are_refused() -> None:
    with pytest.raises(UserError, match="at most 200"):
        EmulatedCluster.of(Cluster.uniform(201, 1))


@needs_root
def test_links_and_uplinks_carry_what_the_cluster_says() -> None:
    command = [sys.executable, "-m", enclosure.__name__, sys.executable, "-c", MEASURE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    same_rack, other_rack = (float(line) for line in done.stdout.split())
    # A limit is a ceiling: a busy machine may carry less, never more.
    assert same_rack < 41
    assert other_rack < 20.5
