"""`python -m benchmarks.reward`: the reward service's numbers; `make bench-reward`."""

from __future__ import annotations

from benchmarks.parts import Parts

PARTS = Parts(
    "benchmarks.reward",
    "reward",
    {
        "throughput": "throughput:measure_throughput",
        "hostile": "hostile:measure_hostile",
        "leak": "leak:measure_leak",
        "plugins": "plugins:measure_plugins",
    },
    seconds=1800,
)

if __name__ == "__main__":
    PARTS.main()
