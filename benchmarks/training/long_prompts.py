"""A long prompt with long answers, of Qwen2.5-0.5B's shape with few layers: seconds against plain transformers, and
memory against what `trimaran plan` estimates. Half an hour on two cores.

Plain transformers computes the prompt once for each answer. The head is a larger part of both sides than with
all 24 layers, and ours computes its logits twice: so the ratio would be higher with all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.results_file import Row
from benchmarks.training.work import (
    SHAPES,
    THREADS,
    Step,
    count_tokens,
    make_batch,
    our_step,
    plain_step,
    write_model,
)
from trimaran.config import RunConfig, dump_config, parse_config

PROMPT, COMPLETION, GROUP_SIZE = 8192, 2048, 16
QUICK_PROMPT, QUICK_COMPLETION = 1024, 256
LAYERS = 4
SECONDS = 1800.0


def measure_long_prompts(work: Path, quick: bool) -> tuple[list[Row], str]:
    import torch

    prompt, completion = (QUICK_PROMPT, QUICK_COMPLETION) if quick else (PROMPT, COMPLETION)
    shape = SHAPES["0.5B"] | {"num_hidden_layers": LAYERS}
    config = _config(write_model(work / "model", shape), prompt, completion)
    estimated, peak = _estimate(config), _measure_memory(config, work)
    batch = make_batch(prompt, [[completion] * GROUP_SIZE])
    plain = plain_step(work / "model", batch, prompt + completion)
    sides = {"ours": our_step(config, batch), "plain": plain}
    torch.set_num_threads(THREADS)
    seconds = {side: _seconds(step) for side, step in sides.items()}
    copied, shared = count_tokens(batch)
    return [
        Row("seconds_of_plain_over_ours", seconds["plain"] / seconds["ours"], "ratio", 2.0, True),
        Row("seconds", seconds["ours"], "s", None, False),
        Row("tokens_spared_by_sharing", copied / shared, "ratio", None, True),
        Row("peak_over_estimate", peak / estimated, "ratio", 1.1, False),
        Row("peak", peak / 2**20, "MiB", None, False),
    ], (
        f"{LAYERS} layers of Qwen2.5-0.5B's shape with random weights, {GROUP_SIZE} answers of {completion} tokens"
        f" behind one prompt of {prompt}, {THREADS} threads, bf16; one step each, which takes minutes; peak of the second"
        " of two steps in a process of its own"
    )


def _seconds(step: Step) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def _config(model: Path, prompt: int, completion: int) -> RunConfig:
    return parse_config(
        {
            "run": {"groups_per_step": 1},
            "model": {"path": str(model)},
            "data": {"train": "unused"},
            "reward": {"rules": {"last_integer": 1.0}},
            "trainer": {"threads": THREADS, "learning_rate": 1e-6, "device": "cpu"},
            "rollout": {
                "group_size": GROUP_SIZE,
                "max_tokens": completion,
                "max_prompt_tokens": prompt,
            },
        }
    )


def _estimate(config: RunConfig) -> int:
    """Bytes of the trainer's process at its peak."""
    from trimaran.model.folder import read_model_folder
    from trimaran.model.memory.model import ModelSizes
    from trimaran.model.memory.plan import make_plan

    model = ModelSizes(read_model_folder(config.model.path), config.model.dtype)
    plan = make_plan(config, model, trains_on_host=True, rolls_on_host=True)
    (rank,) = plan.ranks
    return plan.runtime + rank.host_optimizer + rank.peak(plan.tokens)


def _measure_memory(config: RunConfig, work: Path) -> int:
    file = work / "config.yaml"
    file.write_text(dump_config(config), encoding="utf-8")
    command = [sys.executable, "-m", "tests.trainer.measured_rank", str(file), str(work), "0"]
    # Large tensors go back once they are freed: else the peak is also the allocator's. Smaller ones, as the
    # attention's scores, would be mapped again and again, which takes longer than to compute them.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(4 << 20)}
    subprocess.run(command, env=environment, timeout=SECONDS, check=True)
    return json.loads((work / "0.json").read_text(encoding="utf-8"))["process"]
