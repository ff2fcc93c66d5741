"""The examples for Geometry3k and GSM8K fit the models and the devices that they are for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.npu.models import CONFIGS, qwen25_vl, sizes
from commands.cli.inspect.plan import check_lengths
from trimaran.config import load_config
from trimaran.model.folder import check_tensor_parallel, read_model_folder
from trimaran.model.memory.model import ModelSizes
from trimaran.model.memory.plan import GIB, DeviceCapacity, find_faults, make_plan
from trimaran.model.trainer_layout import check_trainer_layout

EXAMPLES = Path(__file__).parents[2] / "examples"
DEVICE = DeviceCapacity(trainer=64 * GIB, replica=64 * GIB)
"""A die of an Ascend A2 or A3."""


EXAMPLE_CONFIGS = {
    "gsm8k/run": CONFIGS["Qwen2.5-7B"],
    "geo3k/qwen25vl_3b": qwen25_vl(
        sizes(36, 2048, 11008, 16, 2) | {"tie_word_embeddings": True},
    ),
    "geo3k/qwen25vl_7b": CONFIGS["Qwen2.5-VL-7B-Instruct"],
    "geo3k/qwen3vl_8b": CONFIGS["Qwen3-VL-8B-Instruct"],
    "geo3k/qwen3vl_30b_a3b": CONFIGS["Qwen3-VL-30B-A3B-Instruct"],
}
"""By the numbers of each model's own config.json."""


@pytest.mark.parametrize("name", EXAMPLE_CONFIGS)
def test_an_example_fits_its_model_and_its_devices(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(EXAMPLE_CONFIGS[name]))
    (tmp_path / "tokenizer.json").touch()
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    config = load_config(EXAMPLES / f"{name}.yaml")
    facts = read_model_folder(tmp_path)
    check_tensor_parallel(facts, config.rollout.tensor_parallel, "rollout.tensor_parallel")
    check_trainer_layout(facts, config.trainer)
    check_lengths(config, facts)
    plan = make_plan(config, ModelSizes(facts), trains_on_host=False, rolls_on_host=False)
    assert not find_faults(plan, DEVICE)
    assert config.run.groups_per_step % config.algorithm.updates_per_batch == 0
    if facts.vision is not None:
        side = facts.vision.patch_size * facts.vision.merge_size
        tokens = config.data.max_pixels // side**2
        assert tokens <= config.rollout.max_prompt_tokens - 256, "room for the question"


def test_every_example_is_here() -> None:
    found = {
        path.relative_to(EXAMPLES).with_suffix("").as_posix() for path in EXAMPLES.glob("g*/*.yaml")
    }
    assert found == EXAMPLE_CONFIGS.keys()
