"""What a job computes and sends, as tables: layers, chunks, priorities, and the ring's buckets."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.core.priority import PriorityRule, sending_order
from paceline.core.wire import ENVELOPE_BYTES, HEADER_BYTES
from paceline.models.catalogue import ModelProfile
from paceline.sim.engine.world import BUCKET, LAYER, new_records
from paceline.sim.scenario import Scenario, ScenarioJob

PRIORITY_STEPS = 16
"""How often a job's priority is looked at anew over its life."""


@dataclass(frozen=True)
class Tables:
    """For all jobs: `layers[j, i]`, `priorities[j, step, i]`, `layer_of[first[j] + place]`, `buckets[j, b]`."""

    layers: Any
    priorities: Any
    layer_of: Any
    first: list[int]
    chunks: list[int]
    buckets: Any
    bucket_counts: list[int]
    flows: list[int]
    places: int


def build_tables(
    scenario: Scenario, jobs: list[ScenarioJob], models: list[ModelProfile], rule: PriorityRule
) -> Tables:
    """Cut every model into chunks of one packet each, in the order in which they are sent."""
    most = max(len(model.layers) for model in models)
    layers = new_records((len(jobs), most), LAYER)
    priorities = np.ones((len(jobs), PRIORITY_STEPS, most), dtype=np.uint8)
    layer_of: list[Any] = []
    first: list[int] = []
    chunks: list[int] = []
    payload_bytes = 4 * scenario.network.elements
    for j, (job, model) in enumerate(zip(jobs, models, strict=True)):
        forward = model.forward_ns(job.flop_rate, job.batch)
        backward = model.backward_ns(job.flop_rate, job.batch)
        first.append(sum(len(part) for part in layer_of))
        for layer in range(len(model.layers)):
            record = layers[j, layer]
            record.forward_ns, record.backward_ns = forward[layer], backward[layer]
            record.chunks = max(1, math.ceil(model.layers[layer].gradient_bytes / payload_bytes))
        own = layers[j, : len(model.layers)]
        order = _order(scenario, own, backward)
        # The least layer of each beginning of the order; it may go when that one is computed.
        own.ready = [int(np.sum(np.minimum.accumulate(order) >= layer)) for layer in range(len(own))]
        layer_of.append(order)
        chunks.append(len(order))
        _fill_priorities(
            scenario, job, sum(forward) + sum(backward), len(order), len(own), rule, priorities[j]
        )
    buckets, counts, flows, places = _build_buckets(scenario, jobs, models, layers)
    return Tables(layers, priorities, np.concatenate(layer_of), first, chunks, buckets, counts, flows, places)


def _order(scenario: Scenario, layers: Any, backward_ns: Sequence[int]) -> Any:
    """The layer of each chunk of an iteration: as gradients are computed, the last layer first, or by urgency."""
    if scenario.transport.order == "released":
        places = np.arange(len(layers) - 1, -1, -1)
        return np.repeat(places, layers.chunks[::-1]).astype(np.int16)
    ready_ns = list(itertools.accumulate(reversed(backward_ns)))[::-1]
    chunk_ns = _packet_bytes(scenario) * 8e9 / scenario.network.rate
    return np.array(
        sending_order([int(count) for count in layers.chunks], ready_ns, chunk_ns), dtype=np.int16
    )


def _packet_bytes(scenario: Scenario) -> int:
    return int(HEADER_BYTES + ENVELOPE_BYTES + 4 * scenario.network.elements)


def _fill_priorities(
    scenario: Scenario,
    job: ScenarioJob,
    compute_ns: int,
    chunks: int,
    layers: int,
    rule: PriorityRule,
    table: Any,
) -> None:
    comm_s = chunks * _packet_bytes(scenario) * 8 / scenario.network.rate
    compute_s = compute_ns * 1e-9
    for step in range(PRIORITY_STEPS):
        left = job.iterations * (1 - step / PRIORITY_STEPS)
        remaining_s = left * max(comm_s, compute_s)
        for layer in range(layers):
            table[step, layer] = rule(remaining_s, comm_s / compute_s, layer, layers)


def _build_buckets(
    scenario: Scenario, jobs: list[ScenarioJob], models: list[ModelProfile], layers: Any
) -> tuple[Any, list[int], list[int], int]:
    """Fuse layers in backward order until a bucket is full; a segment for each worker."""
    rows: list[list[tuple[int, ...]]] = []
    flows: list[int] = []
    places = 1
    for j, (job, model) in enumerate(zip(jobs, models, strict=True)):
        row: list[tuple[int, ...]] = []
        high = len(model.layers) - 1
        gathered_bytes, gathered_chunks, flow, place = 0, 0, 0, 0
        for layer in range(high, -1, -1):
            gathered_bytes += model.layers[layer].gradient_bytes
            gathered_chunks += int(layers[j, layer].chunks)
            if gathered_bytes >= scenario.transport.bucket or layer == 0:
                packets = math.ceil(gathered_chunks / job.workers)
                messages = _messages(gathered_bytes, job.workers, scenario.transport.message)
                row.append((flow, packets, place, layer, high, math.ceil(packets / messages), messages))
                flow += max(1, 2 * (job.workers - 1)) * packets
                place += job.workers * packets
                high, gathered_bytes, gathered_chunks = layer - 1, 0, 0
        rows.append(row)
        flows.append(flow)
        places = max(places, place)
    buckets = new_records((len(jobs), max(len(row) for row in rows)), BUCKET)
    for j, row in enumerate(rows):
        for b, values in enumerate(row):
            buckets[j, b] = values
    return buckets, [len(row) for row in rows], flows, places


def _messages(size_bytes: int, workers: int, message_bytes: int) -> int:
    """Messages of a segment [Gloo's rule]: at least two, and none longer than `message_bytes`."""
    return max(2, math.ceil(math.ceil(size_bytes / message_bytes) / workers))
