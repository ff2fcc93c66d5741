"""Qwen3 with one MLP a layer: Llama with a norm of each head's queries and keys."""

from services.trainer.megatron.families.family import Family, attention, mlp

QWEN3 = Family(
    layer=lambda facts: attention(facts, norms=True) | mlp(facts),
    # finalize_model_grads sums their gradients over the heads of all tensor-parallel ranks by it.
    keywords={"qk_layernorm": True},
    required={"attention_bias": False},
)
