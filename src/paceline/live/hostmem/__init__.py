"""Ranks of one host reduce among themselves in shared memory."""
