"""What config.json says of a vision tower, against transformers and against published sizes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from trimaran.errors import InputError
from trimaran.model.folder import read_model_folder
from trimaran.model.vision_tower import tower_tensors

TEXT25 = {
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 128000,
}
TOWER25 = {
    "depth": 32,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "in_chans": 3,
    "out_hidden_size": 3584,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}
TEXT3 = {
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 262144,
}
TOWER3 = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "in_channels": 3,
    "out_hidden_size": 4096,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [8, 16, 24],
}
COMMON = {"image_token_id": 151655, "tie_word_embeddings": False}
QWEN25 = {**COMMON, "model_type": "qwen2_5_vl", **TEXT25, "vision_config": TOWER25}
"""As its makers publish it: the language model's sizes beside all the rest."""
QWEN3 = {**COMMON, "model_type": "qwen3_vl", "text_config": TEXT3, "vision_config": TOWER3}


def folder_of(path: Path, config: dict[str, Any], names: Sequence[str] = ()) -> Path:
    path.mkdir()
    for name, text in (("config.json", json.dumps(config)), ("tokenizer.json", "{}")):
        (path / name).write_text(text)
    header = json.dumps({name: {} for name in names}).encode()
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return path


@pytest.mark.parametrize(
    ("config", "billions", "of_tower"), [(QWEN25, 8.29, 0.676), (QWEN3, 8.77, 0.576)]
)
def test_public_models_have_as_many_parameters_as_their_makers_say(
    config: dict[str, Any], billions: float, of_tower: float, tmp_path: Path
) -> None:
    facts = read_model_folder(folder_of(tmp_path / "m", config))
    assert facts.num_parameters == pytest.approx(billions * 1e9, rel=0.002)
    assert facts.tower_parameters == pytest.approx(of_tower * 1e9, rel=0.002)


@pytest.mark.parametrize(
    ("config", "tower_class"),
    [
        (QWEN25, transformers.models.qwen2_5_vl.configuration_qwen2_5_vl.Qwen2_5_VLVisionConfig),
        (QWEN3, transformers.models.qwen3_vl.configuration_qwen3_vl.Qwen3VLVisionConfig),
    ],
)
def test_names_and_shapes_are_those_of_transformers(
    config: dict[str, Any], tower_class: Any, tmp_path: Path
) -> None:
    facts = read_model_folder(folder_of(tmp_path / "m", config))
    assert facts.vision
    with torch.device("meta"):
        tower = transformers.AutoModel.from_config(tower_class(**config["vision_config"]))
    wanted = {name: tuple(tensor.shape) for name, tensor in tower.state_dict().items()}
    assert tower_tensors(facts.vision, facts.hidden_size) == wanted


def test_sizes_of_the_language_model_are_those_of_its_part(tmp_path: Path) -> None:
    config = {**QWEN3, "num_hidden_layers": 5, "hidden_size": 7}
    facts = read_model_folder(folder_of(tmp_path / "m", config))
    assert (facts.num_layers, facts.hidden_size) == (36, 4096)
    assert facts.language_prefix == "model.language_model."
    assert facts.vision_prefix == "model.visual."
    flat = read_model_folder(folder_of(tmp_path / "flat", QWEN25))
    nested = {**COMMON, "model_type": "qwen2_5_vl", "text_config": TEXT25, "vision_config": TOWER25}
    assert flat == read_model_folder(folder_of(tmp_path / "nested", nested))
    assert (flat.language_prefix, flat.vision_prefix) == ("model.", "visual.")


@pytest.mark.parametrize(
    ("language", "vision"), [("model.", "visual."), ("model.language_model.", "model.visual.")]
)
def test_folders_of_qwen25_have_either_names(language: str, vision: str, tmp_path: Path) -> None:
    names = ["lm_head.weight", f"{language}norm.weight", f"{vision}patch_embed.proj.weight"]
    facts = read_model_folder(folder_of(tmp_path / "m", QWEN25, names))
    assert (facts.language_prefix, facts.vision_prefix) == (language, vision)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image_token_id": None}, "holds sizes that are none"),
        ({"vision_config": {**TOWER3, "out_hidden_size": 8}}, "tower gives 8 channels, .* 4096"),
        ({"vision_config": {"depth": 3}}, "lacks hidden_size"),
        ({"text_config": {**TEXT3, "use_sliding_window": True}}, "sliding-window"),
    ],
)
def test_what_cannot_be(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        read_model_folder(folder_of(tmp_path / "m", {**QWEN3, **change}))
