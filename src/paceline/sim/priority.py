"""A packet's priority under ESA: the rule that the live hosts use too (`paceline.priority`)."""

from paceline.priority import MIDDLE, STEPS_PER_OCTAVE, PriorityRule, priority

__all__ = ["MIDDLE", "STEPS_PER_OCTAVE", "PriorityRule", "priority"]
