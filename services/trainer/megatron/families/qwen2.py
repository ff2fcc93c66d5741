"""Qwen2 and Qwen2.5: Llama with a bias at queries, keys and values."""

from services.trainer.megatron.families.family import Family, attention, mlp

QWEN2 = Family(
    layer=lambda facts: attention(facts, bias=True) | mlp(facts),
    keywords={"add_qkv_bias": True},
)
