"""The demo's start, end and memory, beside those of the commit BEFORE.

Two steps with the validations, the checkpoint and the export that the demo has. The sides take turns on
one machine, each with its own tree and with this environment's packages; a side's figure is the median of
its rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from benchmarks.memory import PeakMemory
from benchmarks.results_file import Row

ROOT = Path(__file__).parents[1]
BEFORE = "150bef7d"
"""The last commit before starts were made shorter."""
EXAMPLE = Path("examples", "addition", "run.yaml")
RUN_SECONDS = 900


class Demo(NamedTuple):
    """One run of the demo."""

    to_first_step: float
    from_last_step: float
    """Seconds from the last step to the prompt."""
    peak_gib: float


def measure_start(work: Path, rounds: int) -> tuple[list[Row], str]:
    trees = {"before": check_out(BEFORE, work / "before"), "now": ROOT}
    found: dict[str, list[Demo]] = {side: [] for side in trees}
    for number in range(rounds):
        for side, tree in trees.items():
            found[side].append(_run_demo(tree, work / f"{side}-{number}"))
            print(f"start {number + 1} {side}: {found[side][-1]}", flush=True)
    before, now = (
        Demo(*map(statistics.median, zip(*runs, strict=True))) for runs in found.values()
    )
    return [
        Row("seconds_to_first_step", now.to_first_step, "s", 45.0, False),
        Row("seconds_from_last_step", now.from_last_step, "s", None, False),
        Row("peak_memory_of_all_processes", now.peak_gib, "GiB", None, False),
        Row(
            "first_step_against_before",
            now.to_first_step / before.to_first_step,
            "ratio",
            0.5,
            False,
        ),
        Row("end_against_before", now.from_last_step / before.from_last_step, "ratio", 0.4, False),
        Row("peak_memory_against_before", now.peak_gib / before.peak_gib, "ratio", 0.7, False),
    ], (
        f"{rounds} interleaved rounds of the demo with two steps; before: {BEFORE}; memory is PSS, sampled"
        " each second"
    )


def check_out(commit: str, folder: Path) -> Path:
    """The files of a commit, with this tree's models."""
    folder.mkdir()
    archive = subprocess.run(
        ["git", "archive", commit], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    (folder / "models").symlink_to(ROOT / "models")
    return folder


def trimaran(tree: Path, arguments: Sequence[str]) -> list[str]:
    """The command of a tree, to be run in it with `environment`."""
    module = "commands.cli" if (tree / "commands").is_dir() else "trimaran.cli"
    return [sys.executable, "-m", module, *arguments]


def environment(tree: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(tree)}


def _run_demo(tree: Path, folder: Path) -> Demo:
    command = trimaran(tree, ["train", str(tree / EXAMPLE), "run.steps=2", f"run.folder={folder}"])
    began = time.time()
    process = subprocess.Popen(command, cwd=tree, env=environment(tree), stdout=2)
    with PeakMemory(process.pid) as memory:
        code = process.wait(RUN_SECONDS)
    ended = time.time()
    if code:
        raise RuntimeError(f"{' '.join(command)}: exit code {code}; its lines above say why")
    (metrics,) = folder.glob("*/metrics.jsonl")
    rows = map(json.loads, metrics.read_text(encoding="utf-8").splitlines())
    steps = [row["time"] for row in rows if row["kind"] == "step"]
    return Demo(steps[0] - began, ended - steps[-1], memory.peak_bytes / 2**30)
