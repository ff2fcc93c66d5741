"""`python -m benchmarks.one_gpu`: a training step on one NVIDIA GPU against plain transformers.

Random bf16 models of two sizes of Qwen2.5; the same groups on both sides, interleaved. Both sides
stand in the GPU's memory at the same time. Plain transformers keeps bf16 weights and has torch's
fused AdamW; ours keeps fp32 main weights, and computes a group's prompt once.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.results_file import Row, write_results
from benchmarks.trainer import Work, make_batch, make_plain_step, measure_rates
from benchmarks.training.work import SHAPES, write_model
from trimaran.config import RunConfig, parse_config

ROUNDS = 5
PLAIN_ROWS = 16
"""Sequences of one forward pass of plain transformers: 6,144 tokens."""


WORK = Work(prompt_tokens=128, completion_tokens=256)


def measure(size: str, folder: Path) -> list[Row]:
    from services.trainer.backend import build_policy
    from services.trainer.step.learner import train_step
    from trimaran.host.device import pick

    write_model(folder, SHAPES[size], "cuda")
    config, batch = _config(folder), make_batch(WORK)
    policy = build_policy(config, None, pick("cuda"), 0)

    def own_step() -> None:
        train_step(policy, batch, config)
        torch.cuda.synchronize()

    sides: dict[str, Callable[[], object]] = {
        "ours": own_step,
        "transformers": make_plain_step(folder, batch, PLAIN_ROWS, "cuda"),
    }
    rates = measure_rates(sides, WORK, ROUNDS)
    ratio = rates["ours"] / rates["transformers"]
    _leave()
    return [
        Row(f"step_against_transformers_{size}", ratio, "ratio", 1.0, True),
        *(
            Row(f"tokens_per_second_{side}_{size}", rate, "tokens/s", None, True)
            for side, rate in rates.items()
        ),
    ]


def _leave() -> None:
    """The next size begins with empty counters."""
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()
    gc.collect()
    torch.cuda.empty_cache()


def _config(folder: Path) -> RunConfig:
    return parse_config(
        {
            "model": {"path": str(folder)},
            "data": {"train": "unused"},
            "reward": {"rules": {"last_integer": 1.0}},
            "trainer": {"device": "cuda", "micro_batch_tokens": 8192, "learning_rate": 1e-6},
            "rollout": {"max_tokens": WORK.completion_tokens}
            | {"max_prompt_tokens": WORK.prompt_tokens},
        }
    )


def main() -> None:
    rows: list[Row] = []
    for size in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(size, Path(folder))
    method = (
        f"medians of {ROUNDS} interleaved steps of {WORK.groups} x {WORK.group_size} sequences of"
        f" {WORK.prompt_tokens} + {WORK.completion_tokens} tokens in bf16 on one"
        f" {torch.cuda.get_device_name()}, torch {torch.__version__}"
    )
    write_results("one_gpu", rows, method)
    for row in rows:
        print(f"{row.name:44} {row.value:12.2f} {row.unit}")


if __name__ == "__main__":
    main()
