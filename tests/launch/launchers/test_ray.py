import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.launch import run as launch
from paceline.launch.doctor import Wanted, examine
from paceline.launch.launchers import ray as launcher_module
from paceline.launch.launchers.ray import nodes_of
from tests.launch.scenes import (
    Quiet,
    Scene,
    assert_nothing_left,
    assert_slots_held_once,
    assert_steered,
    assert_ten_went_well,
    finish,
    kill,
    run_guide_command,
    ten_jobs,
    until,
    wait_for,
)  # fmt: skip

pytest.importorskip("ray", reason="Ray is not installed (pip install 'paceline[ray]')")
# Ray's own code warns about files and processes that it leaves to the system.
pytestmark = pytest.mark.filterwarnings("default")
SERVERS = {"s0": 2, "s1": 2, "s2": 2}


class Rig:
    """Three nodes on this machine; the first is the head."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster: Any = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 2, "resources": {"s0": 1}, "include_dashboard": False},
        )
        self.nodes: dict[str, Any] = {name: self.add(name) for name in ("s1", "s2")}
        self.cluster.wait_for_nodes()

    def add(self, name: str) -> Any:
        return self.cluster.add_node(num_cpus=2, resources={name: 1})

    def left(self) -> list[str]:
        """Actors and groups of ours that are still there."""
        import ray
        from ray.util import list_named_actors, placement_group_table

        ray.init(
            address=self.cluster.address, namespace="paceline", log_to_driver=False, logging_level="ERROR"
        )
        try:
            groups = [g["name"] for g in placement_group_table().values() if g["state"] != "REMOVED"]
            return [str(name) for name in list_named_actors()] + groups
        finally:
            ray.shutdown()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        rig = Rig()
        try:
            yield rig
        finally:
            rig.cluster.shutdown()


@pytest.fixture
def address(rig: Rig) -> str:
    return str(rig.cluster.address)


def test_the_guides_command(rig: Rig, tmp_path: Path) -> None:
    scene = Scene(tmp_path, SERVERS).job("a", 3).job("b", 1)
    run_guide_command(scene, "ray", {"RAY_ADDRESS": rig.cluster.address})
    assert scene.states() == {"a": "done", "b": "done"}
    assert scene.starts() == {"a": 1, "b": 1}


def test_ten_jobs_and_a_planner_killed_in_the_middle(rig: Rig, address: str, tmp_path: Path) -> None:
    scene = ten_jobs(Scene(tmp_path, SERVERS), "sleep 0.5")
    planner = scene.new_planner("--launcher", "ray", "--address", address)
    wait_for(lambda: len(scene.starts()) >= 2, "two starts")
    kill(planner)
    time.sleep(0.5)
    code, _, err = finish(scene.planner("--resume", str(scene.run_dir)))
    assert "resume: " in err
    assert_ten_went_well(scene, code)
    assert rig.left() == []


def test_a_node_that_is_removed_loses_its_job_and_the_rest_goes_on(
    rig: Rig, address: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    scene = Scene(tmp_path, {"s0": 2, "s2": 2}).job("a", 2, until(go)).job("b", 2, until(go))
    planner = scene.new_planner("--launcher", "ray", "--address", address, "--policy", "ls")
    try:
        wait_for(lambda: scene.starts() == {"a": 1, "b": 1}, "two starts")
        (loser,) = [name for name, places in scene.places().items() if "s2" in places]
        (attempt,) = [a for a in scene.rows("attempts") if a["job"] == loser]
        rig.cluster.remove_node(rig.nodes.pop("s2"))
        wait_for(lambda: "lost" in [a["outcome"] for a in scene.rows("attempts")], "the loss")
        go.touch()
        code, _, err = finish(planner)
    finally:
        rig.nodes["s2"] = rig.add("s2")
        rig.cluster.wait_for_nodes()
    assert code == 0, err
    assert_nothing_left(attempt["token"])
    assert scene.states() == {"a": "done", "b": "done"}
    assert scene.starts() == {"a": 1, "b": 1, loser: 2}
    assert sorted(a["outcome"] for a in scene.rows("attempts")) == ["done", "done", "lost"]
    assert [e["text"] for e in scene.rows("events") if e["kind"] == "server"] == ["server s2 is down"]
    assert_slots_held_once(scene)


def test_a_planner_that_dies_in_every_window(
    rig: Rig, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the group, after the actors, and before they are cleared away: one planner after the other."""

    class DeathError(Exception):
        pass

    told = """echo 'PACELINE_STATUS {"iteration": 3, "path": "ring"}'; echo $RANK $LOCAL_RANK $MASTER_ADDR"""
    scene = Scene(tmp_path, SERVERS).job("a", 3, f"{told}; sleep 1")
    scene.create(launcher="ray", address=address)
    for where in ("prepare", "release", "forget"):
        real = getattr(launcher_module.RayCluster, where)

        def dies(*arguments: object, where: str = where, real: Callable[..., object] = real) -> None:
            if where != "forget":
                real(*arguments)
            raise DeathError

        with monkeypatch.context() as patch:
            patch.setattr(launcher_module.RayCluster, where, dies)
            with pytest.raises(DeathError):
                launch.go_on(scene.run_dir, Quiet())
    assert len(rig.left()) == 3
    assert launch.go_on(scene.run_dir, Quiet()) == 0
    assert scene.starts() == {"a": 1}
    assert rig.left() == []
    # Logs and progress came from the nodes.
    row = scene.rows("jobs")[0]
    assert (row["iteration"], row["path"]) == (3, "ring")
    logs = [(scene.run_dir / f"attempts/a.1/rank-{rank}.log").read_text().split()[-3:] for rank in range(3)]
    assert [log[:2] for log in logs] == [["0", "0"], ["1", "1"], ["2", "0"]]


