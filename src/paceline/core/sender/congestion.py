"""How much a sender has under way: the window, and the rules that move it.

    on_send      a new chunk goes out
    on_result    a result or a credit has come
    on_loss      a loss is certain, or (where lost packets are resent unasked) something is overdue
    end_round    after results: has a round ended? Then the window is set anew
    window_of    what may be under way now

Rules to choose from:

- `together`: for the workers of one sum, which share one fate. Each has a window of its own and says it in every
  contribution; the sum keeps the least, its result tells everyone, and nobody has more under way than that. So the
  windows of a job are equal within a round trip, and the worker with the worst path decides. The last worker to send
  a chunk waits for nobody: the round trips of those chunks are the network's alone. Once a round (a window of
  results) a worker looks at what the round showed:

  | sign | in | window |
  |---|---|---|
  | congestion marks | the results, of whichever link | less, by half of their share |
  | a queue longer than `queue_ns` | round trips of chunks that this worker came last to | less, by how much |
  | losses, many; or some, and a queue | answers to the worker's own questions | half; or a little less |
  | none of these | | twice as much until the first sign, then `increase` more |

  Two more things bound what is under way:

  - *room*, for the switch's memory (`minds_memory`): a result of a sum that found no aggregator takes one chunk from
    it, any other adds a part. All workers hear the same results, so their rooms are equal [A2TP has a second window for
    this]. There is never more than the job's home has aggregators (`homes.py`). ATP does not mind: it holds an
    aggregator for a whole round trip, however little is under way.
  - its *turn*: of its window a job uses an eighth at the start of a burst (the gradients of an iteration), and all of
    it at the end, or when the burst has lasted as long as bursts do of late, or by a part of each; and its room grows
    by the same share, but never by less than meetings by chance take. So of two jobs that share a link the one that is
    ahead gets ahead further, until one computes while the other sends; each gets the same in the long run, and both
    are faster than in step [after MLTCP, HotNets 2024]. And nobody waits for much longer than it did before, however
    many there are.

- `aimd`: one more for each round trip, half on a mark or a loss, at most once a window [ATP];
- `fixed`: the window stays as it is;
- `alone`: once a round, each worker by its own losses and round trips. Both contain the lateness of the other workers,
  so the windows of one job drift apart: the rule is kept to show what comes of that.

Competing traffic that fills every queue (a TCP flow) would leave `together` nothing: where half of the window is gone
and the queue is as long as it was, the queue is not ours, and the target rises until it is shorter; it falls back when
the queue is gone. (One cut says nothing: the other jobs grow meanwhile. Targets of eight jobs rose to 100 ms that way.)
"""

from typing import Any

from paceline.compile.decorators import compiled
from paceline.core.wire import COLLISION, ECN, WINDOW_MAX

FIXED = 0
AIMD = 1
ALONE = 2
TOGETHER = 3
CONGESTION = {"fixed": FIXED, "aimd": AIMD, "alone": ALONE, "together": TOGETHER}

LOSS_NONE = 0.02
LOSS_HEAVY = 0.3
LOSS_CUT = 0.15
ROOM_GROWTH = 1.0
"""A sum that found no aggregator takes one from the job's room, one that did adds `ROOM_GROWTH / room`: a job with room
for r chunks settles where one in r finds none."""
ROOM_GROWTH_MIN = 0.03
"""But at least this: rows of two jobs meet in ample memory too, and one sum in thirty without a place costs little."""
ROOM_GROWTH_MAX = 0.1
"""And at most this, so that at most one in eleven finds none however little room there is."""
ROOM_CLEAN = 1e5
"""The longer all find one, the more they add: n in a row together n * n / 2e5."""
ROOM_START = 0.125
"""The room at the start, as a share of the switch's aggregators."""
ROOM_LEAST = 1.0 / 512.0
"""The least room, as a share of the switch's aggregators: sums that meet in ample memory are bad luck, not its end."""
LEAD = 8.0
"""How many times the window of its beginning a job has at the end of a burst."""
BURST_GAIN = 0.25
"""How much the last burst counts in how long bursts take."""
BURST_GAP_RTTS = 4.0
"""A pause of so many round trips ends a burst."""
TARGET_RISE_MAX = 8.0
RTT_QUEUEING = 1.5
RTT_FREE = 1.25
QUEUE_NS = 20e6
"""A queue of this length keeps a link busy while its sender waits for a processor; a longer one only delays."""
_RTT_MEMORY_NS = 10_000_000_000


