"""Sweeps: points run in parallel, here or on Ray, and go on where they stopped."""
