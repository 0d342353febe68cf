"""How long a sender waits: the round trip and the timer, by RFC 6298. Pure arithmetic on a sender's record."""

from typing import Any

import numpy as np

from paceline.compile.decorators import compiled
from paceline.core.bits import mix
from paceline.core.sender.state import SENT


@compiled
def is_overtaken(sender: Any, chunk: int) -> bool:
    """Have results far enough ahead of it come? At the end of what there is to send, any result ahead counts."""
    distance = sender.reorder_chunks if sender.next < sender.released else 1
    return bool(chunk + distance <= sender.highest_done)


@compiled
def due_ns(sender: Any, flight: Any) -> int:
    """When a chunk is overdue; after a time-out a little later for some, so that workers fall out of step."""
    if sender.in_order != 0 and flight.state == SENT and is_overtaken(sender, flight.chunk):
        # The others went on: nobody is late, it was lost. The timer's floor is for those who are late.
        patience_ns = np.int64(sender.reorder_rtts * sender.srtt_ns) + sender.rto_min_ns // 16
        again = flight.backoff if sender.inquires != 0 else flight.resends
        return int(flight.sent_ns + min(patience_ns << min(again, 10), sender.rto_max_ns))
    if flight.backoff > 0:
        wait_ns = min(sender.rto_ns << min(flight.backoff, 10), sender.rto_max_ns)
        return int(flight.sent_ns + wait_ns + wait_ns * (mix(sender.worker + 1, flight.chunk) & 255) // 1024)
    return int(flight.sent_ns + min(sender.rto_ns << min(flight.backoff, 10), sender.rto_max_ns))


@compiled
def sample_rtt(sender: Any, rtt_ns: int) -> None:
    """RFC 6298, section 2: the smoothed round trip, its variation, the timer."""
    if sender.srtt_ns == 0.0:
        sender.srtt_ns = float(rtt_ns)
        sender.rttvar_ns = rtt_ns / 2.0
    else:
        sender.rttvar_ns += 0.25 * (abs(sender.srtt_ns - rtt_ns) - sender.rttvar_ns)
        sender.srtt_ns += 0.125 * (rtt_ns - sender.srtt_ns)
    rto_ns = np.int64(sender.srtt_ns + 4.0 * sender.rttvar_ns)
    sender.rto_ns = min(max(rto_ns, sender.rto_min_ns), sender.rto_max_ns)
