"""What the allocator's and OpenMP's settings of the services are worth in a live run.

Sides are runs of `trimaran train` that differ in environment variables only: those of
`trimaran.run.environment`, or what stood there before. One side is the same as `now` in each mode, and
shows the noise. A group whose answers all score the
same trains nothing, so the figure of a run is seconds a packed token, not seconds a step. The first
steps are left out: they touch their memory for the first time.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path

from benchmarks.demo import trained_steps
from benchmarks.prompts import write_prompts
from benchmarks.results_file import Row

STEPS, WARM_UP = 9, 2
BEFORE = {"MALLOC_ARENA_MAX": "8", "GOMP_SPINCOUNT": "0"}
SIDES: dict[str, Mapping[str, str]] = {
    "now": {},
    "before": BEFORE,
    "without_spinning": {"GOMP_SPINCOUNT": "0"},  # now, where the run is asynchronous
    "spinning": {"GOMP_SPINCOUNT": "2000"},  # now, where it is synchronous
    "spinning_longer": {"GOMP_SPINCOUNT": "20000"},
}
MODES = {"synchronous": (), "asynchronous": ("run.max_lag=1",)}


def measure_waiting(work: Path, rounds: int) -> tuple[list[Row], str]:
    prompts = work / "prompts.jsonl"
    write_prompts(prompts)
    found: dict[tuple[str, str], list[float]] = {(m, s): [] for m in MODES for s in SIDES}
    for number in range(rounds):
        for mode, side in found:
            steps = trained_steps(prompts, work, STEPS, MODES[mode], SIDES[side])[WARM_UP:]
            tokens = sum(step["trainer/packed_tokens"] for step in steps)
            found[mode, side].append(1000 * sum(step["trainer/seconds"] for step in steps) / tokens)
            print(f"round {number + 1} {mode} {side}: {found[mode, side][-1]:.2f} ms", flush=True)
    medians = {key: statistics.median(values) for key, values in found.items()}
    rows = [
        Row(
            f"training_time_{mode}_{side}_over_now",
            value / medians[mode, "now"],
            "ratio",
            None,
            True,
        )
        for (mode, side), value in medians.items()
        if side != "now"
    ]
    rows += [
        Row(f"milliseconds_a_packed_token_{mode}", medians[mode, "now"], "ms", None, False)
        for mode in MODES
    ]
    return rows, f"{rounds} interleaved rounds of {STEPS} steps, the first {WARM_UP} left out"
