"""The report of a run's folder: read, drawn, compared."""
