"""A tiny random model with a tokenizer, as a Hugging Face folder: for tests where learning is not the point."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 +-=?.,!:\n"
SPECIAL = ["<pad>", "<end>", "<unk>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
SHAPE = {
    "vocab_size": 96,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "bos_token_id": None,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    # No multiple of 32, so vLLM pads it on the host.
    "moe_intermediate_size": 80,
}
EXPERTS = {
    "qwen2_moe": _EXPERTS | {"shared_expert_intermediate_size": 64},
    "qwen3_moe": _EXPERTS | {"head_dim": 32},
    "deepseek_v3": {
        **{"n_routed_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 64},
        **{"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "num_key_value_heads": 4},
        # The only sizes that vLLM's kernel for processors has.
        **{"kv_lora_rank": 512, "qk_rope_head_dim": 64},
        **{"q_lora_rank": 48, "qk_nope_head_dim": 32, "v_head_dim": 32},
        # vLLM goes by these, which transformers does not write by itself.
        **{"topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    },
    "glm4_moe": {
        **{"n_routed_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 64},
        **{"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "attention_bias": True},
        **{"use_qk_norm": True, "head_dim": 32},
    },
}
"""Of these families, in addition to SHAPE."""


def write_tiny_model(
    folder: Path,
    family: str = "llama",
    tied: bool = True,
    dtype: str = "float32",
    seed: int = 0,
    shape: Mapping[str, object] = SHAPE,
) -> Path:
    """`family`: llama, qwen2, qwen3, or one with experts (`EXPERTS`). One token a character; weights large enough that logits differ."""
    import torch
    import transformers

    kinds = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
        "qwen2_moe": (transformers.Qwen2MoeConfig, transformers.Qwen2MoeForCausalLM),
        "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
        "deepseek_v3": (transformers.DeepseekV3Config, transformers.DeepseekV3ForCausalLM),
        "glm4_moe": (transformers.Glm4MoeConfig, transformers.Glm4MoeForCausalLM),
        "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
        "gemma3_text": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
    }
    config_class, model_class = kinds[family]
    torch.manual_seed(seed)
    model = model_class(config_class(**shape, tie_word_embeddings=tied))
    make_distinct(model)
    model.generation_config.eos_token_id = 1
    biases = {name: one for name, one in model.named_buffers() if name.endswith("_bias")}
    model.to(getattr(torch, dtype))
    for name, bias in biases.items():  # of routers: in float32, as folders have them
        model.get_submodule(name.rpartition(".")[0]).e_score_correction_bias = bias.float()
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def make_distinct(model):
    """Weights so large that logits differ."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
            else:
                parameter.mul_(3)


def tiny_tokenizer(special=SPECIAL, chat_template=CHAT_TEMPLATE):
    """`special`: for padding, the end and what is unknown; and others."""
    import transformers
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: number for number, token in enumerate([*special, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=special[0],
        eos_token=special[1],
        unk_token=special[2],
        additional_special_tokens=list(special[3:]),
        chat_template=chat_template,
    )
