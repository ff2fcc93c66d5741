"""Episodes a second of training with one tool, against TRL's GRPOTrainer with `tools`.

Both sides train SmolLM2-135M in bf16 on two cores with 2 prompts x 8 episodes of at most 4 turns and 96 tokens, by the
same chat template. A round's figure is the median step without the first, a side's the median of its rounds.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.agents.tool_task import make_model, write_rows
from benchmarks.demo import PEERS, RUN_TIMEOUT_SECONDS, THREADS
from benchmarks.results_file import Row

GOAL = 6.0
EPISODES_PER_STEP = 16
STEPS = {"ours": 4, "trl": 2}
MAX_TURNS, MAX_TOKENS, MAX_PROMPT_TOKENS = 4, 96, 512
TOOL = f"{PEERS / 'multiply.py'}:multiply"


@dataclass(frozen=True, slots=True)
class Steps:
    """Example: Steps(seconds=[6.1, 4.9, 5.0], turns=2.1)"""

    seconds: list[float]
    turns: float
    """Mean of an episode."""


def measure_against_trl(
    source: Path, trl_python: Path, work: Path, rounds: int
) -> tuple[list[Row], str]:
    model, rows = make_model(source, work / "model"), work / "rows.jsonl"
    write_rows(rows)
    sides = {
        "ours": lambda: _ours(model, rows, work),
        "trl": lambda: _trl(trl_python, model, rows),
    }
    found: dict[str, list[Steps]] = {side: [] for side in sides}
    for number in range(rounds):
        for side, measure in sides.items():
            steps = measure()
            found[side].append(steps)
            seconds = [round(step, 1) for step in steps.seconds]
            print(f"round {number + 1} {side}: {seconds} s, {steps.turns:.2f} turns", flush=True)
    rate = {
        side: EPISODES_PER_STEP
        / statistics.median(statistics.median(one.seconds[1:]) for one in its)
        for side, its in found.items()
    }
    turns = {side: statistics.fmean(one.turns for one in its) for side, its in found.items()}
    return [
        Row("episodes_per_second_against_trl", rate["ours"] / rate["trl"], "ratio", GOAL, True),
        *(
            Row(f"episodes_per_second_{side}", rate[side], "episodes/s", None, True)
            for side in sides
        ),
        *(Row(f"turns_of_an_episode_{side}", turns[side], "turns", None, True) for side in sides),
    ], f"{rounds} interleaved rounds; steps a round: {STEPS}, the first left out"


def _ours(model: Path, rows: Path, work: Path) -> Steps:
    folder = work / f"run-{time.monotonic_ns()}"
    folder.mkdir()
    path = folder / "run.yaml"
    path.write_text(json.dumps(_config(model, rows, folder)), encoding="utf-8")
    trimaran = Path(sys.executable).with_name("trimaran")
    subprocess.run(
        [str(trimaran), "train", str(path), "--allow", TOOL],
        check=True,
        timeout=RUN_TIMEOUT_SECONDS,
        stdout=2,
    )
    (metrics,) = folder.glob("runs/*/metrics.jsonl")
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    seconds = [end["time"] - start["time"] for start, end in itertools.pairwise(steps)]
    return Steps(seconds, statistics.fmean(step["environment/turns/mean"] for step in steps))


def _config(model: Path, rows: Path, folder: Path) -> dict[str, Any]:
    """As `examples/addition/run.yaml`, with a tool."""
    steps = STEPS["ours"]
    return {
        "run": {
            "name": "tools",
            "steps": steps,
            "groups_per_step": 2,
            "checkpoint_every": steps,
            "folder": str(folder / "runs"),
        },
        "model": {"path": str(model), "dtype": "bfloat16"},
        "data": {"train": str(rows)},
        "environment": {"tools": [TOOL], "max_turns": MAX_TURNS, "max_tokens": MAX_TOKENS},
        "rollout": {
            "engine": "vllm",
            "replicas": 2,
            "threads": 1,
            "group_size": 8,
            "temperature": 0.6,
            "max_prompt_tokens": MAX_PROMPT_TOKENS,
            "max_tokens": MAX_TOKENS,
            "kv_cache_gib": 0.5,
        },
        "reward": {"rules": {"last_integer": 1.0}},
        "trainer": {"threads": 2, "micro_batch_tokens": 4096, "learning_rate": 2e-5},
    }


def _trl(python: Path, model: Path, rows: Path) -> Steps:
    words = [model, rows, STEPS["trl"], MAX_TURNS, MAX_TOKENS]
    done = subprocess.run(
        [str(python), str(PEERS / "trl_tools.py"), *map(str, words)],
        check=True,
        timeout=RUN_TIMEOUT_SECONDS,
        capture_output=True,
        text=True,
        env={**os.environ, **THREADS},
    )
    last_line = done.stdout.strip().splitlines()[-1]
    told = json.loads(last_line[last_line.index("{") :])
    return Steps(told["seconds"], told["turns"])