@pytest.mark.slow
def test_ctrl_c_stops_our_jobs(rig: Rig, address: str, tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"s0": 2}).job("a", 2, "sleep 60").job("b", 2)
    planner = scene.new_planner("--launcher", "ray", "--address", address)
    wait_for(lambda: scene.starts() == {"a": 1}, "the start")
    code, _, err = kill(planner, signal.SIGINT)
    assert code == 130, err
    assert scene.states() == {"a": "stopped", "b": "waiting"}
    assert_nothing_left(scene.rows("attempts")[0]["token"])
    assert rig.left() == []


def test_clusters_that_ray_does_not_have(address: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no node 'moon'; it has s0, s1, s2"):
        Scene(tmp_path, {"moon": 2}).job("a").create(launcher="ray", address=address)
    with pytest.raises(UserError, match="has 64 slots in the file, its node 2 of CPU"):
        Scene(tmp_path, {"s0": 64}).job("a").create(launcher="ray", address=address)


def test_a_ray_that_cannot_be_reached(tmp_path: Path) -> None:
    for wrong in ("127.0.0.1:1", "nonsense"):
        with pytest.raises(UserError, match="ray cannot be reached"):
            Scene(tmp_path, SERVERS).job("a").create(launcher="ray", address=wrong)


def test_nodes_are_named_by_what_only_they_have() -> None:
    def row(address: str, **resources: float) -> dict[str, Any]:
        offered = {f"node:{address}": 1.0, "memory": 5.0, **resources}
        return {
            "Alive": True,
            "Resources": offered,
            "NodeManagerAddress": address,
            "NodeManagerHostname": f"h{address}",
        }

    found = nodes_of(
        [
            row("1", CPU=4, big=1, shared=1),
            row("2", CPU=8, GPU=2, shared=1),
            row("3"),
            row("4", CPU=1),
            row("4", CPU=1),
        ]
    )
    assert {name: (node.pin, node.kind, node.slots) for name, node in found.items()} == {
        "big": ("big", "CPU", 4),
        "1": ("node:1", "CPU", 4),
        "h1": ("node:1", "CPU", 4),
        "2": ("node:2", "GPU", 2),
        "h2": ("node:2", "GPU", 2),
    }


def test_a_run_is_steered(rig: Rig, address: str, tmp_path: Path) -> None:
    assert_steered(Scene(tmp_path, SERVERS), "ray", {"RAY_ADDRESS": address})
    assert rig.left() == []


def test_the_doctor_reaches_it(address: str) -> None:
    (found,) = [each for each in examine(Wanted(launcher="ray", address=address)) if each.what == "Ray"]
    assert found.state == "ok", found.text
