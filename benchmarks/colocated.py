"""Trainer and rollout in turns on the same devices, against separate pools: seconds a step, and memory.

Sides are runs of the demo's configuration, with one replica, that differ in `run.pools` alone, on the CPU. There the pools
share cores and memory in either case. So the figures say what the turns themselves cost: calls, the
trainer's way to the host and back, an engine that wakes. They say nothing of what turns gain where
devices are few, and nothing of a device's memory. Memory is that of all processes.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import subprocess
from pathlib import Path

from benchmarks.demo import RUN_TIMEOUT_SECONDS, train_command
from benchmarks.memory import PeakMemory
from benchmarks.prompts import write_prompts
from benchmarks.results_file import Row

STEPS = 5
"""The first is left out: it touches its memory for the first time."""
SIDES = ("separate", "colocated")
PARTS = {
    "training": "controller/phase/training/seconds",
    "synchronisation": "controller/phase/syncing/seconds",
}


def measure_colocated(work: Path, rounds: int) -> tuple[list[Row], str]:
    prompts = work / "prompts.jsonl"
    write_prompts(prompts)
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for number in range(rounds):
        for side in SIDES:
            found[side].append(_measure(prompts, work / f"{side}-{number}", side))
            print(f"round {number + 1} {side}: {found[side][-1]}", flush=True)
    medians = {
        side: {name: statistics.median(one[name] for one in ones) for name in ones[0]}
        for side, ones in found.items()
    }
    rows = [
        Row(
            "seconds_a_step_colocated_over_separate",
            medians["colocated"]["step"] / medians["separate"]["step"],
            "ratio",
            None,
            False,
        )
    ]
    rows += [
        Row(
            f"peak_memory_{side}" if name == "memory" else f"seconds_a_step_{side}_{name}",
            value,
            "GiB" if name == "memory" else "s",
            None,
            False,
        )
        for side, figures in medians.items()
        for name, value in figures.items()
    ]
    method = (
        f"{rounds} interleaved rounds of {STEPS} steps, the first left out; medians. On the CPU both"
        " pools share cores and memory: this is the cost of turns, not their gain; PSS each second"
    )
    return rows, method


def _measure(prompts: Path, folder: Path, side: str) -> dict[str, float]:
    settings = [
        f"data.train={prompts}",
        "data.validation=null",
        f"run.steps={STEPS}",
        f"run.checkpoint_every={STEPS}",
        f"run.folder={folder}",
        f"run.pools={side}",
        "rollout.replicas=1",  # one trainer rank and one replica may share a device
    ]
    process = subprocess.Popen(train_command(settings), stdout=2, env=dict(os.environ))
    with PeakMemory(process.pid) as memory:
        if code := process.wait(RUN_TIMEOUT_SECONDS):
            raise RuntimeError(f"the run with {side} pools ended with exit code {code}")
    (metrics,) = folder.glob("*/metrics.jsonl")
    lines = map(json.loads, metrics.read_text(encoding="utf-8").splitlines())
    steps = [row for row in lines if row["kind"] == "step"]
    shutil.rmtree(folder)  # a checkpoint and a model
    seconds = [after["time"] - before["time"] for before, after in itertools.pairwise(steps)]
    figures = {"step": statistics.median(seconds), "memory": memory.peak_bytes / 2**30}
    parts = {name: statistics.median(row[key] for row in steps[1:]) for name, key in PARTS.items()}
    return {name: round(value, 3) for name, value in (figures | parts).items()}
