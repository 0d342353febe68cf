"""The three ideas alone and together on one workload."""
