"""Is a sender getting on? Far less than it could of late, for more than a second, and packets wasted.

    look     call it now and then while something is under way; a cause, once for each standstill
    rest     nothing is under way any more; a standstill may go on with what comes next
    restart  on another way nothing is slow yet

A worker that is late also stops the others, but wastes nothing: they ask, are told that they are counted, and wait. A
standstill wastes packets: more are lost, sent again, or asked about in vain than come to something. What it is put
down to:

| cause | sign, in the last second |
|---|---|
| `loss` | more than three in ten of the packets that can be judged were lost |
| `memory` | most results are of sums that found no aggregator |
| `windows` | the agreed window is at its least |
| `custodians` | none of these: sums wait for contributions that went there |
"""

from typing import Any

import numpy as np

from paceline.compile.decorators import compiled, compiled_inner
from paceline.core.sender.congestion import LOSS_HEAVY, window_of

GOOD = 0
LOSS = 1
MEMORY = 2
WINDOWS = 3
CUSTODIANS = 4
CAUSE_NAMES = ("", "loss", "memory", "windows", "custodians")

LOOK_EVERY_NS = 250_000_000
PATIENCE_NS = 1_000_000_000
FAR_LESS = 0.05
"""Of the best rate of late. Twenty jobs that come at once leave each no less."""
_BEST_FADES = 0.98
_SIGNS_FADE = 0.8
_WASTE_MIN = 3.0
_SAMPLE_RESULTS = 32
_SAMPLE_NS = 5_000_000

PROGRESS = np.dtype(
    [
        ("since_ns", "i8"),  # when this interval began; 0 where nothing is under way
        ("slow_since_ns", "i8"),  # when a row of slow intervals began, rests left out; 0 after a good one
        ("rested_ns", "i8"),  # since when nothing is under way
        ("best", "f8"),  # results a second in the best interval of late
        ("cause", "i8"),  # of the present standstill, once it was told
        ("results_then", "i8"),  # results when the interval began
        ("resent_then", "i8"),  # contributions sent again, then
        ("losses_then", "i8"),  # contributions known to be lost, then
        ("fallbacks_then", "i8"),  # results of sums that found no aggregator, then
        ("queries_then", "i8"),  # questions sent, then
        ("confirms_then", "i8"),  # answers that a contribution is counted, then
        ("done", "f8"),  # signs of the slow intervals, the last second's above all: results
        ("confirmed", "f8"),  # answers that a contribution is counted
        ("again", "f8"),  # contributions sent again
        ("lost", "f8"),  # contributions known to be lost, and questions in vain
        ("fallen_back", "f8"),  # results of sums that found no aggregator
    ],
    align=True,
)


@compiled_inner
def _begin(progress: Any, sender: Any, results: int, now_ns: int) -> None:
    progress.since_ns = now_ns
    progress.results_then = results
    progress.resent_then = sender.resent
    progress.losses_then = sender.losses
    progress.fallbacks_then = sender.fallbacks
    progress.queries_then = sender.queries
    progress.confirms_then = sender.confirms


@compiled_inner
def _end(progress: Any) -> None:
    progress.slow_since_ns = 0
    progress.cause = GOOD
    progress.done = progress.confirmed = progress.again = progress.lost = progress.fallen_back = 0.0


@compiled
def rest(progress: Any, sender: Any, results: int, now_ns: int) -> None:
    """Nothing is under way. What was done since the last look shows what the path can do.

    A job that is starved ends a step now and then all the same: only a step that ends well ends a standstill.
    """
    if progress.since_ns == 0:
        return
    done = results - progress.results_then
    took_ns = now_ns - progress.since_ns
    if took_ns >= _SAMPLE_NS:
        rate = done * 1e9 / took_ns
        if done >= _SAMPLE_RESULTS:
            progress.best = max(rate, progress.best)
        if rate >= FAR_LESS * progress.best:
            _end(progress)
        else:
            if progress.slow_since_ns == 0:
                progress.slow_since_ns = progress.since_ns
            _count(progress, sender, results)
    progress.since_ns = 0
    progress.rested_ns = now_ns


@compiled
def restart(progress: Any) -> None:
    """On another way nothing is slow yet."""
    progress.since_ns = 0
    _end(progress)


@compiled
def look(progress: Any, sender: Any, results: int, now_ns: int) -> int:
    """A cause, if a standstill has lasted long enough and was not told yet. `results`: all that the sender ever got."""
    if progress.since_ns == 0:
        if progress.slow_since_ns != 0:
            progress.slow_since_ns += now_ns - progress.rested_ns
        _begin(progress, sender, results, now_ns)
        return GOOD
    took_ns = now_ns - progress.since_ns
    if took_ns < LOOK_EVERY_NS:
        return GOOD
    rate = (results - progress.results_then) * 1e9 / took_ns
    slow = rate < FAR_LESS * progress.best
    progress.best = max(rate, progress.best * _BEST_FADES)
    if not slow:
        _end(progress)
    else:
        if progress.slow_since_ns == 0:
            progress.slow_since_ns = progress.since_ns
        _count(progress, sender, results)
    _begin(progress, sender, results, now_ns)
    if not slow or progress.cause != GOOD or now_ns - progress.slow_since_ns < PATIENCE_NS:
        return GOOD
    wasted = max(progress.again, progress.lost)
    if wasted < _WASTE_MIN or wasted < progress.done + progress.confirmed:
        return GOOD
    progress.cause = _cause(progress, sender)
    return int(progress.cause)


@compiled_inner
def _count(progress: Any, sender: Any, results: int) -> None:
    """The signs of one more slow interval; those before fade."""
    done = results - progress.results_then
    confirmed = sender.confirms - progress.confirms_then
    lost = sender.losses - progress.losses_then
    in_vain = max(0, sender.queries - progress.queries_then - confirmed - lost - done)
    progress.done = _SIGNS_FADE * progress.done + done
    progress.confirmed = _SIGNS_FADE * progress.confirmed + confirmed
    progress.again = _SIGNS_FADE * progress.again + sender.resent - progress.resent_then
    progress.lost = _SIGNS_FADE * progress.lost + lost + in_vain
    progress.fallen_back = _SIGNS_FADE * progress.fallen_back + sender.fallbacks - progress.fallbacks_then


@compiled_inner
def _cause(progress: Any, sender: Any) -> int:
    if progress.lost > LOSS_HEAVY * (progress.lost + progress.done + progress.confirmed):
        return LOSS
    if 2.0 * progress.fallen_back > progress.done > 0.0:
        return MEMORY
    if window_of(sender) <= sender.window_min:
        return WINDOWS
    return CUSTODIANS


@compiled
def slow_ns(progress: Any, now_ns: int) -> int:
    """How long the standstill that was told of has lasted; 0 if there is none."""
    if progress.cause == GOOD:
        return 0
    return int(now_ns - progress.slow_since_ns)
