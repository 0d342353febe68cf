"""Measuring all-reduce as a user gets it: real processes, the real backend, a peer in the same run."""
