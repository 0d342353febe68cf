"""The three ideas on an emulated cluster: real processes on limited links, beside what the packet simulator says."""
