"""`python -m benchmarks.training`: the trainer's numbers; `make bench-trainer`."""

from __future__ import annotations

from benchmarks.parts import Parts

PARTS = Parts(
    "benchmarks.training",
    "training",
    {
        "shapes": "shapes:measure_shapes",
        "long_tail": "long_tail:measure_long_tail",
        "long_prompts": "long_prompts:measure_long_prompts",
        "ranks": "ranks:measure_ranks",
        "memory": "memory:measure_memory",
        "prepare": "prepare:measure_prepare",
        "kept_kernels": "kept_kernels:measure_kept_kernels",
        "idle_groups": "idle_groups:measure_idle_groups",
    },
    seconds=3600,
)

if __name__ == "__main__":
    PARTS.main()
