"""Tiny random models of each family, as Hugging Face folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
WIDE: dict[str, Any] = {"head_dim": 12}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT: dict[str, Any] = {
    **{"q_lora_rank": 20, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4},
    "v_head_dim": 6,
    "num_key_value_heads": 4,
    "rope_parameters": {
        **{"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.0},
        **{"mscale_all_dim": 1.0, "original_max_position_embeddings": 32},
    },
}
GROUPED: dict[str, Any] = {
    **{"n_routed_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 24},
    **{"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5},
}
DEEP = "qwen2_of_4_layers"
TINY: dict[str, dict[str, Any]] = {
    "qwen2": {"vocab_size": 97, "tie_word_embeddings": True},
    "llama": {"tie_word_embeddings": False, "rope_parameters": LLAMA3},
    "qwen3": {**WIDE, "tie_word_embeddings": False},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 40},
    "qwen3_moe": {**EXPERTS, **WIDE, "norm_topk_prob": True},
    "deepseek_v3": {**LATENT, **GROUPED},
    "glm4_moe": {
        **{**GROUPED, **WIDE, "attention_bias": True, "use_qk_norm": True},
        "rope_parameters": {
            "rope_theta": 1e4,
            "rope_type": "default",
            "partial_rotary_factor": 0.5,
        },
    },
    "mistral": {"sliding_window": 6},
    "gemma3_text": {
        **{**WIDE, "num_hidden_layers": 4, "sliding_window": 6, "query_pre_attn_scalar": 9},
        "layer_types": [*["sliding_attention"] * 3, "full_attention"],
    },
}
"""What differs from `SHAPE`. qwen2: bias, tied, a vocabulary that two ranks must pad; llama: untied, llama3
rope; qwen3: norms of queries and keys, heads that are not hidden_size / heads wide; with experts: qwen2_moe
has one that every token passes, qwen3_moe weighs the chosen ones to 1."""
FAMILIES = tuple(TINY)
TIED = ("qwen2", DEEP, "gemma3_text")


def make_model(family: str) -> Any:
    torch.manual_seed(0)
    layers = {"num_hidden_layers": 4} if family == DEEP else {}
    family = "qwen2" if family == DEEP else family
    shape = {"vocab_size": 96, **SHAPE, **TINY[family], **layers}
    config = transformers.AutoConfig.for_model(family, **shape)
    model: Any = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        biases = (one for name, one in model.named_buffers() if name.endswith("_bias"))
        for parameter in (*model.parameters(), *biases):
            # Norms and biases start at 1 and 0, which would hide a mistake in their mapping.
            parameter.add_(torch.randn_like(parameter) * (0.1 if parameter.ndim == 1 else 0.05))
    return model


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """In names, types and numbers."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def unfused(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As folders hold them: transformers keeps all experts of a layer in one tensor."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        prefix, _, last = name.rpartition(".")
        if prefix.endswith(".experts") and last in ("gate_up_proj", "down_proj"):
            for expert, own in enumerate(tensor):
                names = ["gate_proj", "up_proj"] if last == "gate_up_proj" else [last]
                for part, piece in zip(names, own.chunk(len(names)), strict=True):
                    found[f"{prefix}.{expert}.{part}.weight"] = piece
        else:
            found[name] = tensor
    return found


def save_model(folder: Path, family: str) -> Path:
    make_model(family).save_pretrained(folder)
    words = {f"w{i}": i for i in range(96)}
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return folder
