"""What an iteration takes when jobs share links and switch memory: the model that plans are made by [ours].

- **Overlap.** Backward releases gradients part by part; a part is sent when it is released and the one before it has
  gone; the next forward pass begins when all are back (the layer that is released last is needed first). With X the
  time that all of it takes to send, an iteration takes `forward + max over parts (released + X * what is left then)`.
- **Share of time.** A neighbour slows a job down only while it sends: for the share `busy` of its own iteration. On
  each link the number n of neighbours that send at a moment is taken as binomial, and the job gets 1 / (1 + n) of the
  link: of a server's, or of a rack's uplink if it spans racks. A job moves as fast as its slowest link lets it, and
  neighbours on different links seldom send together: what counts is whether any of them sends.
- **Ring.** 2 (k - 1) steps over k servers, two messages a step under way (`sim/hosts/ring.py`): a step takes as long as
  its bytes or, if they are few, as a round trip; and a bucket waits for all of its gradients.
- **Memory.** ESA holds an aggregator from the first to the last contribution: senders are as far apart as their windows
  let them, about a round trip to the switch; ATP for a round trip through its server; SwitchML has a pool, split evenly
  between all jobs. What finds none goes to one server's link k times; a pool smaller than a round trip's packets limits
  the rate.

Everything is a pure function of numbers; `kernels.py` walks over jobs and links. Times are in units, rates in bytes a
unit. The constants were set by reasoning and held against packets (`paceline reproduce fidelity`).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.schedule.kernel_cache import compiled

Floats = NDArray[np.float64]

RING, ESA, ATP, SWITCHML = 0, 1, 2, 3
EXCHANGES = {"ring": RING, "esa": ESA, "atp": ATP, "switchml": SWITCHML}
PARTS = 4
"""Lines that describe how a job releases its gradients."""
MOST = 24
"""Neighbours that are told apart on a link."""
COPIES = 2.0
"""A result that an upper switch makes goes down to the job's racks, and once more to its custodian in one of them;
ATP's goes up once more from there."""
SLOW_START_RTTS = 4.0
"""Round trips that a connection needs after a pause, until it fills its link."""


class NetworkT(NamedTuple):
    """The network as the model sees it."""

    on: bool
    """Does this model price jobs? If not, the paper's does."""
    rate: float
    """Of a server's link."""
    uplink: float
    """Of a rack, both ways."""
    delay: float
    """Of a link."""
    payload: float
    """Bytes in a packet, and in an aggregator."""
    slots: float
    """Aggregators of a switch."""
    jobs: float
    """Between how many jobs SwitchML splits its pool."""


@compiled
def expected_rate(count: int, busy: float, capacity: float, most: float) -> float:
    """What a job gets of a link that `count` others use, who send for `busy` of the time together."""
    if count <= 0 or busy <= 0.0:
        return min(capacity, most)
    n = min(count, MOST)
    p = min(busy / n, 1.0 - 1e-9)
    chance = (1.0 - p) ** n
    rate = 0.0
    for sending in range(n + 1):
        rate += chance * min(most, capacity / (1.0 + sending))
        chance *= (n - sending) / (sending + 1.0) * p / (1.0 - p)
    return rate


@compiled
def any_of_several(rate: float, alone: float, free_there: float, free_everywhere: float) -> float:
    """The rate on the worst link, whose neighbours are silent with `free_there`; all neighbours, elsewhere too, are
    silent with `free_everywhere`, and only then the job has its links to itself."""
    if free_there >= 1.0 - 1e-12:
        return rate
    shared = max((rate - alone * free_there) / (1.0 - free_there), 1e-3 * alone)
    return free_everywhere * alone + (1.0 - free_everywhere) * shared


@compiled
def slowest_of(jitter: float, servers: int) -> float:
    """How many times as long an iteration's computing takes, since all wait for the slowest of so many."""
    return 1.0 + jitter * servers / (servers + 1.0)


@compiled
def copies_on_uplinks(kind: int) -> float:
    """How often the gradients of a job that spans racks cross the busiest of its racks' links."""
    return COPIES if kind == ESA or kind == ATP else 1.0


@compiled
def round_trip(network: NetworkT, links: int, rate: float) -> float:
    """Over so many links there and back, each with a packet's time."""
    return links * (network.delay + network.payload / rate)


@compiled
def sending(
    network: NetworkT, kind: int, size: float, servers: int, racks: int, rate: float, holders: float
) -> float:
    """Time to exchange `size` bytes of gradient at a rate; `holders`: jobs that hold switch memory, itself included."""
    across = 2 if racks > 1 else 1
    if kind == RING:
        step = size / servers / rate
        trip = round_trip(network, 4 * across, network.rate)
        return 2.0 * (servers - 1.0) * max(step, 0.5 * step + trip) + SLOW_START_RTTS * trip
    time = size / rate
    if kind == SWITCHML:
        pool = max(1.0, float(np.floor(network.slots / 2.0 / network.jobs)))
        return max(time, size / network.payload / pool * round_trip(network, 2 * across, network.rate))
    if kind == ATP or kind == ESA:
        held = round_trip(network, (4 if kind == ATP else 2) * across, network.rate)
        window = network.rate * held / network.payload
        # Chunks of a job stand side by side: another's are in their way where the two rows overlap.
        found = np.exp(-(holders - 1.0) * window / network.slots)
        if kind == ATP:
            # Its own chunks are in the way too where they hold on for longer than there is room; ESA's come and go.
            found *= min(1.0, network.slots / window)
        time = max(time, size / network.rate * (1.0 + (servers - 1.0) * (1.0 - found)))
    return time


@compiled
def on_links(kind: int, size: float, rate: float, sent: float) -> float:
    """Of the time that sending takes, how long links are in use: a small pool leaves them idle for the most part."""
    return min(sent, size / rate) if kind == SWITCHML else sent


@compiled
def latency(network: NetworkT, kind: int, racks: int) -> float:
    """From the last gradient sent to its result."""
    across = 2 if racks > 1 else 1
    if kind == RING:
        return 0.0
    return round_trip(network, (4 if kind == ATP else 2) * across, network.rate)


@compiled
def iteration(
    forward: float, released: Floats, left: Floats, longer: float, sent: float, trip: float
) -> float:
    """Overlap of computing and sending: `sent` is the time that all gradients take, `longer` what jitter costs."""
    after = 0.0
    for part in range(len(released)):
        after = max(after, longer * released[part] + sent * left[part])
    return longer * forward + after + trip


def parts_of(releases: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Releases (time, share of all bytes) in their order, as at most `PARTS` lines `time + sent * share left`.

    A line that is nowhere the highest does not matter; of the others those stay that matter over the widest range.
    """
    lines = []
    left = 1.0
    for time_s, share in releases:
        lines.append((time_s, left))
        left -= share
    total = max(*(time_s for time_s, _ in lines), 1e-9)
    wins: dict[int, int] = {}
    for sent in np.geomspace(0.01 * total, 100.0 * total, 64):
        best = max(range(len(lines)), key=lambda i: lines[i][0] + sent * lines[i][1])
        wins[best] = wins.get(best, 0) + 1
    chosen = sorted(sorted(wins, key=lambda i: -wins[i])[:PARTS])
    released = [lines[i][0] for i in chosen]
    shares = [lines[i][1] for i in chosen]
    return released + [0.0] * (PARTS - len(chosen)), shares + [0.0] * (PARTS - len(chosen))
