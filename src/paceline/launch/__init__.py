"""Jobs on machines: one small protocol, and a launcher for each engine."""
