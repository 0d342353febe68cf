"""How much a sender has under way: the window, and the rules that move it.

    on_result  a result or a credit has come, with a congestion mark or without
    on_loss    chunks were lost, or are overdue

Three rules to choose from:

- `fixed`: the window stays as it is;
- `aimd`: one more for each round trip, half on a mark or a loss, at most once a window [ATP];
- `alone`: for networks that do not mark: once a round, each worker by its own losses and round trips. Both contain the
  lateness of the other workers, so the windows of one job drift apart: the rule is kept to show what comes of that.
"""

from typing import Any

from paceline.dataplane.compiled import compiled, compiled_apart

FIXED = 0
AIMD = 1
ALONE = 2
CONGESTION = {"fixed": FIXED, "aimd": AIMD, "alone": ALONE}

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
def on_result(sender: Any, chunk: int, marked: bool, grows: bool, now_ns: int) -> None:
    """News of a chunk; `grows` is false for one that had left the window before."""
    if sender.congestion == FIXED:
        return
    if sender.congestion == ALONE:
        sender.results += 1
        return
    if marked:
        sender.marks += 1
        _halve(sender, chunk)
    elif grows:
        _grow(sender)


@compiled
def on_loss(sender: Any) -> None:
    """Something was lost, or is overdue."""
    if sender.congestion == AIMD:
        _halve(sender, sender.oldest)


@compiled
def _grow(sender: Any) -> None:
    if sender.window < sender.threshold:
        sender.window = min(sender.window + 1.0, sender.window_max)
    elif sender.window < sender.window_max:
        sender.window = min(sender.window + 1.0 / sender.window, sender.window_max)


@compiled
def _halve(sender: Any, chunk: int) -> None:
    """At most once for each window of chunks."""
    if chunk < sender.recover:
        return
    sender.recover = sender.next
    sender.window = max(sender.window / 2.0, sender.window_min)
    sender.threshold = sender.window


@compiled
def next_window(window: float, lost: int, results: int, rtt_ns: float, rtt_min_ns: float) -> float:
    """`alone`: the window of the next round, before its limits."""
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
def end_round(sender: Any, now_ns: int) -> bool:
    """`alone`: call after results; True if a round (a window of results) has ended and the window was set anew."""
    if sender.congestion != ALONE or sender.highest_done < sender.round_end:
        return False
    results = sender.results - sender.round_results
    timeouts = sender.timeouts - sender.round_timeouts
    lost = max(0, sender.resent - sender.round_resent - timeouts)
    if 2 * timeouts < results:
        # A whole window overdue is a worker that is late, not a path that loses.
        lost += timeouts
    else:
        # Or a path slower than its timer: what went twice gives no round trip to learn that from.
        sender.rto_ns = min(2 * sender.rto_ns, sender.rto_max_ns)
    rtt_ns = sender.srtt_ns
    old = now_ns - sender.rtt_min_at_ns > _RTT_MEMORY_NS
    if rtt_ns > 0.0 and (sender.rtt_min_ns == 0.0 or old or rtt_ns < sender.rtt_min_ns):
        sender.rtt_min_ns = rtt_ns
        sender.rtt_min_at_ns = now_ns
    window = next_window(sender.window, lost, results, rtt_ns, sender.rtt_min_ns)
    sender.window = min(max(window, sender.window_min), sender.window_max)
    if rtt_ns > 0.0:
        sender.reorder_rtts = min(max(1.5, 1.0 + 4.0 * sender.rttvar_ns / rtt_ns), 3.0)
    sender.round_end = sender.next
    sender.round_results = sender.results
    sender.round_timeouts = sender.timeouts
    sender.round_resent = sender.resent
    return True


@compiled
def patience_ns(sender: Any) -> int:
    """How long a custodian beside this sender waits before it asks: by the sender's round trip."""
    return int(min(max(2.0 * sender.srtt_ns, _PATIENCE_MIN_NS), _PATIENCE_MAX_NS))
