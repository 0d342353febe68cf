"""Drills: a fault file, run in the simulator and against the live system, and judged alike."""
