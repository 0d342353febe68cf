"""The protocol core: pure functions over records, compiled by Numba and equally runnable interpreted."""
