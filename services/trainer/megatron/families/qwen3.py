"""Qwen3: Llama with a norm of each head's queries and keys; with one MLP a layer, or with experts. Behind a
vision tower experts are stacked, and the weights of a token's experts always add up to 1."""

from services.trainer.megatron.families.family import (
    EVERY_LAYER,
    EXPERT_KEYS,
    Family,
    attention,
    expert_keywords,
    experts,
    mlp,
    stacked_experts,
)

# finalize_model_grads sums the norms' gradients over the heads of all tensor-parallel ranks by it.
NORMS = {"qk_layernorm": True}

QWEN3 = Family(
    layer=lambda facts: attention(facts, norms=True) | mlp(facts),
    keywords=lambda config: NORMS,
    required={"attention_bias": False},
)
QWEN3_MOE = Family(
    layer=lambda facts: attention(facts, norms=True) | experts(facts),
    keywords=lambda config: expert_keywords(config) | NORMS,
    required={"attention_bias": False, **EVERY_LAYER},
    known=EXPERT_KEYS,
)
QWEN3_VL_MOE = Family(
    layer=lambda facts: attention(facts, norms=True) | stacked_experts(facts),
    keywords=lambda config: expert_keywords({**config, "norm_topk_prob": True}) | NORMS,
    required={"attention_bias": False, **EVERY_LAYER},
    known=EXPERT_KEYS,
)
