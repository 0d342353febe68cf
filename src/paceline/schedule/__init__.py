"""Which job runs where and when: contention-aware schedules, their baselines and their bounds."""
