"""What real trainer ranks take on the CPU, against what `trimaran.model.memory` estimates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import tiny_vision
from tests.tiny_model import SHAPE, write_tiny_model
from trimaran.config import RunConfig, dump_config, parse_config
from trimaran.model.folder import read_model_folder
from trimaran.model.memory.model import ModelSizes
from trimaran.model.memory.plan import MemoryPlan, make_plan

LLAMA = SHAPE | {
    "max_position_embeddings": 4096,
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
QWEN3 = SHAPE | {
    "max_position_embeddings": 4096,
    "vocab_size": 24576,
    "hidden_size": 320,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 48,
}
EXPERTS = QWEN3 | {
    "num_hidden_layers": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 320,
    "norm_topk_prob": True,
}
TEXT = {
    **tiny_vision.TEXT,
    "vocab_size": 8192,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
}
TOWER = {
    **tiny_vision.TOWER,
    "depth": 6,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_heads": 4,
}
"""Of the vision-language models, whose prompts are images alone."""
SHORT = {"max_prompt_tokens": 40, "max_tokens": 25, "group_size": 8}
LONG = {"max_prompt_tokens": 160, "max_tokens": 201, "group_size": 4}
GROUPS = {25: 16, 201: 4}
TOLERANCE = 0.15
SECONDS = 600


@dataclass(frozen=True)
class Case:
    family: str = "llama"
    dtype: str = "bfloat16"
    lengths: dict[str, int] = field(default_factory=lambda: SHORT)
    trainer: dict[str, Any] = field(default_factory=dict)
    kl: float = 0.0

    def __str__(self) -> str:
        length = "short" if self.lengths is SHORT else "long"
        layout = "-".join(f"{key}={value}" for key, value in self.trainer.items())
        return f"{self.family}-{self.dtype}-{length}-{layout}-{self.kl:g}"


SHARED_SEQUENCE = {"tensor_parallel": 2, "sequence_parallel": True}
CASES = (
    Case("qwen2_5_vl", "float32"),
    Case(lengths=LONG, dtype="float32", kl=0.1),
    Case(),
    Case(lengths=LONG, trainer=SHARED_SEQUENCE),
    Case("qwen3", trainer={"data_parallel": 2}),
    Case("qwen3", "float32", trainer={"tensor_parallel": 2}),
    Case(trainer={"pipeline_parallel": 2, "micro_batch_tokens": 1856}),
    Case(trainer={"pipeline_parallel": 2, "micro_batch_tokens": 1856, "pipeline_layers": [3, 1]}),
    Case("qwen3", trainer={"fp32_head": True}),
    Case(lengths=LONG, trainer={"context_parallel": 2}),
    Case(trainer={"data_parallel": 2, "distributed_optimizer": True}),
    Case(lengths=LONG, trainer={"offload": ["optimizer", "gradients"]}),
    Case(trainer={"pipeline_parallel": 2, "virtual_stages": 2, "micro_batch_tokens": 928}),
    Case(trainer={"optimizer": "adamw_bf16"}),
    Case(lengths=LONG, trainer={"lora": {"rank": 32}}, kl=0.1),
    Case(lengths=LONG, trainer={"recompute": True}),
    Case(trainer={"recompute": "selective"}),
    Case(trainer={"recompute": True, **SHARED_SEQUENCE}, kl=0.1),
    Case("qwen3", trainer={"freeze": ["model.embed_tokens.weight", "*.mlp.*"]}),
    Case("qwen2_5_vl", lengths=LONG, trainer=SHARED_SEQUENCE),
    Case("qwen2_5_vl", trainer={"freeze": ["visual.*"]}, kl=0.1),
    Case("qwen3_vl", "float32"),
    Case("qwen3_vl", trainer={"pipeline_parallel": 2, "micro_batch_tokens": 1856}),
    Case("qwen3_vl_moe", lengths=LONG),
    Case("qwen3_moe", lengths=LONG, trainer={"data_parallel": 2, "expert_parallel": 2}),
    Case("qwen3_moe", lengths=LONG, trainer={"expert_parallel": 2, **SHARED_SEQUENCE}),
    Case("qwen3_moe", lengths=LONG, trainer={"expert_tensor_parallel": 2, **SHARED_SEQUENCE}),
    Case(
        "qwen2_5_vl",
        trainer={"pipeline_parallel": 2, "micro_batch_tokens": 1856, "pipeline_layers": [0, 4]},
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rank_takes_what_the_plan_says(tmp_path: Path, case: Case) -> None:
    plan = estimate(config := make_config(tmp_path, case))
    for rank, (estimated, measured) in enumerate(
        zip(plan.ranks, measure(config, tmp_path), strict=True)
    ):
        wanted = {
            "fixed": estimated.resident + estimated.host_optimizer,
            "passing": estimated.passing(plan.tokens),
            "process": plan.runtime + estimated.host_optimizer + estimated.peak(plan.tokens),
            "snapshot": estimated.snapshot,
        }
        shown = {key: f"{wanted[key] >> 20} and {measured[key] >> 20} MiB" for key in wanted}
        print(f"{case} rank {rank}, estimated and measured: {shown}")
        for key, size in wanted.items():
            assert measured[key] == pytest.approx(size, rel=TOLERANCE), (rank, key, shown)


def estimate(config: RunConfig) -> MemoryPlan:
    model = ModelSizes(read_model_folder(config.model.path), config.model.dtype)
    return make_plan(config, model, trains_on_host=True, rolls_on_host=True)


def write_model(folder: Path, case: Case) -> Path:
    if case.family in tiny_vision.FAMILIES:
        return tiny_vision.write_tiny_vision(
            folder, case.family, case.dtype, num_layers=4, text=TEXT, tower=TOWER
        )
    shape = {"llama": LLAMA, "qwen3": QWEN3, "qwen3_moe": EXPERTS}[case.family]
    return write_tiny_model(folder, case.family, case.family == "qwen3", case.dtype, shape=shape)


def make_config(folder: Path, case: Case) -> RunConfig:
    model = write_model(folder / "model", case)
    return parse_config(
        {
            "run": {"groups_per_step": GROUPS[case.lengths["max_tokens"]]},
            "model": {"path": str(model), "dtype": case.dtype},
            "data": {"train": "unused"},
            "reward": {"rules": {"last_integer": 1.0}},
            "rollout": case.lengths,
            "algorithm": {"kl": {"coefficient": case.kl}},
            "trainer": {"device": "cpu", "micro_batch_tokens": 100_000, **case.trainer},
        }
    )


def measure(config: RunConfig, folder: Path) -> list[dict[str, int]]:
    """Of each rank; bytes."""
    file = folder / "config.yaml"
    file.write_text(dump_config(config))
    # What is freed goes back at once, whatever its size: else the peak is also the allocator's.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.trainer.measured_rank"]
    processes = [
        subprocess.Popen([*command, str(file), str(folder), str(rank)], env=environment)
        for rank in range(config.num_trainer_ranks)
    ]
    try:
        assert [process.wait(SECONDS) for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    found = (folder / f"{rank}.json" for rank in range(config.num_trainer_ranks))
    return [json.loads(path.read_text()) for path in found]
