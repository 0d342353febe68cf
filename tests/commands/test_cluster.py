"""`paceline cluster`: a file that `paceline plan` reads, and one line for a mistake."""

from pathlib import Path

import pytest

from paceline import toml
from paceline.schedule.inputs.cluster import ClusterFile
from tests.commands.command_line import paceline


def test_a_list_of_nodes_becomes_a_cluster_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes, out = tmp_path / "nodes.csv", tmp_path / "made" / "cluster.toml"
    nodes.write_text("name,gpus,rack\na,4,r1\nb,4,r2\n", encoding="utf-8")
    code = paceline(
        monkeypatch, "cluster", "from-nodes", str(nodes), "--link", "10 Gbit/s", "--out", str(out)
    )
    assert code == 0
    assert "2 servers with 8 GPUs in 2 racks" in capsys.readouterr().out
    assert toml.load(out, ClusterFile).network.inter_server == 10e9


def test_an_unknown_node_is_one_line_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes, topology = tmp_path / "nodes", tmp_path / "topology.conf"
    nodes.write_text("NodeName=a Gres=gpu:2\n", encoding="utf-8")
    topology.write_text("SwitchName=s Nodes=a,b\n", encoding="utf-8")
    code = paceline(monkeypatch, "cluster", "from-slurm", "--nodes", str(nodes), "--topology", str(topology))
    assert code == 2
    assert capsys.readouterr().err == f"paceline: {topology}:1: node 'b' is not among the nodes\n"


def test_without_slurm_the_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert paceline(monkeypatch, "cluster", "from-slurm") == 2
    assert "scontrol" in capsys.readouterr().err
