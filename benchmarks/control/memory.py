"""Memory of the controller and growth on the disk over a million groups, as tiny as they can be."""

from __future__ import annotations

from pathlib import Path

from benchmarks.control.one_run import Work, measure
from benchmarks.control.stand_ins import Shape
from benchmarks.results_file import Row

TINY = Shape(replicas=4, samples=2, tokens=4, chunks=1)
GROUPS_PER_STEP = 500
GROUPS, QUICK_GROUPS = 1_000_000, 20_000
MARKS = (0.01, 0.1, 0.25, 0.5, 1.0)
"""Shares of all groups."""
KEPT = {
    "store": ("store.sqlite*",),
    "payloads_and_archive": ("payloads/*",),
    "metrics_and_timeline": ("metrics.jsonl", "timeline.jsonl", "tensorboard/*"),
    "log": ("controller.log",),
}


def measure_memory(work: Path, quick: bool) -> tuple[list[Row], str]:
    groups = QUICK_GROUPS if quick else GROUPS
    amount = Work(groups // GROUPS_PER_STEP, GROUPS_PER_STEP)
    found = measure(work / "one", TINY, amount)
    at = {
        share: next(mib for trained, mib in found.resident_mib if trained >= share * groups * 0.99)
        for share in MARKS
    }
    rows = [
        *(
            Row(f"mib_after_{100 * share:g}_percent", mib, "MiB", None, False)
            for share, mib in at.items()
        ),
        Row("memory_at_the_end_against_10_percent", at[1.0] / at[0.1], "ratio", 1.1, False),
    ]
    completions = groups * TINY.samples
    for name, patterns in KEPT.items():
        paths = [path for pattern in patterns for path in (work / "one" / "run").glob(pattern)]
        mib = sum(path.stat().st_size for path in paths) / 2**20
        rows.append(Row(f"disk_{name}", mib * 1e6 / completions, "MiB/1M completions", None, False))
    return rows, (
        f"{groups} groups of {TINY.samples} x {TINY.tokens} tokens, {GROUPS_PER_STEP} a step, a"
        " checkpoint each 5 steps; resident memory of the controller; SQLite"
    )
