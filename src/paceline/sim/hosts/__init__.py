"""What hosts do: compute, send and receive, keep sums; the ring baseline."""
