"""Llama 2 and 3, and what copies them (SmolLM2)."""

from services.trainer.megatron.families.family import Family, attention, mlp

LLAMA = Family(
    layer=lambda facts: attention(facts) | mlp(facts),
    required={"attention_bias": False, "mlp_bias": False},
)
