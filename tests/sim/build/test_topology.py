"""Who sits where, and which link leads where."""

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.sim.build.topology import Topology, build_links, place_jobs
from paceline.sim.engine.links import DETOURS, FS_PER_NS
from tests.sim.scenes import job, scene

RATE = 8e9
FS_PER_BYTE = FS_PER_NS


def placed(*jobs: dict[str, object], dedicated: int = 0, **network: object) -> Topology:
    scenario = scene(*jobs, network=network)
    return place_jobs(scenario, scenario.expanded_jobs(), dedicated)


def test_a_star_has_one_switch_and_a_host_for_each_worker() -> None:
    place = placed(job(), job(name="b", workers=2))
    assert (place.hosts, place.switches, place.links) == (6, 1, 12)
    assert place.worker_hosts == [[0, 1, 2, 3], [4, 5]]
    assert set(place.leaf_of_host) == {0}


def test_dedicated_custodians_get_hosts_of_their_own_behind_the_workers() -> None:
    place = placed(job(), job(name="b", workers=2), dedicated=2)
    assert place.custodian_hosts == [[6, 7], [8, 9]]
    assert place.hosts == 10


def test_with_fewer_hosts_than_workers_jobs_share_them_in_turn() -> None:
    place = placed(job(), job(name="b"), hosts=6)
    assert place.worker_hosts == [[0, 1, 2, 3], [4, 5, 0, 1]]


def test_leaves_get_equal_runs_of_hosts() -> None:
    place = placed(job(workers=8), topology="leaf-spine", leaves=3, uppers=2, hosts=12)
    assert [place.leaf_of_host.count(leaf) for leaf in range(3)] == [4, 4, 4]
    assert place.leaf_of_host == sorted(place.leaf_of_host)
    assert (place.leaves, place.uppers, place.switches) == (3, 2, 5)


def test_packed_jobs_stay_together_and_spread_jobs_are_dealt_out() -> None:
    packed = placed(job(), topology="leaf-spine", leaves=4, hosts=16)
    spread = placed(job(), topology="leaf-spine", leaves=4, hosts=16, placement="spread")
    assert {packed.leaf_of_host[host] for host in packed.worker_hosts[0]} == {0}
    assert sorted(spread.leaf_of_host[host] for host in spread.worker_hosts[0]) == [0, 1, 2, 3]


def test_there_are_no_more_leaves_than_hosts() -> None:
    assert placed(job(workers=2), topology="leaf-spine", leaves=8).leaves == 2


def test_hosts_by_hand_are_taken_as_given() -> None:
    assert placed(job(hosts=[5, 1, 1, 0]), hosts=8).worker_hosts == [[5, 1, 1, 0]]


def test_more_workers_than_hosts_are_refused() -> None:
    with pytest.raises(UserError, match=r"job 'a': has 4 workers, but there are only 3 hosts"):
        placed(job(), hosts=3)


def test_a_host_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UserError, match=r"host 8 does not exist; hosts are 0\.\.7"):
        placed(job(hosts=[5, 1, 8, 0]), hosts=8)


def test_more_workers_under_a_switch_than_a_mask_holds_are_refused() -> None:
    with pytest.raises(UserError, match="has 65 workers under one switch; a mask holds 64"):
        placed(job(workers=65))
    assert placed(job(workers=65), topology="leaf-spine", leaves=2).hosts == 65


def test_links_of_a_star_lead_to_the_switch_and_back() -> None:
    scenario = scene(job(), network={"rate": RATE, "delay": "3 us", "queue": 1000, "ecn": 500})
    place = place_jobs(scenario, scenario.expanded_jobs(), 0)
    state = build_links(scenario, place, 4).state
    assert len(state) == 8
    for host in range(4):
        up, down = state[host], state[4 + host]
        assert (up.to, up.to_switch, down.to, down.to_switch) == (0, 1, host, 0)
        assert up.fs_per_byte == down.fs_per_byte == FS_PER_BYTE
        assert up.delay_ns == down.delay_ns == 3000
        assert (down.queue_fs, down.ecn_fs) == (1000 * FS_PER_BYTE, 500 * FS_PER_BYTE)
    assert (state.detour == -1).all()


