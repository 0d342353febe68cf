"""Help for stragglers against ATP, ESA, ring, backup workers and a timeout."""
