"""The receiving half of an agent: what a datagram must show before it is believed, and who gets it.

A packet counts only if it decodes, comes from the switch or from a worker of the job, carries the job's tag, and its
fields are possible here. Everything else is dropped and counted by its reason, never answered.
"""

from typing import Any

from paceline.compile.decorators import compiled_apart, compiled_inner
from paceline.core.auth import is_genuine
from paceline.core.bits import NO_BITS
from paceline.core.custodian import program as custody
from paceline.core.sender import program as sending
from paceline.core.wire import (
    ACK,
    ANSWER,
    BETWEEN_HOSTS,
    FLAGS_OF_HOSTS,
    FLUSH,
    HAS,
    HEADER_BYTES,
    LEAVES,
    NACK,
    OK,
    PARTIAL,
    PATH,
    PULL,
    QUERY,
    REPORT,
    RESULT,
    ROLE,
    decode_at,
)
from paceline.live.agent.roles import COORDINATOR, hear_role, take_report
from paceline.live.agent.send import (
    acknowledge,
    ask_own,
    give_result,
    make_answer,
    send_answer,
    send_small,
    shard_of,
    take_partial,
    tell_done,
    tell_path,
)
from paceline.live.agent.state import (
    ANSWERS,
    BECAUSE_LAST,
    BECAUSE_SILENT,
    BY_SWITCH,
    CANNOT,
    COUNT_UNKNOWN,
    DROP_CHUNK,
    DROP_COUNT,
    DROP_EPOCH,
    DROP_HEADER,
    DROP_JOB,
    DROP_KIND,
    DROP_MASK,
    DROP_SOURCE,
    DROP_TAG,
    DROP_WORKER,
    HAS_PROVED,
    PULLS_HEARD,
    USES,
    Loop,
)
from paceline.live.agent.tensors import take_result

_EPOCHS_AHEAD = 16
"""How far another worker's epoch may be ahead of ours."""


@compiled_apart
def take_segment(loop: Loop, segment: Any, now_ns: int) -> None:
    """One datagram has arrived."""
    control = loop.control[0]
    packet = loop.packets[1]
    data = loop.inbox.data
    code = decode_at(data, segment.start, segment.length, packet)
    if code != OK:
        loop.counters[DROP_HEADER + code] += 1
        return
    if segment.source != control.source:
        _find_source(loop, segment.source)
    if control.source_shard < 0 and control.source_peer < 0:
        loop.counters[DROP_SOURCE] += 1
        return
    if not is_genuine(control.key0, control.key1, data, segment.start, segment.length, control.full != 0):
        loop.counters[DROP_TAG if packet.job == control.job else DROP_JOB] += 1
        return
    # The key says whose it is. The number is the switch's, which may have given the job another one.
    packet.job = control.job
    if not _is_possible(loop, packet):
        return
    packet.flag &= FLAGS_OF_HOSTS
    payload = loop.inbox.cells[0].buffer + segment.start + HEADER_BYTES
    if control.source_shard >= 0:
        loop.shard_heard[control.source_shard] = now_ns
        if packet.kind == RESULT and packet.count == control.elements and control.path == BY_SWITCH:
            loop.shard_proved[control.source_shard] = now_ns
    elif packet.kind == PARTIAL or packet.kind == ANSWER or packet.kind == QUERY or _pulls_all(packet):
        loop.peer_direct[control.source_peer] = now_ns
    if packet.kind == RESULT:
        take_result(loop, packet, payload, now_ns)
    else:
        _take_other(loop, packet, payload, now_ns)


@compiled_inner
def _pulls_all(packet: Any) -> bool:
    return bool(packet.kind == PULL and packet.flag & FLUSH == 0)


@compiled_apart
def _find_source(loop: Loop, source: Any) -> None:
    """Which shard or worker an address belongs to; remembered, since datagrams come in trains."""
    control = loop.control[0]
    control.source = source
    control.source_shard = -1
    control.source_peer = -1
    for shard in range(control.shards):
        if loop.switch[shard] == source:
            control.source_shard = shard
            return
    for peer in range(control.workers):
        if loop.peers[peer] == source:
            control.source_peer = peer


@compiled_inner
def _is_possible(loop: Loop, packet: Any) -> bool:
    """Fields that the core takes at their word are bounded here."""
    control = loop.control[0]
    sender = loop.senders.state[0]
    if packet.worker >= control.workers or packet.custodian >= control.workers:
        loop.counters[DROP_WORKER] += 1
        return False
    if packet.epoch > sender.epoch + _EPOCHS_AHEAD and packet.kind < BETWEEN_HOSTS:
        loop.counters[DROP_EPOCH] += 1
        return False
    if packet.count > control.elements:
        loop.counters[DROP_COUNT] += 1
        return False
    far = packet.chunk >= sender.oldest + 2 * sender.span
    if control.pool == 0 and far and packet.kind < BETWEEN_HOSTS:
        # Nobody can be that far ahead of us; in a pool only the chunk of each place counts anyway.
        loop.counters[DROP_CHUNK] += 1
        return False
    if packet.kind == PARTIAL and packet.level == 1 and packet.mask & ~control.all_workers:
        loop.counters[DROP_MASK] += 1
        return False
    return True