@compiled
def window_of(sender: Any) -> float:
    """What may be under way now, in chunks."""
    if sender.congestion != TOGETHER:
        return float(sender.window)
    own = _own_window(sender)
    if sender.agreed > 0.0 and sender.custody == 0:
        return float(min(own, sender.agreed))
    return float(own)


@compiled
def _own_window(sender: Any) -> float:
    return float(max(1.0, min(sender.window * share_in_use(sender), sender.room, sender.window_max)))


@compiled
def share_in_use(sender: Any) -> float:
    """How much of its window a job uses: by how far it is in its burst, and for how long it has been at it."""
    if sender.burst_length <= 0:
        return 1.0
    turn = (sender.next - sender.burst_first) / sender.burst_length
    if sender.burst_took_ns > 0.0:
        turn += sender.burst_age_ns / sender.burst_took_ns
    return float((1.0 + (LEAD - 1.0) * min(1.0, turn)) / LEAD)


@compiled
def on_send(sender: Any, chunk: int, now_ns: int) -> None:
    """A new chunk is sent; the first after a pause begins a burst, as long as the longest of late."""
    if sender.unfinished == 0 and now_ns - sender.idle_ns > BURST_GAP_RTTS * sender.srtt_ns:
        length = chunk - sender.burst_first
        took_ns = float(sender.idle_ns - sender.burst_ns)
        if sender.burst_length == 0 and sender.congestion == TOGETHER:
            # The first burst was sent without regard to others; the second begins where it ended.
            sender.window = min(LEAD * sender.window, LEAD * sender.window_max)
        sender.burst_length = max(length, sender.burst_length - sender.burst_length // 8)
        before_ns = sender.burst_took_ns if sender.burst_took_ns > 0.0 else took_ns
        sender.burst_took_ns = before_ns + BURST_GAIN * (took_ns - before_ns)
        sender.burst_first = chunk
        sender.burst_ns = now_ns
    elif sender.next == 0:
        sender.burst_ns = now_ns
    sender.burst_age_ns = float(now_ns - sender.burst_ns)


@compiled
def told_window(sender: Any) -> int:
    """What a contribution says of this sender's window; 0 where it has nothing to say."""
    if sender.congestion != TOGETHER:
        return 0
    return int(min(_own_window(sender), WINDOW_MAX))


@compiled
def on_result(sender: Any, packet: Any, grows: bool) -> None:
    """News of a chunk; `grows` is false for one that had left the window before."""
    if sender.congestion == FIXED:
        return
    sender.results += 1
    marked = packet.flag & ECN != 0
    if marked:
        sender.marks += 1
    if sender.congestion == TOGETHER:
        if packet.flag & COLLISION:
            sender.fallbacks += 1
        if sender.minds_memory != 0:
            _move_room(sender, packet.flag & COLLISION != 0)
        if packet.window > 0 and packet.chunk >= sender.agreed_chunk:
            sender.agreed = float(packet.window)
            sender.agreed_chunk = packet.chunk
    elif sender.congestion == AIMD:
        if marked:
            _halve(sender, packet.chunk)
        elif grows:
            _grow(sender)


@compiled
def most_room(sender: Any) -> float:
    """The most chunks that room lets be under way; with more than its home has aggregators a job would meet itself."""
    if sender.minds_memory == 0:
        return float(sender.window_max)
    return float(max(1.0, min(sender.window_max, sender.slots // max(1, sender.sharers))))


@compiled
def _move_room(sender: Any, fell_back: bool) -> None:
    if not fell_back:
        sender.room_clean += 1
        growth = min(max(ROOM_GROWTH / sender.room, ROOM_GROWTH_MIN), ROOM_GROWTH_MAX)
        growth += sender.room_clean / ROOM_CLEAN
        if sender.room < sender.room_threshold:
            growth = 1.0
        growth = max(growth * share_in_use(sender), ROOM_GROWTH_MIN)
        sender.room = min(sender.room + growth, most_room(sender))
        return
    # What was never used was never tried. And a train of chunks that met another's says little about the next.
    used = min(sender.room, sender.agreed) if sender.agreed > 0.0 else sender.room
    sender.room = max(1.0, used - 1.0, 0.5 * sender.round_room, ROOM_LEAST * sender.slots)
    sender.room_threshold = sender.room
    sender.room_clean = 0


@compiled
def on_loss(sender: Any) -> None:
    """Something was lost, or is overdue."""
    sender.losses += 1
    if sender.congestion == AIMD:
        _halve(sender, sender.oldest)


@compiled
def on_pure_rtt(sender: Any, rtt_ns: int) -> None:
    """A round trip that contains no waiting for other workers."""
    sender.round_rtt_ns += rtt_ns
    sender.round_rtts += 1


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
def end_round(sender: Any, now_ns: int) -> bool:
    """Call after results; True if a round has ended and the window was set anew."""
    if sender.congestion < ALONE or sender.highest_done < sender.round_end:
        return False
    results = sender.results - sender.round_results
    if sender.congestion == TOGETHER:
        _move_together(sender, results, now_ns)
    else:
        _move_alone(sender, results, now_ns)
    if sender.srtt_ns > 0.0:
        sender.reorder_rtts = min(max(1.5, 1.0 + 4.0 * sender.rttvar_ns / sender.srtt_ns), 3.0)
    sender.round_end = sender.next
    sender.round_results = sender.results
    sender.round_marks = sender.marks
    sender.round_losses = sender.losses
    sender.round_timeouts = sender.timeouts
    sender.round_resent = sender.resent
    sender.round_rtt_ns = 0
    sender.round_rtts = 0
    sender.round_room = sender.room
    sender.rounds += 1
    return True


@compiled
def _remember_shortest(sender: Any, rtt_ns: float, now_ns: int) -> None:
    old = now_ns - sender.rtt_min_at_ns > _RTT_MEMORY_NS
    if rtt_ns > 0.0 and (sender.rtt_min_ns == 0.0 or old or rtt_ns < sender.rtt_min_ns):
        sender.rtt_min_ns = rtt_ns
        sender.rtt_min_at_ns = now_ns


@compiled
def _move_together(sender: Any, results: int, now_ns: int) -> None:
    count = max(1, results)
    cut = 0.5 * (sender.marks - sender.round_marks) / count
    queue_ns = 0.0
    target_ns = sender.queue_ns * sender.target_rise
    if sender.round_rtts > 0:
        rtt_ns = sender.round_rtt_ns / sender.round_rtts
        _remember_shortest(sender, rtt_ns, now_ns)
        queue_ns = rtt_ns - sender.rtt_min_ns
        if sender.queue_ns > 0.0:
            if queue_ns > target_ns:
                cut = max(cut, 0.5 * (queue_ns - target_ns) / queue_ns)
                if sender.cut_queue_ns == 0.0:
                    sender.cut_queue_ns = queue_ns
                    sender.cut_window = sender.window
                elif sender.window < 0.5 * sender.cut_window:
                    # Half of the window is gone, and the queue is as long as it was: it is another's.
                    if queue_ns > 0.9 * sender.cut_queue_ns:
                        sender.target_rise = min(sender.target_rise * 1.5, TARGET_RISE_MAX)
                    sender.cut_queue_ns = queue_ns
                    sender.cut_window = sender.window
            elif queue_ns < 0.5 * sender.queue_ns:
                sender.target_rise = max(1.0, sender.target_rise * 0.7)
                sender.cut_queue_ns = 0.0
    losses = sender.losses - sender.round_losses
    share = losses / (losses + count)
    if share > LOSS_HEAVY:
        cut = 0.5
    elif share > LOSS_NONE and queue_ns > 0.5 * sender.queue_ns:
        cut = max(cut, LOSS_CUT)
    if cut > 0.0:
        sender.window = sender.window * (1.0 - min(cut, 0.5))
        sender.threshold = sender.window
    elif sender.window < sender.threshold:
        sender.window = 2.0 * sender.window
    else:
        sender.window = sender.window + sender.increase
    if sender.agreed > 0.0:
        # Another worker's path holds the job back: what this one would allow was never tried.
        sender.window = min(sender.window, (2.0 * sender.agreed + sender.increase) / share_in_use(sender))
    # Beyond its most, so that a job that nobody slows down has that much under way from the start of a burst.
    sender.window = min(max(sender.window, sender.window_min), LEAD * sender.window_max)


@compiled
def _move_alone(sender: Any, results: int, now_ns: int) -> None:
    timeouts = sender.timeouts - sender.round_timeouts
    lost = max(0, sender.resent - sender.round_resent - timeouts)
    if 2 * timeouts < results:
        # A whole window overdue is a worker that is late, not a path that loses.
        lost += timeouts
    else:
        # Or a path slower than its timer: what went twice gives no round trip to learn that from.
        sender.rto_ns = min(2 * sender.rto_ns, sender.rto_max_ns)
    _remember_shortest(sender, sender.srtt_ns, now_ns)
    window = next_window(sender.window, lost, results, sender.srtt_ns, sender.rtt_min_ns)
    sender.window = min(max(window, sender.window_min), sender.window_max)


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
