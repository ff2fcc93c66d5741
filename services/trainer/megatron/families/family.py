"""What a model family is: keywords of megatron-core, and the rules of one layer's parameters.

Shapes and names of all Hugging Face tensors follow from the rules, so nothing else lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from services.trainer.megatron.parameters.rules import (
    MappingRule,
    Rules,
    columns,
    element,
    gated,
    qkv,
    sent_whole,
    whole,
)
from trimaran.model.folder import ModelFacts


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
        **_gated_mlp("mlp.", "mlp.", facts.hidden_size, facts.intermediate_size),
    }


def _gated_mlp(module: str, prefix: str, hidden: int, inner: int) -> dict[str, MappingRule]:
    """`module` in megatron-core, `prefix` of the Hugging Face names."""
    gate, up = f"{prefix}gate_proj.weight", f"{prefix}up_proj.weight"
    return {
        f"{module}linear_fc1.weight": gated((gate, up), (inner, hidden)),
        f"{module}linear_fc2.weight": columns(f"{prefix}down_proj.weight", (hidden, inner)),
    }


def experts(facts: ModelFacts) -> dict[str, MappingRule]:
    """A router, experts, one that every token passes where there is such a one, and the norm before
    them."""
    hidden, rules = facts.hidden_size, _router(facts)
    for expert in range(facts.num_experts):
        module, prefix = f"mlp.experts.local_experts.{expert}.", f"mlp.experts.{expert}."
        own = _gated_mlp(module, prefix, hidden, facts.expert_size)
        rules |= {name: sent_whole(rule, expert) for name, rule in own.items()}
    if facts.shared_expert_size:
        names = "mlp.shared_experts.", "mlp.shared_expert."
        rules |= _gated_mlp(*names, hidden, facts.shared_expert_size)
        rules["mlp.shared_experts.gate_weight"] = whole(
            "mlp.shared_expert_gate.weight", (1, hidden)
        )
    return rules


def stacked_experts(facts: ModelFacts) -> dict[str, MappingRule]:
    """The same where one tensor stacks the matrices of all experts of a layer."""
    rules, count = _router(facts), facts.num_experts
    inner, outer = (
        (facts.hidden_size, 2 * facts.expert_size),
        (facts.expert_size, facts.hidden_size),
    )
    for expert in range(count):
        module = f"mlp.experts.local_experts.{expert}."
        rules |= {
            f"{module}linear_fc1.weight": element(
                "mlp.experts.gate_up_proj", (count, *inner), expert
            ),
            f"{module}linear_fc2.weight": element("mlp.experts.down_proj", (count, *outer), expert),
        }
    return rules


def _router(facts: ModelFacts) -> dict[str, MappingRule]:
    """And the norm before it."""
    hidden = facts.hidden_size
    return {
        "pre_mlp_layernorm.weight": whole("post_attention_layernorm.weight", (hidden,)),
        "mlp.router.weight": whole("mlp.gate.weight", (facts.num_experts, hidden)),
    }


def expert_keywords(config: Mapping[str, Any]) -> dict[str, Any]:
    """What config.json says of the routing."""
    return {
        # Weights of a token's experts: of the softmax over all, or over the chosen ones.
        "moe_router_pre_softmax": not config.get("norm_topk_prob", False),
        "moe_router_load_balancing_type": "none",
    }


EXPERT_KEYS = frozenset(
    {
        *("num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size"),
        *("norm_topk_prob", "router_aux_loss_coef", "output_router_logits"),
        *("shared_expert_intermediate_size",),
    }
)
"""`Family.known`. The auxiliary loss is not trained."""
EVERY_LAYER = {"decoder_sparse_step": 1, "mlp_only_layers": []}
"""`Family.required`: each layer has experts."""


@dataclass(frozen=True, slots=True)
class Family:
    """Example: MISTRAL = Family(layer=lambda facts: attention(facts) | mlp(facts))"""

    layer: Callable[[ModelFacts], Rules]
    """By the names that parameter and tensors have inside a layer."""
    keywords: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda config: {}
    """Keywords of megatron-core's TransformerConfig, beyond those of all families (megatron/model.py), for what
    config.json holds."""
    required: Mapping[str, Any] = field(default_factory=dict)
    """Keys that config.json may have with these values only: with others, layers would be others."""
    known: frozenset[str] = frozenset()
    """Further keys of config.json, which `keywords` reads or which change nothing; those of all families
    stand in megatron/known_keys.py. A folder with another key is refused."""
