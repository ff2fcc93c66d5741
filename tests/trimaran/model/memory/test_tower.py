"""What a vision tower keeps for its backward pass, against transformers' own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig

from trimaran.model.memory.tower import patch_bytes
from trimaran.model.vision_tower import vision_facts

SIZES = {
    "depth": 6,
    "hidden_size": 128,
    "intermediate_size": 344,
    "num_heads": 4,
    "in_channels": 3,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 256,
}
GATED = {**SIZES, "patch_size": 14, "window_size": 112, "fullatt_block_indexes": [1, 5]}
PLAIN = {
    **SIZES,
    "patch_size": 16,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0, 1],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("config_class", "config"), [(Qwen2_5_VLVisionConfig, GATED), (Qwen3VLVisionConfig, PLAIN)]
)
def test_a_patch_keeps_what_the_formula_says(
    config_class: Any, config: dict[str, Any], dtype: torch.dtype
) -> None:
    tower: Any = transformers.AutoModel.from_config(
        config_class(**config), dtype=dtype, attn_implementation="sdpa"
    )
    facts = vision_facts(config, image_token_id=6)
    weights = {one.untyped_storage().data_ptr() for one in tower.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor  # which stays, and so its address
        return tensor

    grid = torch.tensor([[1, 16, 24]])
    patches = torch.randn(16 * 24, facts.patch_numbers, dtype=dtype)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        tower(patches, grid_thw=grid, return_dict=True)
    found = sum(
        one.untyped_storage().nbytes() for place, one in kept.items() if place not in weights
    )
    assert found / len(patches) == pytest.approx(patch_bytes(facts, dtype.itemsize), rel=0.03)