@pytest.mark.parametrize(
    ("upper_rate", "fs_per_byte"), [(None, FS_PER_BYTE / 2), ("16 Gbit/s", FS_PER_BYTE / 2)]
)
def test_links_between_switches_carry_what_a_leafs_hosts_send(upper_rate: object, fs_per_byte: float) -> None:
    """Four hosts a leaf at 8 Gbit/s over two upper switches: 16 Gbit/s each, unless told."""
    network = {"topology": "leaf-spine", "leaves": 3, "uppers": 2, "hosts": 12, "rate": RATE}
    scenario = scene(job(), network=network | ({"upper_rate": upper_rate} if upper_rate else {}))
    place = place_jobs(scenario, scenario.expanded_jobs(), 0)
    state = build_links(scenario, place, 4).state
    assert len(state) == place.links == 2 * 12 + 2 * 3 * 2
    for leaf in range(3):
        for upper in range(2):
            up, down = state[24 + 2 * leaf + upper], state[30 + 2 * leaf + upper]
            assert (up.to, up.to_switch) == (3 + upper, 1)
            assert (down.to, down.to_switch) == (leaf, 1)
            assert up.fs_per_byte == down.fs_per_byte == fs_per_byte


def test_detours_lead_to_the_node_of_their_link_and_take_longer_each() -> None:
    network = {"topology": "leaf-spine", "leaves": 2, "hosts": 4}
    scenario = scene(job(), network=network, faults={"reorder": 0.1, "reorder_delay": "2 us"})
    place = place_jobs(scenario, scenario.expanded_jobs(), 0)
    state = build_links(scenario, place, 4).state
    assert len(state) == place.links + DETOURS * (place.hosts + place.switches)
    for link in state[: place.links]:
        detours = state[link.detour : link.detour + DETOURS]
        assert [int(detour.to) for detour in detours] == [int(link.to)] * DETOURS
        assert [int(detour.to_switch) for detour in detours] == [int(link.to_switch)] * DETOURS
        assert [int(detour.delay_ns) for detour in detours] == [2000, 6000, 18000]
        assert (detours.detour == -1).all()


def test_all_jobs_may_share_one_server() -> None:
    jobs = (job(), job(name="b"))
    scenario = scene(*jobs, custodians={"placement": "shared"})
    place = place_jobs(scenario, scenario.expanded_jobs(), 1)
    assert (place.hosts, place.custodian_hosts) == (9, [[8], [8]])
    racks = scene(*jobs, custodians={"placement": "shared"}, network={"topology": "leaf-spine"})
    with pytest.raises(UserError, match="possible in a star only"):
        place_jobs(racks, racks.expanded_jobs(), 1)


def test_classes_are_where_jobs_meet() -> None:
    """A worker's own link has one job, whose order matters: it stays first in, first out."""
    scenario = scene(
        job(), job(name="b", hosts=[3, 4, 5, 6]), custodians={"placement": "shared"}, switch={"classes": 4}
    )
    place = place_jobs(scenario, scenario.expanded_jobs(), 1)
    state = build_links(scenario, place, 4).state
    both, server = 3, 8
    meet = {both, place.hosts + both, server, place.hosts + server}
    assert {int(at) for at in np.flatnonzero(state.classes)} == meet
    spine = scene(job(), job(name="b"), network={"topology": "leaf-spine"}, switch={"classes": 4})
    place = place_jobs(spine, spine.expanded_jobs(), 0)
    state = build_links(spine, place, 4).state
    assert (state.classes[2 * place.hosts :] == 4).all()
    assert (state.classes[: 2 * place.hosts] == 0).all()
