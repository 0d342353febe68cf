"""Paceline: many deep-learning jobs finish sooner on one shared cluster."""

__version__ = "0.1.0"
