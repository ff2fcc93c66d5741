"""Samples a second of training, against TRL and a plain loop.

Every side trains SmolLM2-135M in bf16 on two cores with 8 prompts x 8 samples x 24 tokens, on
prompts whose answers run to the full length. Rounds are interleaved; a round's figure is the
median step of its run without the first, and a side's figure the median of its rounds.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.prompts import write_prompts
from benchmarks.results_file import Row

SAMPLES_PER_STEP = 64
STEPS = {"ours": 21, "trl": 3, "plain": 3}
"""Ours differ by a third among themselves: groups whose answers all score the same train nothing here."""
RUN_TIMEOUT_SECONDS = 900
PEERS = Path(__file__).parent / "peers"
EXAMPLE = Path(__file__).parents[1] / "examples" / "addition" / "run.yaml"
THREADS = {"OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}


def measure_throughput(
    model: Path, trl_python: Path, work: Path, rounds: int
) -> tuple[list[Row], str]:
    prompts = work / "prompts.jsonl"
    write_prompts(prompts)
    sides = {
        "ours": lambda: ours_step_seconds(prompts, work),
        "trl": lambda: _peer_step_seconds(trl_python, "trl_steps.py", "trl", model, prompts),
        "plain": lambda: _peer_step_seconds(
            Path(sys.executable), "plain_steps.py", "plain", model, prompts
        ),
    }
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds):
        for side, measure in sides.items():
            steps = measure()
            seconds[side].append(statistics.median(steps[1:]))
            print(f"round {number + 1} {side}: {[round(step, 2) for step in steps]} s", flush=True)
    rate = {side: SAMPLES_PER_STEP / statistics.median(values) for side, values in seconds.items()}
    rows = [
        Row("samples_per_second_against_trl", rate["ours"] / rate["trl"], "ratio", 6.0, True),
        Row(
            "samples_per_second_against_plain_loop",
            rate["ours"] / rate["plain"],
            "ratio",
            None,
            True,
        ),
        *(Row(f"samples_per_second_{side}", rate[side], "samples/s", None, True) for side in sides),
    ]
    return rows, f"{rounds} interleaved rounds; steps a round: {STEPS}, the first left out"


def ours_step_seconds(prompts: Path, work: Path) -> list[float]:
    """Wall seconds of each step of `trimaran train`, from the run's own metrics."""
    ends = [step["time"] for step in trained_steps(prompts, work, STEPS["ours"])]
    return [end - start for start, end in itertools.pairwise(ends)]


def trained_steps(
    prompts: Path,
    work: Path,
    steps: int,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """The rows of the steps of a run of `trimaran train` without validation."""
    folder = work / f"runs-{time.monotonic_ns()}"
    settings = [
        f"data.train={prompts}",
        "data.validation=null",
        f"run.steps={steps}",
        f"run.checkpoint_every={steps}",
        f"run.folder={folder}",
        *overrides,
    ]
    subprocess.run(
        train_command(settings),
        check=True,
        timeout=RUN_TIMEOUT_SECONDS,
        stdout=2,
        env={**os.environ, **environment},
    )
    (metrics,) = folder.glob("*/metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["kind"] == "step"]


def train_command(overrides: list[str]) -> list[str]:
    trimaran = Path(sys.executable).with_name("trimaran")
    return [str(trimaran), "train", str(EXAMPLE), *overrides]


def _peer_step_seconds(
    python: Path, script: str, side: str, model: Path, prompts: Path
) -> list[float]:
    command = [str(python), str(PEERS / script), str(model), str(prompts), str(STEPS[side])]
    done = subprocess.run(
        command,
        check=True,
        timeout=RUN_TIMEOUT_SECONDS,
        capture_output=True,
        text=True,
        env={**os.environ, **THREADS},
    )
    last_line = done.stdout.strip().splitlines()[-1]
    return json.loads(last_line[last_line.index("{") :])["seconds"]
