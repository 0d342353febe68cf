"""What the line allows: the fastest that an in-network sum could be, and nccl-tests' two bandwidths.

In a sum inside the network every worker sends its tensor once and receives it once, both at the same time. So the
ideal time is `size / goodput`, where the goodput is the link's rate times the share of each frame that is tensor:
the rest is Ethernet's, IP's, UDP's and our own header. Preamble and gap are not in it, since the limiter does not
count them. Numbers travel as 32-bit integers: 16-bit types use half of a packet's payload.

A ring needs `2 (n - 1) / n` times the size over every link, nearly twice as much. nccl-tests' *busbw* multiplies by
that factor, so that a perfect ring shows the link's rate. **The busbw of an in-network sum can therefore exceed the
link's rate**: it says how fast a ring's links would have to be.
"""

from paceline.core.wire import HEADER_BYTES
from paceline.live.net.sockets import elements_for

ETHERNET_BYTES = 14
IP_UDP_BYTES = 28
ELEMENT_BYTES = 4
"""On the wire, whatever the tensor's type."""


def payload_share(mtu: int, item_bytes: int = ELEMENT_BYTES) -> float:
    """Tensor bytes over frame bytes, of a full packet."""
    elements = elements_for(mtu)
    frame = ETHERNET_BYTES + IP_UDP_BYTES + HEADER_BYTES + elements * ELEMENT_BYTES
    return elements * item_bytes / frame


def ideal_s(size_bytes: int, rate_bps: float, mtu: int, item_bytes: int = ELEMENT_BYTES) -> float:
    """Seconds that an in-network sum takes at least."""
    return size_bytes * 8 / (rate_bps * payload_share(mtu, item_bytes))


def algbw_gbytes(size_bytes: int, seconds: float) -> float:
    """Tensor bytes a second, in GB/s."""
    return size_bytes / seconds / 1e9


def busbw_gbytes(size_bytes: int, seconds: float, workers: int) -> float:
    """What a ring's busiest link would carry in this time, in GB/s."""
    return algbw_gbytes(size_bytes, seconds) * 2 * (workers - 1) / workers
