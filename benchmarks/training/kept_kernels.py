"""Growth of a trainer whose batches have other lengths in each step: oneDNN keeps kernels for each length.

"padded" is as a service runs: batches padded to few lengths, and few primitives kept. "as_it_comes" has neither.
"experts" is as a service runs a model with experts, whose batches are not padded.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.results_file import Row
from benchmarks.training.memory import resident_mib
from benchmarks.training.work import make_batch, make_config
from trimaran.run.environment import COMPUTE

SHAPE = {
    "vocab_size": 8192,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 2,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
}
"""SmolLM2-135M's width: kernels do not depend on the number of layers."""
EXPERTS = {
    "head_dim": 64,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 768,
}
STEPS, QUICK_STEPS = 60, 10
GROUPS, GROUP_SIZE = 2, 8
ROUNDS, QUICK_ROUNDS = 3, 1
SECONDS = 600.0
KEPT = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


def measure_kept_kernels(work: Path, quick: bool) -> tuple[list[Row], str]:
    steps, rounds = (QUICK_STEPS, QUICK_ROUNDS) if quick else (STEPS, ROUNDS)
    sides = {"padded": COMPUTE, "as_it_comes": {**COMPUTE, KEPT: "1024"}, "experts": COMPUTE}
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, variables in sides.items():
            command = [sys.executable, "-m", "benchmarks.training.kept_kernels", side, str(steps)]
            environment = {**os.environ, **variables, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                timeout=SECONDS,
                check=True,
            )
            grown, seconds = map(float, done.stdout.splitlines()[-1].split())
            print(f"{side}: {grown:.0f} MiB, {seconds:.1f} s", flush=True)
            found[side].append((grown, seconds))
    mib, seconds = (
        {side: statistics.median(one[part] for one in its) for side, its in found.items()}
        for part in (0, 1)
    )
    return [
        Row(
            "growth_padded_over_as_it_comes",
            mib["padded"] / mib["as_it_comes"],
            "ratio",
            0.6,
            False,
        ),
        *(Row(f"growth_{side}", mib[side], "MiB", None, False) for side in sides),
        Row(
            "seconds_padded_over_as_it_comes",
            seconds["padded"] / seconds["as_it_comes"],
            "ratio",
            1.0,
            False,
        ),
    ], (
        f"a model of two layers of SmolLM2-135M's width, bf16, one thread; {GROUPS} groups of {GROUP_SIZE} of other lengths in"
        f" each of {steps} steps; resident memory after the last step less that after the second; CPU seconds;"
        f" medians of {rounds} interleaved rounds"
    )


def _measure(side: str, steps: int) -> None:
    import torch

    from services.trainer.backend import build_policy
    from services.trainer.megatron import model
    from services.trainer.megatron.attention import shared_prompts
    from services.trainer.step.learner import train_step
    from tests.tiny_model import write_tiny_model
    from trimaran.host.device import pick

    if side == "as_it_comes":
        model.CPU_ROWS = shared_prompts.CPU_ROWS = 1
    family, shape = ("qwen3_moe", SHAPE | EXPERTS) if side == "experts" else ("llama", SHAPE)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_tiny_model(Path(folder), family, True, "bfloat16", shape=shape)
        config = make_config(GROUPS, model=Path(folder), threads=1)
        policy = build_policy(config, None, pick("cpu"), 0)
    choose = random.Random(5)
    resident, began = [], time.process_time()
    for _ in range(steps):
        lengths = [[_length(choose) for _ in range(GROUP_SIZE)] for _ in range(GROUPS)]
        prompt = choose.randint(60, 330)
        train_step(policy, make_batch(prompt, lengths, SHAPE["vocab_size"]), config)
        resident.append(resident_mib())
    print(resident[-1] - resident[1], time.process_time() - began)


def _length(choose: random.Random) -> int:
    return min(96, max(4, int(choose.lognormvariate(3.2, 0.6))))


if __name__ == "__main__":
    _measure(sys.argv[1], int(sys.argv[2]))
