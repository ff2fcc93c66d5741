"""What a model family is: keywords of megatron-core, and the rules of one layer's parameters.

Shapes and names of all Hugging Face tensors follow from the rules, so nothing else lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from services.trainer.megatron.rules import MappingRule, Rules, columns, gated, qkv, whole
from trimaran.model_folder import ModelFacts


def attention(facts: ModelFacts, bias: bool = False, norms: bool = False) -> dict[str, MappingRule]:
    """Grouped-query attention between its norm and its output. `bias`: of queries, keys and values.
    `norms`: of each head's queries and keys."""
    hidden, dim = facts.hidden_size, facts.head_dim
    queries = facts.num_heads // facts.num_kv_heads * dim
    rules = {
        "input_layernorm.weight": whole("input_layernorm.weight", (hidden,)),
        "self_attention.linear_proj.weight": columns(
            "self_attn.o_proj.weight", (hidden, facts.num_heads * dim)
        ),
    }
    for kind, tail in (("weight", (dim, hidden)), *([("bias", (dim,))] if bias else [])):
        names = (f"self_attn.q_proj.{kind}", f"self_attn.k_proj.{kind}", f"self_attn.v_proj.{kind}")
        rules[f"self_attention.linear_qkv.{kind}"] = qkv(names, facts.num_kv_heads, queries, tail)
    for letter in "qk" if norms else "":
        rules[f"self_attention.{letter}_layernorm.weight"] = whole(
            f"self_attn.{letter}_norm.weight", (dim,)
        )
    return rules


def mlp(facts: ModelFacts) -> dict[str, MappingRule]:
    """A gated MLP and the norm before it."""
    return {
        "pre_mlp_layernorm.weight": whole("post_attention_layernorm.weight", (facts.hidden_size,)),
        **_gated_mlp("mlp.", facts.hidden_size, facts.intermediate_size),
    }


def _gated_mlp(prefix: str, hidden: int, inner: int) -> dict[str, MappingRule]:
    gate, up = f"{prefix}gate_proj.weight", f"{prefix}up_proj.weight"
    return {
        f"{prefix}linear_fc1.weight": gated((gate, up), (inner, hidden)),
        f"{prefix}linear_fc2.weight": columns(f"{prefix}down_proj.weight", (hidden, inner)),
    }


@dataclass(frozen=True, slots=True)
class Family:
    """Example: MISTRAL = Family(layer=lambda facts: attention(facts) | mlp(facts))"""

    layer: Callable[[ModelFacts], Rules]
    """By the names that parameter and tensors have inside a layer."""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    """Of megatron-core's TransformerConfig, beyond those of all families (megatron/model.py)."""
    required: Mapping[str, Any] = field(default_factory=dict)
    """Keys that config.json may have with these values only: with others, layers would be others."""
