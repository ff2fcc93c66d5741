"""What the control path costs: `python -m benchmarks.control`; benchmarks/README.md has the figures."""
