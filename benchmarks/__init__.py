"""Speed, as ratios against peers measured in the same run. Run one as `python -m benchmarks.NAME`."""
