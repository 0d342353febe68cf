"""Limited processors: a server's ranks are throttled, and no group outlives its keeper for long."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.emulation import enclosure, processors
from paceline.emulation.cluster import EmulatedCluster
from paceline.schedule.inputs.cluster import Cluster, Server
from tests.emulation.test_namespaces import needs_root

SMALL = Cluster((Server("a", 1, cpus=0.2), Server("b", 1)))
BUSY = "import time\nwhile time.process_time() < 0.2: pass"
# Makes the cluster's groups, works on both servers, and prints how often each server's ranks were held up.
WATCH = """
import subprocess, sys
from tests.emulation.test_processors import BUSY, SMALL
from paceline.emulation.cluster import EmulatedCluster
network = EmulatedCluster.of(SMALL)
network.build()
print(network.limit_processors()[0])
for server in ("a", "b"):
    subprocess.run([*network.within(server), sys.executable, "-c", BUSY], check=True)
lines = (network.groups["a"].path / "cpu.stat").read_text().splitlines()
print(dict(line.split() for line in lines)["nr_throttled"], network.groups["a"].path, len(network.groups))
"""


@pytest.fixture
def group() -> Iterator[processors.ProcessorGroup]:
    try:
        made = processors.limit("test", 0.5)
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield made
    if made.path.exists():
        made.path.rmdir()


@needs_root
def test_ranks_of_a_limited_server_are_held_up_and_the_group_goes(group: processors.ProcessorGroup) -> None:
    command = [sys.executable, "-m", enclosure.__name__, sys.executable, "-c", WATCH]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    told, seen = done.stdout.splitlines()
    assert told == "the ranks of a share 0.2 processors"
    throttled, path, groups = seen.split()
    assert int(throttled) > 0
    assert groups == "1"
    assert not Path(path).exists()


@needs_root
def test_groups_of_keepers_that_are_gone_are_removed_and_no_others(group: processors.ProcessorGroup) -> None:
    gone = group.path.with_name("pl-999999999-1-server0")
    other = group.path.with_name("pl-somebody")
    gone.mkdir()
    other.mkdir()
    try:
        assert gone.name in processors.remove_leftovers()
        assert group.path.exists()
        assert other.exists()
    finally:
        other.rmdir()


def test_where_no_group_can_be_made_the_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "parent", lambda: tmp_path / "absent")
    network = EmulatedCluster.of(SMALL)
    (told,) = network.limit_processors()
    assert told.startswith("a has all processors: no control group can be made here")
    assert network.within("a")[0] == "nsenter"
