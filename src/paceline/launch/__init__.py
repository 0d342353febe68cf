"""Launchers: a plan becomes running jobs, on this machine, on Slurm or on Ray; what happened is kept on disk."""
