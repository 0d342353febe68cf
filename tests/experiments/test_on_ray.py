"""Points on a real Ray cluster of two nodes: the rows that local processes give, bit for bit."""

import json
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.experiments.esa import points as esa_points
from paceline.experiments.esa.workloads import EsaWorkload
from paceline.experiments.on_ray import node_task
from paceline.experiments.sjf_bco import points as sjf_bco_points
from paceline.experiments.sweep import FILE_NAME, Sweep, run_points
from paceline.schedule.inputs.generate import PaperSetting
from paceline.sim.run import warm_up

pytest.importorskip("ray", reason="Ray is not installed")
# Ray's own code warns about files and processes that it leaves to the system.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    started.add_node(num_cpus=1)
    yield started
    started.shutdown()


ESA = [
    esa_points.EsaPoint(
        EsaWorkload("skewed", memory, memory, (1, 1), workers=4, size_bytes=100_000), True, (1,)
    )
    for memory in (0.5, 1.0, 2.0)
]
SJF_BCO = [sjf_bco_points.SjfBcoPoint("share", seed, PaperSetting(servers=10)) for seed in range(3)]


def test_a_cluster_gives_the_rows_that_local_processes_give(cluster: Any, tmp_path: Path) -> None:
    address = cluster.address
    for module, points in ((esa_points, ESA), (sjf_bco_points, SJF_BCO)):
        folder = tmp_path / module.__name__
        # First here: what is compiled then serves the nodes too.
        near = run_points(module.run_point, points, "near", Sweep(processes=2), prepare=warm_up)
        far = run_points(module.run_point, points, "far", Sweep(ray=address, folder=folder))
        assert json.dumps(far) == json.dumps(near)
        assert len((folder / FILE_NAME).read_text().splitlines()) == len(points)
        # All is done: no cluster is asked any more.
        kept = run_points(
            module.run_point, points, "kept", Sweep(ray="nowhere:1", folder=folder, resume=True)
        )
        assert json.dumps(kept) == json.dumps(near)


def test_nobody_at_the_address_is_one_line() -> None:
    with pytest.raises(UserError, match="no Ray cluster answers at"):
        run_points(sjf_bco_points.run_point, SJF_BCO[:1], "nobody", Sweep(ray="127.0.0.1:9"))


def test_a_node_without_a_module_names_it() -> None:
    work = b"cno_such_module\nrun_point\n."
    ended, (node, module) = node_task()(work, "")
    assert (ended, node, module) == ("module missing", socket.gethostname(), "no_such_module")


def test_a_node_with_other_code_does_not_run() -> None:
    ended, _ = node_task()(pickle.dumps((sjf_bco_points.run_point, SJF_BCO[0])), "of other sources")
    assert ended == "other code"


def test_a_node_without_paceline_says_so() -> None:
    """Ray gives a task that it can't load back as a text; this one can be loaded anywhere."""
    from ray import cloudpickle

    code = "import sys; sys.modules['paceline'] = None\n"
    code += f"from ray import cloudpickle\nprint(cloudpickle.loads({cloudpickle.dumps(node_task())!r})(b'', '')[0])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "module missing\n"
