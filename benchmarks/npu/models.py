"""config.json of the models of the guides, as far as a plan needs it: the makers' numbers, for where the model's
folder is not at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Tree = dict[str, Any]


def sizes(
    layers: int, hidden: int, inner: int, heads: int, keys: int, vocabulary: int = 151936
) -> Tree:
    """Of a language model with an output layer of its own."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "head_dim": 128,
        "vocab_size": vocabulary,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-6,
    }


def qwen25_vl(text: Tree, inner: int = 3420) -> Tree:
    """`inner`: of the tower's MLP."""
    tower = {"depth": 32, "hidden_size": 1280, "intermediate_size": inner, "num_heads": 16}
    tower |= {"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
    tower["out_hidden_size"] = text["hidden_size"]
    whole = {"model_type": "qwen2_5_vl", "image_token_id": 151655, "vision_config": tower}
    return {**whole, **text, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}


def qwen3_vl(text: Tree, family: str = "qwen3_vl") -> Tree:
    tower = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16}
    tower |= {"patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2}
    tower |= {"num_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24]}
    tower["out_hidden_size"] = text["hidden_size"]
    whole = {"model_type": family, "image_token_id": 151655, "vision_config": tower}
    rope = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [24, 20, 20]}
    return {**whole, "text_config": {**text, "rope_scaling": rope}}


EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
QWEN25_7B = sizes(28, 3584, 18944, 28, 4, vocabulary=152064)
QWEN25_32B = sizes(64, 5120, 27648, 40, 8, vocabulary=152064)

DEEPSEEK_R1: Tree = {
    "model_type": "deepseek_v3",
    **sizes(61, 7168, 18432, 128, 128, vocabulary=129280),
    **{"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "v_head_dim": 128},
    **{"qk_rope_head_dim": 64, "n_routed_experts": 256, "n_shared_experts": 1},
    **{"num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3},
    **{"n_group": 8, "topk_group": 4, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    **{"norm_topk_prob": True, "routed_scaling_factor": 2.5, "moe_layer_freq": 1},
}

CONFIGS: Mapping[str, Tree] = {
    "Qwen2.5-7B": {"model_type": "qwen2", **QWEN25_7B},
    "Qwen2.5-32B": {"model_type": "qwen2", **QWEN25_32B},
    "Qwen3-8B": {"model_type": "qwen3", **sizes(36, 4096, 12288, 32, 8)},
    "Qwen2.5-VL-7B-Instruct": qwen25_vl(QWEN25_7B),
    "Qwen2.5-VL-32B-Instruct": qwen25_vl(QWEN25_32B, inner=3456),
    "Qwen3-VL-8B-Instruct": qwen3_vl(sizes(36, 4096, 12288, 32, 8)),
    "Qwen3-VL-30B-A3B-Instruct": qwen3_vl(
        sizes(48, 2048, 6144, 32, 4) | EXPERTS, family="qwen3_vl_moe"
    ),
    "DeepSeek-R1": DEEPSEEK_R1,
}
"""By the folder's name under models/."""
