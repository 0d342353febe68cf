"""Reducers: which one a group gets, and how each sums a tensor."""
