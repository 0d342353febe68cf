"""Where a problem comes from: clusters, jobs, generators, traces."""
