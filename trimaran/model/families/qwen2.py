"""Qwen2 and Qwen2.5: Llama with a bias at queries, keys and values; with one MLP a layer, or with
experts and one that every token passes."""

from dataclasses import replace

from trimaran.model.families.experts import EVERY_LAYER, KEYS
from trimaran.model.families.family import Experts, Family

QWEN2 = Family(biases=True)
QWEN2_MOE = Family(
    biases=True,
    experts=Experts(shared="shared_expert", shared_gate=True),
    required={"qkv_bias": True, **EVERY_LAYER},
    known=KEYS,
)
QWEN2_5_VL = replace(
    QWEN2, tower="qwen2_5_vl.modeling_qwen2_5_vl:Qwen2_5_VisionTransformerPretrainedModel"
)
