"""The papers' experiments, one module each, over a common harness."""
