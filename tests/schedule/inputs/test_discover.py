"""Clusters from Slurm, Ray and lists of nodes: what is read, what is left out, what is refused with its place."""

import json
from pathlib import Path

import pytest

from paceline import toml
from paceline.errors import UserError
from paceline.schedule.inputs import discover
from paceline.schedule.inputs.cluster import ClusterFile

NODES = """\
NodeName=gpu01 Arch=x86_64 CPUTot=64 Gres=gpu:a100:4(S:0-1) State=IDLE
NodeName=gpu02 Arch=x86_64 CPUTot=64 Gres=gpu:8 State=IDLE
NodeName=gpu03 Arch=x86_64 CPUTot=64 Gres=gpu:a100:4,gpu:v100:2 State=MIXED
"""
LOGIN = "NodeName=login Gres=(null)\n"
TOPOLOGY = """\
# leaves first
SwitchName=leaf1 Nodes=gpu[01-02] LinkSpeed=100000000
SwitchName=leaf2 Nodes=gpu03 LinkSpeed=25000000
SwitchName=spine Switches=leaf[1-2]
"""


def read_back(tmp_path: Path, found: discover.Found) -> ClusterFile:
    path = tmp_path / "cluster.toml"
    path.write_text(discover.to_toml(found), encoding="utf-8")
    return toml.load(path, ClusterFile)


def test_slurm_nodes_stand_in_the_racks_of_their_switches(tmp_path: Path) -> None:
    file = read_back(tmp_path, discover.from_slurm(NODES, TOPOLOGY, "nodes", "topology.conf"))
    servers = file.cluster().servers
    assert [(server.name, server.gpus, server.rack) for server in servers] == [
        ("gpu01", 4, "leaf1"),
        ("gpu02", 8, "leaf1"),
        ("gpu03", 6, "leaf2"),
    ]
    assert file.network.inter_server == 25e9


def test_a_switch_may_name_nodes_that_were_left_out() -> None:
    topology = TOPOLOGY.replace("Nodes=gpu03", "Nodes=gpu03,login")
    found = discover.from_slurm(NODES + LOGIN, topology, "nodes", "topology.conf")
    assert [node.name for node in found.nodes] == ["gpu01", "gpu02", "gpu03"]


def test_slurm_without_a_topology_is_one_rack_and_says_so() -> None:
    found = discover.from_slurm(NODES + LOGIN, "", "nodes", "")
    assert {node.rack for node in found.nodes} == {"rack0"}
    assert "1 nodes without GPUs" in found.notes[0]
    assert "under one switch" in found.notes[1]


def test_names_with_quotes_are_read_back_as_they_were(tmp_path: Path) -> None:
    found = discover.from_nodes('name,gpus,rack\n"n""0",8,"row \\ a"\nn1,8,"b""c"\n', "nodes.csv")
    servers = read_back(tmp_path, found).cluster().servers
    assert [(server.name, server.rack) for server in servers] == [('n"0', "row \\ a"), ("n1", 'b"c')]


@pytest.mark.parametrize(
    ("nodes", "topology", "place"),
    [
        ("hello\n", "", "nodes:1"),
        ("NodeName=login Gres=(null)\n", "", "nodes"),
        (NODES, "SwitchName=leaf1 Nodes=gpu[01-09]\n", "topology.conf:1"),
        (NODES, "SwitchName=leaf1 Nodes=gpu[3-1]\n", "topology.conf:1"),
        (NODES, "nothing\n", "topology.conf"),
        (NODES + LOGIN, "SwitchName=leaf1 Nodes=gpu[01-03],nobody\n", "topology.conf:1"),
        (NODES, "SwitchName=leaf1 Nodes=gpu[01-03] LinkSpeed=fast\n", "topology.conf:1"),
        (NODES, "SwitchName=leaf1 Nodes=gpu[1-999999999999]\n", "topology.conf:1"),
    ],
)
def test_what_slurm_did_not_say_is_refused_with_its_place(nodes: str, topology: str, place: str) -> None:
    with pytest.raises(UserError) as caught:
        discover.from_slurm(nodes, topology, "nodes", "topology.conf")
    assert caught.value.place == place


def test_host_lists_keep_their_zeros() -> None:
    assert discover.expand_hosts("a[08-10,3],b,c[1]-x", "here") == ["a08", "a09", "a10", "a3", "b", "c1-x"]


def test_ray_nodes_that_are_alive_and_have_gpus_count() -> None:
    nodes = [
        {
            "node_name": "n1",
            "state": "ALIVE",
            "resources_total": {"CPU": 8, "GPU": 4.0},
            "labels": {"rack": "r7"},
        },
        {"node_name": "n2", "state": "DEAD", "resources_total": {"GPU": 4.0}},
        {"NodeName": "n3", "Alive": True, "Resources": {"GPU": 2.0}},
        {"node_name": "head", "state": "ALIVE", "resources_total": {"CPU": 8}},
    ]
    found = discover.from_ray(json.dumps(nodes), "nodes.json")
    assert [(node.name, node.gpus, node.rack) for node in found.nodes] == [
        ("n1", 4, "r7"),
        ("n3", 2, "rack0"),
    ]
    assert "2 nodes" in found.notes[0]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{", "n.json:1"),
        ('"nodes"', "n.json"),
        ("[3]", "n.json: node 0"),
        ('[{"node_name": "a"}]', "n.json: node 0"),
        ('[{"resources_total": {"GPU": 1}}]', "n.json: node 0"),
        ("[]", "n.json"),
    ],
)
def test_what_ray_did_not_say_is_refused_with_its_place(text: str, place: str) -> None:
    with pytest.raises(UserError) as caught:
        discover.from_ray(text, "n.json")
    assert caught.value.place == place


@pytest.mark.parametrize("gpus", [None, True, "4", -1, 10**400, [4], 1e9])
def test_a_strange_number_of_gpus_is_refused(gpus: object) -> None:
    text = json.dumps([{"node_name": "a", "resources_total": {"GPU": gpus}}])
    with pytest.raises(UserError, match="no number of GPUs"):
        discover.from_ray(text, "ray.json")


def test_names_of_nodes_can_be_shown() -> None:
    entry = {"node_name": "a\ud800\n", "resources_total": {"GPU": 1}, "labels": {"rack": "r\u001b"}}
    (node,) = discover.from_ray(json.dumps([entry]), "ray.json").nodes
    assert (node.name, node.rack) == ("a??", "r?")


def test_a_list_of_nodes_gives_racks_and_the_slowest_link(tmp_path: Path) -> None:
    text = "name,gpus,rack,link\na,4,r1,100 Gbit/s\nb,2,r2,25 Gbit/s\nc,2,,\n"
    file = read_back(tmp_path, discover.from_nodes(text, "nodes.csv"))
    assert [server.rack for server in file.cluster().servers] == ["r1", "r2", "rack0"]
    assert file.network.inter_server == 25e9


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("name,gpus,speed\n", "nodes.csv:1"),
        ("name\n", "nodes.csv:1"),
        ("name,gpus\na,two\n", "nodes.csv:2"),
        ("name,gpus\na,1\na,1\n", "nodes.csv:3"),
        ("name,gpus\n,1\n", "nodes.csv:2"),
        ("name,gpus,link\na,1,fast\n", "nodes.csv:2"),
        ("name,gpus\n", "nodes.csv"),
    ],
)
def test_a_mistake_in_a_list_of_nodes_is_named(text: str, place: str) -> None:
    with pytest.raises(UserError) as caught:
        discover.from_nodes(text, "nodes.csv")
    assert caught.value.place == place
