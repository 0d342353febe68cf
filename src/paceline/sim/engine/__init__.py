"""The event loop and the network: queue, links, forwarding, programs on hosts."""
