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
        ("oldest", "i8"),
        ("next", "i8"),
        ("released", "i8"),
        ("scan", "i8"),
        ("highest_done", "i8"),
        ("recover", "i8"),
        ("unfinished", "i8"),
        ("lost", "i8"),
        ("resend_from", "i8"),
        ("ready_head", "i8"),
        ("ready_count", "i8"),
        ("window", "f8"),
        ("threshold", "f8"),
        ("srtt_ns", "f8"),
        ("rttvar_ns", "f8"),
        ("rto_ns", "i8"),
        ("timer_ns", "i8"),
        ("mask", "u8"),
        ("share", "u8"),
        ("leaders", "u8"),
        ("budget", "i8"),
        ("limit", "i8"),
        ("credited", "i8"),
        ("asking", "i8"),
        ("ask_from", "i8"),
        ("highest_result", "i8"),
        ("overtaken", "i8"),
        ("behind", "i8"),
        ("sent", "i8"),
        ("resent", "i8"),
        ("timeouts", "i8"),
        ("duplicates", "i8"),
        ("marks", "i8"),
        ("credits", "i8"),
        ("queries", "i8"),
        ("failed", "i8"),
        ("results", "i8"),
        ("fallbacks", "i8"),
        ("losses", "i8"),
        ("nacks", "i8"),
        ("confirms", "i8"),
        ("suspect", "i8"),
        ("agreed", "f8"),
        ("agreed_chunk", "i8"),
        ("queue_ns", "f8"),
        ("room", "f8"),
        ("room_threshold", "f8"),
        ("room_clean", "i8"),
        ("round_room", "f8"),
        ("burst_first", "i8"),
        ("burst_length", "i8"),
        ("idle_ns", "i8"),
        ("target_rise", "f8"),
        ("cut_queue_ns", "f8"),
        ("increase", "f8"),
        ("rounds", "i8"),
        ("round_end", "i8"),
        ("round_results", "i8"),
        ("round_marks", "i8"),
        ("round_losses", "i8"),
        ("round_resent", "i8"),
        ("round_timeouts", "i8"),
        ("round_rtt_ns", "i8"),
        ("round_rtts", "i8"),
        ("rtt_min_ns", "f8"),
        ("rtt_min_at_ns", "i8"),
        ("window_min", "f8"),
        ("window_max", "f8"),
        ("reorder_rtts", "f8"),
        ("rto_min_ns", "i8"),
        ("rto_max_ns", "i8"),
        ("reorder_chunks", "i8"),
        ("resends_max", "i8"),
        ("slots", "i8"),
        ("span", "i4"),
        ("job", "i4"),
        ("epoch", "i4"),
        ("worker", "i4"),
        ("rack", "i4"),
        ("fan_in", "i4"),
        ("fan_in_upper", "i4"),
        ("count", "i4"),
        ("pool", "i4"),
        ("flush", "i4"),
        ("congestion", "i4"),
        ("custody", "i4"),
        ("flush_always", "i4"),
        ("owner", "i4"),
        ("silent", "i4"),
        ("parted", "i4"),
        ("in_order", "i4"),
        ("inquires", "i4"),
        ("minds_memory", "i4"),
    ],
    align=True,
)
"""A sender. For helping stragglers: `custody`, `flush_always`, `leaders` and `fan_in` are its role; `mask`, `owner` and
`share` what it contributes (`silent`: nothing; `parted`: it was told what, and that may change); `budget` (chunks, 0:
the span) and `limit` (a chunk, 0: none) how far it may run ahead. `in_order`: on this path results overtake each
other only where something was lost or went another way, so overtaken chunks (`behind` of them are unfinished) are
judged again and again, give no round trip, and leave room in the window. `inquires`: what is overdue is asked for,
and sent again only where the answer says so; else it is sent again at once."""

FLIGHT = np.dtype(
    [
        ("chunk", "i8"),
        ("sent_ns", "i8"),
        ("index", "i8"),
        ("wanted", "i8"),
        ("resends", "i4"),
        ("backoff", "i4"),
        ("state", "u1"),
        ("fresh", "u1"),
        ("asks", "u1"),
        ("counted", "u1"),
    ],
    align=True,
)
"""A chunk in flight. `fresh`: to be sent anew, not flushed; `asks`: a query is to be sent; `counted`: an
answer said that the contribution is there, and others are waited for; `wanted`: a chunk of this place that a custodian
pulled before it was sent."""


class Senders(NamedTuple):
    """Senders of a driver: `state[i]`, and the chunks in flight of each in `flights[i, chunk % span]`."""

    state: Any
    flights: Any
    ready: Any


def new_senders(count: int, span: int) -> Senders:
    """Room for `count` senders whose spans are at most `span`; fill in the configuration, then `start`."""
    return Senders(
        np.zeros(count, dtype=SENDER).view(np.recarray),
        np.zeros((count, span), dtype=FLIGHT).view(np.recarray),
        np.zeros((count, span), dtype=np.int64),
    )
