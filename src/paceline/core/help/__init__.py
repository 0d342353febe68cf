"""Help for stragglers: who is slow, who computes what in their place, who stands in for the dead. One policy [ours].

Plain objects that know no driver: events and the time go in, decisions with their reasons come out.

    shares          a worker's contribution in parts, on the wire
    detect          who straggles, and at what
    ledger          which micro-batch is whose: claims, commits, leases
    takeover        who computes which micro-batch next; when a second claim is worth it
    micro_batching  whether an iteration is cut into micro-batches at all
    roles           who leads in the transport, whose work may be taken
    recovery        who stands in for a dead worker

The simulator's coordinator (`sim/help`), PyTorch's keeper (`torch/takeover`) and the agent's loop (`live`) drive them.
"""
