"""Speed, as ratios in one run. ``python -m benchmarks ppo``."""
