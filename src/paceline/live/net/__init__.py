"""System calls from compiled code: sockets, trains of datagrams, waiting."""
