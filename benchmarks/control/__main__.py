"""`python -m benchmarks.control`: what the control path costs; `make bench-control`."""

from __future__ import annotations

from benchmarks.parts import Parts

PARTS = Parts(
    "benchmarks.control",
    "control",
    {
        "groups": "groups:measure_groups",
        "growth": "groups:measure_growth",
        "turns": "turns:measure_turns",
        "ledger": "ledger:measure_ledger",
        "memory": "memory:measure_memory",
        "watchers": "watchers:measure_watchers",
        "curves": "curves:measure_curves",
        "table": "table:measure_table",
        "store": "store:measure_store",
        "scheduler": "scheduler:measure_scheduler",
        "start": "start:measure_start",
        "idle": "idle:measure_idle",
        "publication": "publication:measure_publication",
    },
    seconds=3600,
)

if __name__ == "__main__":
    PARTS.main()
