"""Engines behind one protocol: this machine, Slurm, Ray."""
