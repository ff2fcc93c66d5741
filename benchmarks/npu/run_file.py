"""A row of the guides -> the run of ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.npu.published import Published
from trimaran.config import RunConfig, parse_config

STEPS = 8
"""Of which the first ones warm up."""
IMAGES = {"data.image_key": "images", "data.task": "geo3k", "rollout.limit_images": 1}
PIXELS = {
    "Qwen2.5-VL-7B-Instruct": (3136, 602112),
    "Qwen2.5-VL-32B-Instruct": (3136, 602112),
    "Qwen3-VL-8B-Instruct": (65536, 786432),
    "Qwen3-VL-30B-A3B-Instruct": (65536, 786432),
}
"""Of an image, at least and at most: 768 tokens, for which a prompt of 1,024 has room. Geometry3k's are smaller."""


def run_tree(name: str, row: Published, model: Path, data: Path) -> dict[str, Any]:
    """`data`: a folder with train.parquet, as `trimaran data prepare` writes it."""
    settings: dict[str, Any] = {
        "run.name": name,
        "run.steps": STEPS,
        "run.groups_per_step": row.prompts,
        "run.checkpoint_every": STEPS,
        "model.path": str(model),
        "data.train": str(data / "train.parquet"),
        "rollout.device": "npu",
        "rollout.group_size": row.answers,
        "rollout.max_prompt_tokens": row.prompt_tokens,
        "rollout.max_tokens": row.answer_tokens,
        "rollout.max_concurrency": 256,
        "trainer.device": "npu",
        "trainer.recompute": True,
        "trainer.learning_rate": 1e-6,
        "algorithm.kl.offload": True,
        "metrics.also": ["verl", "mindspeed-rl"],
    }
    if pixels := PIXELS.get(row.model):
        settings |= {**IMAGES, "data.min_pixels": pixels[0], "data.max_pixels": pixels[1]}
    return _nested({**settings, **row.settings})


def run_config(name: str, row: Published, model: Path, data: Path) -> RunConfig:
    return parse_config(run_tree(name, row, model, data), f"the run of {name}")


def num_dies(config: RunConfig) -> int:
    """Of trainer and replicas."""
    return config.num_trainer_ranks + config.num_rollout_devices


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *sections, last = key.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[last] = value
    return tree
