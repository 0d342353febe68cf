"""How much a worker has under way on a real network, where nothing marks congestion: loss and round trips decide.

Once a round (as many results as were under way at its beginning):

- hardly a loss: half as much again, up to the limit, unless round trips show a long queue: one that grows faster
  than the timers learn looks like loss, and what is then sent again makes it longer;
- many losses: half of it;
- some losses and round trips well above the shortest: a little less, the path queues;
- some losses and short round trips: a little more, the losses are not of our making.

So random loss does not shrink the window below what the path holds, and a full buffer does.
"""

from typing import Any

from paceline.dataplane.compiled import compiled, compiled_apart, compiled_inner
from paceline.live.agent_state import RESULTS, ROUNDS, Loop

LOSS_NONE = 0.02
LOSS_HEAVY = 0.3
RTT_QUEUEING = 1.5
RTT_FREE = 1.25
QUEUE_NS = 20e6
"""A queue of this length keeps a link busy while its sender waits for a processor; a longer one only delays."""
_RTT_MEMORY_NS = 10_000_000_000
_PATIENCE_MIN_NS = 5_000_000
_PATIENCE_MAX_NS = 1_000_000_000


@compiled
def next_window(window: float, lost: int, results: int, rtt_ns: float, rtt_min_ns: float) -> float:
    """The window of the next round, before its limits."""
    share = lost / max(1, lost + results)
    queues = rtt_ns > max(RTT_QUEUEING * rtt_min_ns, rtt_min_ns + QUEUE_NS)
    if share <= LOSS_NONE:
        return window if queues else window * 1.5
    if share > LOSS_HEAVY:
        return window * 0.5
    if queues:
        return window * 0.85
    if rtt_ns < max(RTT_FREE * rtt_min_ns, rtt_min_ns + 0.5 * QUEUE_NS):
        return window * 1.1
    return window


@compiled_apart
def end_round(loop: Loop, now_ns: int) -> None:
    """Set window, loss patience and the custodian's patience by what the round showed."""
    control = loop.control[0]
    sender = loop.senders.state[0]
    if sender.highest_done < control.round_end or control.pool != 0:
        return
    results = loop.counters[RESULTS] + sender.credits - control.round_results
    timeouts = sender.timeouts - control.round_timeouts
    lost = max(0, sender.resent - control.round_resent - timeouts)
    if 2 * timeouts < results:
        # A whole window overdue is a worker that is late, not a path that loses.
        lost += timeouts
    else:
        # Or a path slower than its timer: what went twice gives no round trip to learn that from.
        sender.rto_ns = min(2 * sender.rto_ns, sender.rto_max_ns)
    rtt_ns = sender.srtt_ns
    old = now_ns - control.rtt_min_at_ns > _RTT_MEMORY_NS
    if rtt_ns > 0.0 and (control.rtt_min_ns == 0.0 or old or rtt_ns < control.rtt_min_ns):
        control.rtt_min_ns = rtt_ns
        control.rtt_min_at_ns = now_ns
    window = next_window(sender.window, lost, results, rtt_ns, control.rtt_min_ns)
    sender.window = min(max(window, sender.window_min), sender.window_max)
    if rtt_ns > 0.0:
        sender.reorder_rtts = min(max(1.5, 1.0 + 4.0 * sender.rttvar_ns / rtt_ns), 3.0)
        patience_ns = min(max(2.0 * rtt_ns, _PATIENCE_MIN_NS), _PATIENCE_MAX_NS)
        loop.custodians.state[0].patience_led_ns = int(patience_ns)
        if sender.custody != 0:
            patience_ns = max(patience_ns, loop.roles.watch[0].patience_ns)
        loop.custodians.state[0].patience_ns = int(patience_ns)
    loop.counters[ROUNDS] += 1
    _begin_round(loop, control, sender)


@compiled_inner
def _begin_round(loop: Loop, control: Any, sender: Any) -> None:
    control.round_end = sender.next
    control.round_results = loop.counters[RESULTS] + sender.credits
    control.round_timeouts = sender.timeouts
    control.round_resent = sender.resent
