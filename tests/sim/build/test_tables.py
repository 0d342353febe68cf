"""Chunks, layers, priorities and buckets of a job."""

import numpy as np
import pytest

from paceline.core.priority import priority
from paceline.sim.build.tables import PRIORITY_STEPS, Tables, build_tables
from paceline.sim.scenario import Scenario
from tests.sim.scenes import job, scene

MIXED = scene(
    job(name="a", size=100_004, layers=7),
    {"name": "b", "model": "resnet50", "workers": 3},
    job(name="c", workers=1, size=400, layers=1),
    network={"elements": 64},
    transport={"bucket": "10 kB"},
)


def tables_of(scenario: Scenario) -> Tables:
    jobs = scenario.expanded_jobs()
    return build_tables(
        scenario, jobs, [each.model_profile(scenario.network.rate) for each in jobs], priority
    )


@pytest.fixture(scope="module")
def tables() -> Tables:
    return tables_of(MIXED)


@pytest.mark.parametrize("j", range(3))
def test_chunks_hold_every_layer_and_waste_less_than_a_packet_each(tables: Tables, j: int) -> None:
    model = MIXED.job[j].model_profile(MIXED.network.rate)
    for index, layer in enumerate(model.layers):
        room_bytes = int(tables.layers[j, index].chunks) * 4 * MIXED.network.elements
        assert 0 <= room_bytes - layer.gradient_bytes < 4 * MIXED.network.elements
    assert tables.chunks[j] == sum(int(tables.layers[j, i].chunks) for i in range(len(model.layers)))


@pytest.mark.parametrize("j", range(3))
def test_the_last_layer_goes_first(tables: Tables, j: int) -> None:
    layers = len(MIXED.job[j].model_profile(MIXED.network.rate).layers)
    place = 0
    for index in reversed(range(layers)):
        place += int(tables.layers[j, index].chunks)
        assert tables.layers[j, index].ready == place
    first = tables.first[j]
    order = tables.layer_of[first : first + tables.chunks[j]]
    assert (np.diff(order) <= 0).all()
    assert [int((order == index).sum()) for index in range(layers)] == [
        int(tables.layers[j, index].chunks) for index in range(layers)
    ]


def test_urgent_layers_first_and_nothing_before_it_is_computed() -> None:
    """Slow links: of what is computed the layer nearest the input goes first, and the last layer's rest comes last."""
    slow = MIXED.model_copy(
        update={
            "network": MIXED.network.model_copy(update={"rate": 1_000_000_000}),
            "transport": MIXED.transport.model_copy(update={"order": "urgent"}),
        }
    )
    tables = tables_of(slow)
    order = tables.layer_of[tables.first[1] : tables.first[1] + tables.chunks[1]]
    layers = tables.layers[1, : int(order.max()) + 1]
    assert np.array_equal(np.bincount(order), layers.chunks)
    assert order[0] == len(layers) - 1
    assert order[-1] > 0
    assert layers.ready[0] == len(order)
    for index, ready in enumerate(layers.ready):
        assert (order[:ready] >= index).all()
        assert ready == len(order) or order[ready] < index


def test_times_are_the_models(tables: Tables) -> None:
    model = MIXED.job[1].model_profile(MIXED.network.rate)
    assert tuple(tables.layers[1, : len(model.layers)].forward_ns) == model.forward_ns()
    assert tuple(tables.layers[1, : len(model.layers)].backward_ns) == model.backward_ns()


@pytest.mark.parametrize("j", range(3))
def test_buckets_cover_all_layers_once_in_the_order_of_release(tables: Tables, j: int) -> None:
    layers = len(MIXED.job[j].model_profile(MIXED.network.rate).layers)
    covered = []
    for b in range(tables.bucket_counts[j]):
        bucket = tables.buckets[j, b]
        covered.extend(range(int(bucket.layer_high), int(bucket.layer_low) - 1, -1))
    assert covered == list(range(layers - 1, -1, -1))


@pytest.mark.parametrize("j", range(3))
def test_segments_of_a_bucket_have_room_for_its_chunks(tables: Tables, j: int) -> None:
    workers = MIXED.job[j].workers
    flow = place = 0
    for b in range(tables.bucket_counts[j]):
        bucket = tables.buckets[j, b]
        chunks = sum(
            int(tables.layers[j, index].chunks) for index in range(bucket.layer_low, bucket.layer_high + 1)
        )
        assert 0 <= workers * int(bucket.packets) - chunks < workers
        assert (bucket.first, bucket.place) == (flow, place)
        flow += max(1, 2 * (workers - 1)) * int(bucket.packets)
        place += workers * int(bucket.packets)
    assert tables.flows[j] == flow
    assert tables.places >= place


def test_buckets_are_at_least_as_big_as_asked_but_for_the_last(tables: Tables) -> None:
    model = MIXED.job[0].model_profile(MIXED.network.rate)
    for b in range(tables.bucket_counts[0] - 1):
        bucket = tables.buckets[0, b]
        held = model.layers[int(bucket.layer_low) : int(bucket.layer_high) + 1]
        assert sum(layer.gradient_bytes for layer in held) >= MIXED.transport.bucket


def test_priorities_rise_over_a_jobs_life_and_toward_its_input() -> None:
    table = tables_of(scene(job(size="64 MB", layers=7))).priorities[0].astype(int)
    assert table.shape[0] == PRIORITY_STEPS
    assert (np.diff(table, axis=0) >= 0).all()
    assert (np.diff(table, axis=1) <= 0).all()
    assert table[-1, 0] > table[0, -1]
    assert 1 <= table.min() < table.max() < 255


def test_another_rule_fills_the_table() -> None:
    jobs = MIXED.expanded_jobs()
    models = [each.model_profile(MIXED.network.rate) for each in jobs]
    table = build_tables(MIXED, jobs, models, lambda left_s, ratio, layer, layers: 1 + layer % 200).priorities
    assert table[0, 0, :7].tolist() == list(range(1, 8))
