"""What senders keep: flight states, verdicts, and the records of senders and their flights.

`program.py` is the program that runs over this state, `roles.py` what others tell a sender; a driver makes it with
`new_senders`.
"""

from typing import Any, NamedTuple

import numpy as np

IDLE = 0
SENT = 1
LOST = 2
DONE = 3
QUEUED = 4
CREDITED = 5
"""Counted by its custodian: out of the window, its buffer kept, no result yet."""
FLIGHT_STATES = ("idle", "sent", "lost", "done", "queued", "credited")

NEW = 0
DUPLICATE = 1
UNKNOWN = 2

IGNORE = 0
ANSWER_IT = 1
POLL = 2
PULL_ANSWERS = ("ignore", "answer it", "poll")
"""What a pull asks of the driver: nothing; to send the held result as an answer; to poll the sender."""

NEVER_NS = np.iinfo(np.int64).max

SENDER = np.dtype(
    [
        # Where the stream is, in chunks. What every packet needs comes first, so that it is in few cache lines.
        ("oldest", "i8"),  # the first chunk without a result; all below it are done
        ("next", "i8"),  # the first chunk that was never sent
        ("released", "i8"),  # chunks below this have their gradients ready
        ("unfinished", "i8"),  # chunks that were sent, or passed over, and have no result
        ("highest_done", "i8"),  # the highest chunk that is done or credited; -1: none
        ("behind", "i8"),  # unfinished chunks up to `highest_done`
        ("credited", "i8"),  # how many chunks a custodian counts already
        ("lost", "i8"),  # of these, how many wait to be sent again
        ("asking", "i8"),  # how many chunks are to be asked for by a query
        ("budget", "i8"),  # how many chunks past the oldest it may be; 0: as far as the span
        ("limit", "i8"),  # it sends only chunks below this; 0: no limit
        ("timer_ns", "i8"),  # when `handle_timeout` is to be called next
        # The timer.
        ("rto_ns", "i8"),  # the timer before back-off
        ("srtt_ns", "f8"),  # the smoothed round trip; 0: no sample yet
        ("rttvar_ns", "f8"),  # its variation
        # What is under way (`congestion.py`).
        ("window", "f8"),  # the sender's own window, in chunks, before other bounds
        ("room", "f8"),  # how many chunks the switch's memory has room for
        ("agreed", "f8"),  # the least window of all workers, from results, in chunks; 0: not heard yet
        ("window_max", "f8"),  # most chunks under way
        ("burst_first", "i8"),  # the first chunk of the present burst
        ("burst_length", "i8"),  # chunks of the longest burst of late; 0: none is over yet
        ("burst_ns", "i8"),  # when the present burst began
        ("burst_age_ns", "f8"),  # how long it had lasted when something was last sent
        ("burst_took_ns", "f8"),  # how long bursts take of late; 0: none is over yet
        ("idle_ns", "i8"),  # when the last unfinished chunk got its result
        ("agreed_chunk", "i8"),  # the chunk whose result said so
        ("results", "i8"),  # results and credits that congestion control has seen
        ("room_clean", "i8"),  # sums in a row that found an aggregator
        ("room_threshold", "f8"),  # the room up to which it grows by one a result
        ("round_end", "i8"),  # the round ends with a result of this chunk or a later one
        ("round_rtt_ns", "i8"),  # sum of the round's round trips that contain no waiting for others
        ("round_rtts", "i8"),  # how many these are
        # Who it is, what it contributes, and its role [ours].
        ("mask", "u8"),  # bits of the workers that its packets hold
        ("share", "u8"),  # micro-batches of `owner` that its packets hold; 0: none
        ("job", "i4"),  # its job's number
        ("epoch", "i4"),  # sums of another epoch are not this one's
        ("worker", "i4"),  # its worker's number in the job
        ("rack", "i4"),  # the rack that its worker is in
        ("fan_in", "i4"),  # contributions that complete a sum in the rack's switch
        ("fan_in_upper", "i4"),  # racks that complete a sum in the upper switch; 1: there is none
        ("count", "i4"),  # integers in a full packet
        ("owner", "i4"),  # the worker whose shares it carries, as `bits.place_of`
        ("span", "i4"),  # places for chunks in flight: nothing is sent further past the oldest
        ("pool", "i4"),  # 1: a pool of slots [SwitchML]; 0: a stream
        ("congestion", "i4"),  # the rule that moves the window, one of `CONGESTION`
        ("custody", "i4"),  # 1: custodians acknowledge what they count, and leaders run ahead
        ("flush", "i4"),  # 1: what is sent again takes the switch's partial sum along to the custodian
        ("flush_always", "i4"),  # 1: a straggler, whose packets never hold an aggregator
        ("contributes_nothing", "i4"),  # 1: its packets would hold nothing, so chunks are passed over unsent
        ("in_order", "i4"),  # 1: only what was lost, or went another way, is overtaken
        ("inquires", "i4"),  # 1: what is overdue is asked for; 0: it is sent again at once
        ("minds_memory", "i4"),  # 1: sums without an aggregator make `room` smaller
        ("sharers", "i4"),  # jobs that send side by side, as the switch says; 0: not heard yet
        # Settings and counts of every packet.
        ("sent", "i8"),  # gradients sent, resends among them
        ("slots", "i8"),  # aggregators that its job may use
        ("reorder_chunks", "i8"),  # a chunk is overtaken by results so many chunks ahead of it
        ("highest_result", "i8"),  # the highest chunk with a result; -1: none
        ("rto_min_ns", "i8"),  # the timer's floor
        ("rto_max_ns", "i8"),  # the timer's ceiling, back-off included
        ("failed", "i8"),  # 1: a chunk timed out too often, and nothing is sent any more
        # What is needed now and then: places in the stream,
        ("scan", "i8"),  # chunks below this were judged for being overtaken
        ("recover", "i8"),  # `aimd`: no second halving for chunks below this
        ("resend_from", "i8"),  # no chunk below this waits to be sent again
        ("ready_head", "i8"),  # pool: where the queue of places that may send begins
        ("ready_count", "i8"),  # pool: how many places are in that queue
        ("ask_from", "i8"),  # no chunk below this is to be asked for
        ("overtaken", "i8"),  # credited chunks below this were overtaken by results
        ("suspect", "i8"),  # chunks below this may have been lost with the oldest, and are asked for
        ("news_ns", "i8"),  # when the last new result came
        ("leaders", "u8"),  # workers that custodians are chosen from, as bits; 0: all
        ("threshold", "f8"),  # the window up to which it grows fast, in chunks
        # counts since the sender was made,
        ("resent", "i8"),  # gradients sent again
        ("timeouts", "i8"),  # chunks whose timer ran out
        ("duplicates", "i8"),  # results that were there already
        ("marks", "i8"),  # results with a congestion mark
        ("credits", "i8"),  # acknowledgements that took a chunk out of the window
        ("queries", "i8"),  # questions sent
        ("fallbacks", "i8"),  # results of sums that found no aggregator
        ("losses", "i8"),  # losses that are certain, or (where nothing is asked) time-outs
        ("nacks", "i8"),  # answers that a contribution is missing
        ("confirms", "i8"),  # answers that a contribution is counted
        # rounds of congestion control,
        ("queue_ns", "f8"),  # the queue that `together` aims at; 0: round trips do not matter
        ("round_room", "f8"),  # the room when the round began
        ("target_rise", "f8"),  # `queue_ns` times this is the present target: 1, more beside queues of others
        ("cut_queue_ns", "f8"),  # the queue that is to become shorter by cutting; 0: none since it was short
        ("cut_window", "f8"),  # the window then
        ("increase", "f8"),  # chunks that a round without a sign of congestion adds
        ("rounds", "i8"),  # rounds that have ended
        ("round_results", "i8"),  # `results` when the round began
        ("round_marks", "i8"),  # `marks` then
        ("round_losses", "i8"),  # `losses` then
        ("round_resent", "i8"),  # `resent` then
        ("round_timeouts", "i8"),  # `timeouts` then
        ("rtt_min_ns", "f8"),  # the shortest round trip of late; 0: none yet
        ("rtt_min_at_ns", "i8"),  # when it was measured
        # settings.
        ("window_min", "f8"),  # least window, in chunks
        ("reorder_rtts", "f8"),  # an overtaken chunk counts as lost after so many round trips
        ("resends_max", "i8"),  # time-outs of a chunk before the sender fails
        ("shares_assigned", "i4"),  # 1: `set_share` said what it contributes, and may say otherwise
    ],
    align=True,
)
"""A sender: where its stream is, what it contributes, its counts, congestion control, settings."""

