"""Tokens a second and die of a run, by each project's formula and by ours.

All divide by the dies of trainer and replicas. MindSpeed-RL's: (mean response + mean prompt length) x prompts x
answers / dies / time of a step (utils/utils.py, compute_tps); with log_max_throughput, its default, the longest
lengths in place of the means. verl's: all tokens / (time x dies) (trainer/ppo/metric_utils.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

WARM_UP = 3
"""Steps that do not count: the first ones load, compile and fill caches."""
FORMULAS = {
    "ours": "controller/step/tokens_per_second_per_device",
    "verl": "perf/throughput",
    "mindspeed-rl": "e2e_tps",
    "mindspeed-rl update_tps": "update_tps",
    "mindspeed-rl vllm_tps": "vllm_tps",
}
"""Formula -> the number of a step's row."""
LONGEST = "mindspeed-rl e2e_tps, longest lengths"


def read_steps(run_folder: Path) -> list[Mapping[str, float]]:
    """Rows of the steps of a run, by the file metrics.jsonl."""
    lines = (run_folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == "step"]


def figures(
    steps: Sequence[Mapping[str, float]], completions: int, dies: int
) -> Mapping[str, float]:
    """Formula -> mean over the steps behind the warm-up. `completions`: of a step."""
    counted = steps[WARM_UP:]
    made = {
        formula: fmean(step[key] for step in counted)
        for formula, key in FORMULAS.items()
        if counted and all(key in step for step in counted)
    }
    if counted:
        made[LONGEST] = fmean(_by_longest(step, completions, dies) for step in counted)
    return made


def _by_longest(step: Mapping[str, float], completions: int, dies: int) -> float:
    tokens = step["response_length/max"] + step["prompt_length/max"]
    return tokens * completions / dies / step["timing/all"]
