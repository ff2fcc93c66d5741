"""Qwen2 and Qwen2.5: Llama with a bias at queries, keys and values; with one MLP a layer, or with
experts and one that every token passes."""

from services.trainer.megatron.families.family import (
    EVERY_LAYER,
    EXPERT_KEYS,
    Family,
    attention,
    expert_keywords,
    experts,
    mlp,
)

QWEN2 = Family(
    layer=lambda facts: attention(facts, bias=True) | mlp(facts),
    keywords=lambda config: {"add_qkv_bias": True},
)
QWEN2_MOE = Family(
    layer=lambda facts: attention(facts, bias=True) | experts(facts),
    keywords=lambda config: {
        **expert_keywords(config),
        "add_qkv_bias": True,
        "moe_shared_expert_gate": True,
    },
    required={"qkv_bias": True, **EVERY_LAYER},
    known=EXPERT_KEYS,
)