FLIGHT = np.dtype(
    [
        ("chunk", "i8"),  # the chunk in this place; a stream's idle place has the one before
        ("sent_ns", "i8"),  # when it was last sent, asked for, or confirmed
        ("index", "i8"),  # the aggregator that its place uses
        ("wanted", "i8"),  # a chunk of this place that a custodian pulled before it was sent; -1: none
        ("resends", "i4"),  # how often it was sent again
        ("backoff", "i4"),  # how often its timer was doubled
        ("state", "u1"),  # one of `FLIGHT_STATES`
        ("fresh", "u1"),  # 1: to be sent anew, without a flush
        ("asks", "u1"),  # 1: a query about it is to be sent
        ("counted", "u1"),  # 1: an answer said that the contribution is there, and others are waited for
    ],
    align=True,
)
"""A chunk in flight."""


class Senders(NamedTuple):
    """Senders of a driver: `state[i]`, and the chunks in flight of each in `flights[i, chunk % span]`."""

    state: Any  # a `SENDER` each
    flights: Any  # a `FLIGHT` for each place
    ready: Any  # pool: places that may send, a ring of `span`


def new_senders(count: int, span: int) -> Senders:
    """Room for `count` senders whose spans are at most `span`; fill in the configuration, then `start`."""
    return Senders(
        np.zeros(count, dtype=SENDER).view(np.recarray),
        np.zeros((count, span), dtype=FLIGHT).view(np.recarray),
        np.zeros((count, span), dtype=np.int64),
    )
