"""Episodes: training with a tool against TRL's, the loop of turns against the bare engine, and hanging environments."""

from __future__ import annotations

from pathlib import Path

from benchmarks.results_file import Row


def measure_agents(model: Path, trl_python: Path, work: Path, rounds: int) -> tuple[list[Row], str]:
    """`rounds`: of the slow part, against TRL."""
    # Here: `engine_turns` runs as a module, too.
    from benchmarks.agents.against_trl import measure_against_trl
    from benchmarks.agents.engine_turns import measure_engine_turns
    from benchmarks.agents.hanging import measure_hanging

    parts = [
        measure_hanging(work),
        measure_engine_turns(model),
        measure_against_trl(model, trl_python, work, rounds),
    ]
    return [row for rows, _ in parts for row in rows], "; ".join(method for _, method in parts)
