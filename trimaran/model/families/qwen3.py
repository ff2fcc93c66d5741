"""Qwen3: Llama with a norm of each head's queries and keys; with one MLP a layer, or with experts. Behind a
vision tower experts are stacked, and the weights of a token's experts always add up to 1."""

from dataclasses import replace

from trimaran.model.families.experts import EVERY_LAYER, KEYS
from trimaran.model.families.family import Experts, Family

QWEN3 = Family(head_norms=True)
QWEN3_MOE = Family(
    head_norms=True,
    experts=Experts(),
    required=EVERY_LAYER,
    known=KEYS,
)
QWEN3_VL = replace(QWEN3, tower="qwen3_vl.modeling_qwen3_vl:Qwen3VLVisionModel", nested_names=True)
QWEN3_VL_MOE = replace(
    QWEN3_MOE,
    experts=Experts(normalized=True, stacked=True),
    tower="qwen3_vl_moe.modeling_qwen3_vl_moe:Qwen3VLMoeVisionModel",
    nested_names=True,
)
