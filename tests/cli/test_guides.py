"""The examples for Geometry3k and GSM8K fit the models and the devices that they are for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trimaran.cli.preflight import check_lengths
from trimaran.config import load_config
from trimaran.memory.model import Model
from trimaran.memory.plan import GIB, Room, find_faults, make_plan
from trimaran.model_folder import check_tensor_parallel, read_model_folder
from trimaran.trainer_layout import check_trainer_layout

EXAMPLES = Path(__file__).parents[2] / "examples"
DEVICE = Room(trainer=64 * GIB, replica=64 * GIB)
"""A die of an Ascend A2 or A3."""


def sizes(layers: int, hidden: int, inner: int, heads: int, keys: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "head_dim": 128,
        "vocab_size": 152064 if hidden == 3584 else 151936,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
    }


def qwen25_vl(text: dict[str, Any]) -> dict[str, Any]:
    tower = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16}
    tower |= {"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
    tower["out_hidden_size"] = text["hidden_size"]
    return {"model_type": "qwen2_5_vl", "image_token_id": 151655, "vision_config": tower, **text}


def qwen3_vl(text: dict[str, Any], family: str = "qwen3_vl") -> dict[str, Any]:
    tower = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16}
    tower |= {"patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2}
    tower |= {"num_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24]}
    tower["out_hidden_size"] = text["hidden_size"]
    whole = {"model_type": family, "image_token_id": 151655, "vision_config": tower}
    return {**whole, "text_config": text}


EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
CONFIGS = {
    "gsm8k/run": {"model_type": "qwen2", **sizes(28, 3584, 18944, 28, 4)},
    "geo3k/qwen25vl_3b": qwen25_vl(sizes(36, 2048, 11008, 16, 2) | {"tie_word_embeddings": True}),
    "geo3k/qwen25vl_7b": qwen25_vl(sizes(28, 3584, 18944, 28, 4)),
    "geo3k/qwen3vl_8b": qwen3_vl(sizes(36, 4096, 12288, 32, 8)),
    "geo3k/qwen3vl_30b_a3b": qwen3_vl(sizes(48, 2048, 6144, 32, 4) | EXPERTS, "qwen3_vl_moe"),
}
"""By the numbers of each model's own config.json."""


@pytest.mark.parametrize("name", CONFIGS)
def test_an_example_fits_its_model_and_its_devices(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    (tmp_path / "tokenizer.json").touch()
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    config = load_config(EXAMPLES / f"{name}.yaml")
    facts = read_model_folder(tmp_path)
    check_tensor_parallel(facts, config.rollout.tensor_parallel, "rollout.tensor_parallel")
    check_trainer_layout(facts, config.trainer)
    check_lengths(config, facts)
    plan = make_plan(config, Model(facts), trains_on_host=False, rolls_on_host=False)
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
    assert found == CONFIGS.keys()


def test_the_batches_are_those_of_the_guides() -> None:
    """Prompts and completions of a step, and of an update."""
    found: dict[str, tuple[int, ...]] = {}
    for name in CONFIGS:
        config = load_config(EXAMPLES / f"{name}.yaml")
        prompts, size = config.run.groups_per_step, config.rollout.group_size
        update = prompts // config.algorithm.updates_per_batch
        found[name.partition("/")[2]] = (prompts, prompts * size, update, update * size)
    assert found["qwen25vl_3b"] == (256, 1536, 64, 384)
    assert found["qwen25vl_7b"] == (512, 2560, 32, 160)
    assert found["qwen3vl_8b"] == (512, 2560, 32, 160)
    assert found["qwen3vl_30b_a3b"] == (64, 512, 16, 128)
    # EasyR1 on 8 cards: completions a card, minibatches, accumulations, passes for log-probabilities, steps an epoch.
    prompts, completions, update, updated = found["qwen25vl_3b"]
    cards = (completions // 8, prompts // update, updated // 8 // 2, completions // 8 // 8)
    assert (*cards, 2101 // prompts) == (192, 4, 24, 24, 8)
