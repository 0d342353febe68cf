"""The scheduler paper's figures over many seeds, beside its values."""
