"""Host-side sums: ATP's parameter server, ESA's fallback host, SA-ATP's leading worker."""
