"""Measurements of Headwater, beside yardsticks: `python -m benchmarks [NAME ...] [--quick]`."""
