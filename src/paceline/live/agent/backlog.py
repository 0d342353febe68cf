"""What a worker has sent and the kernel has not: chunks that wait for the worker's own link.

A window is full as soon as its packets are with the kernel, however slow the link. So a slow link shows only here: in
the memory that the kernel holds for packets of this socket that have not left yet.
"""

import numpy as np

from paceline.compile.decorators import compiled_apart
from paceline.core.wire import HEADER_BYTES
from paceline.live.agent.state import Loop
from paceline.live.net.libc import getsockopt

_SOL_SOCKET = 1
_SO_MEMINFO = 55
_MEMINFO_BYTES = 36
_WRITE_ALLOCATED = 2
"""Place in the kernel's answer: bytes of packets to be sent, with what it needs to keep them."""
_LENGTH = 12


@compiled_apart
def sent_chunks(loop: Loop) -> int:
    """Up to which chunk contributions have left this host; never less than what is finished."""
    sender = loop.senders.state[0]
    words = loop.roles.memory
    outbox = loop.outbox
    waiting = np.int64(0)
    for at in range(outbox.cells[0].flushed, outbox.cells[0].trains):
        waiting += outbox.trains[at].bytes
    words[_LENGTH] = np.uint32(_MEMINFO_BYTES)
    address = loop.roles.watch[0].memory_at
    if getsockopt(loop.control[0].fd, _SOL_SOCKET, _SO_MEMINFO, address, address + 4 * _LENGTH) == 0:
        waiting += np.int64(words[_WRITE_ALLOCATED])
    chunks = waiting // (HEADER_BYTES + 4 * loop.control[0].elements)
    return int(max(sender.oldest, sender.next - chunks))