@compiled_apart
def _take_other(loop: Loop, packet: Any, payload: int, now_ns: int) -> None:
    control = loop.control[0]
    kind = packet.kind
    if kind == PARTIAL or kind == ANSWER or kind == QUERY:
        if kind == QUERY and packet.mask == NO_BITS and packet.worker == control.worker:
            # A question of our own that came back: the switch is alive, and both ways carry packets of this size.
            if control.source_shard >= 0:
                if packet.count == control.elements:
                    loop.shard_proved[control.source_shard] = now_ns
                    control.answered += 1
                control.echo_ns = now_ns
            return
        if packet.custodian != control.worker or control.pool != 0:
            if kind != QUERY:
                loop.counters[DROP_KIND] += 1
            return
        if kind == QUERY and packet.worker == control.worker:
            # Where our contribution is, the switch does not know.
            ask_own(loop, packet, now_ns)
            return
        _at_custodian(loop, packet, payload, now_ns)
    elif kind == PULL:
        asked(loop, packet, now_ns)
    elif kind == NACK:
        sending.handle_nack(loop.senders, 0, packet, now_ns)
    elif kind == ACK:
        sending.handle_ack(loop.senders, 0, packet, now_ns)
    elif control.source_peer >= 0:
        _take_words(loop, packet, control.source_peer, now_ns)
    else:
        loop.counters[DROP_KIND] += 1


@compiled_apart
def _take_words(loop: Loop, packet: Any, peer: int, now_ns: int) -> None:
    """What another worker tells of itself, or of roles."""
    watch = loop.roles.watch[0]
    kind = packet.kind
    if kind == HAS or kind == LEAVES:
        loop.peer_done[peer] = max(loop.peer_done[peer], packet.chunk)
        if kind == LEAVES:
            tell_done(loop, peer, HAS)
    elif kind == REPORT and watch.watches != 0:
        take_report(loop, packet, peer)
    elif kind == ROLE and watch.helps != 0 and peer == COORDINATOR:
        hear_role(loop, packet, now_ns)
    elif kind == PATH:
        _hear_path(loop, packet, peer)
    else:
        loop.counters[DROP_KIND] += 1


@compiled_apart
def _hear_path(loop: Loop, packet: Any, peer: int) -> None:
    """Whether another worker can use the switch; `path` looks at it before the next packet goes."""
    if packet.index <= loop.peer_said[peer]:
        return
    loop.peer_said[peer] = packet.index
    loop.peer_path[peer] = min(packet.offer, HAS_PROVED)
    loop.peer_reason[peer] = packet.window if packet.window <= BECAUSE_LAST else BECAUSE_SILENT
    loop.peer_oldest[peer] = packet.chunk
    if packet.offer > CANNOT and loop.control[0].path == BY_SWITCH:
        # It waits for us, who did not wait for it.
        tell_path(loop, peer, USES)


@compiled_apart
def _at_custodian(loop: Loop, packet: Any, payload: int, now_ns: int) -> None:
    at = packet.chunk % loop.counts.shape[0]
    entry = loop.custodians.chunks[0, at]
    if packet.kind == QUERY:
        payload = loop.control[0].staging
        lanes = loop.control[0].elements
        if entry.chunk < packet.chunk:
            # It is opened without a contribution that would tell.
            loop.counts[at] = COUNT_UNKNOWN
    else:
        lanes = packet.count
        known = entry.chunk == packet.chunk and entry.state != custody.ABSENT
        if known and loop.counts[at] != packet.count and loop.counts[at] != COUNT_UNKNOWN:
            loop.counters[DROP_COUNT] += 1
            return
        if entry.chunk <= packet.chunk:
            loop.counts[at] = packet.count
    verdict = take_partial(loop.custodians, packet, payload, lanes, now_ns)
    if verdict == custody.ACKNOWLEDGE:
        acknowledge(loop, packet, now_ns)
    elif verdict == custody.PULL_REST:
        pull(loop, packet, now_ns)
    elif verdict == custody.UNICAST and packet.kind != RESULT:
        send_small(loop.out, packet, loop.peers[packet.worker])
    elif verdict != custody.NOTHING:
        give_result(loop, packet, payload, verdict == custody.UNICAST, now_ns)


@compiled_apart
def pull(loop: Loop, packet: Any, now_ns: int) -> None:
    """A custodian's question to workers, by the switch or one by one."""
    control = loop.control[0]
    if control.path == BY_SWITCH:
        send_small(loop.out, packet, shard_of(loop, packet.chunk))
        return
    for peer in range(control.workers):
        if peer != control.worker:
            send_small(loop.out, packet, loop.peers[peer])
    asked(loop, packet, now_ns)


@compiled_apart
def asked(loop: Loop, packet: Any, now_ns: int) -> None:
    """A custodian pulls: it gets the result if it is here, else our contribution again."""
    control = loop.control[0]
    loop.counters[PULLS_HEARD] += 1
    newer = packet.chunk >= control.missing_chunk or now_ns - control.missing_ns > 1_000_000_000
    if newer and packet.flag & FLUSH == 0:
        control.missing = packet.mask & control.all_workers
        control.missing_chunk = packet.chunk
        control.missing_ns = now_ns
    sender = loop.senders.state[0]
    flight = loop.senders.flights[0, packet.chunk % sender.span]
    under_way = flight.chunk == packet.chunk and flight.state == sending.SENT
    answers = packet.flag & FLUSH != 0
    if sender.custody != 0 and under_way and not answers and now_ns - flight.sent_ns < sender.rto_ns:
        # Maybe in the queue of a slow link. A second copy would make that longer. We ask when it is due, and the answer
        # to that, which carries a flush, is believed.
        return
    wanted = sending.handle_pull(loop.senders, 0, packet)
    if wanted != sending.ANSWER_IT:
        return
    loop.counters[ANSWERS] += 1
    if packet.custodian != control.worker:
        send_answer(loop, packet)
    else:
        # Custodian of the chunk in this epoch only: as a worker we have the result from another.
        make_answer(loop, packet, control.staging)
        loop.counts[packet.chunk % loop.counts.shape[0]] = packet.count
        if take_partial(loop.custodians, packet, control.staging, packet.count, now_ns) != custody.NOTHING:
            give_result(loop, packet, control.staging, False, now_ns)
