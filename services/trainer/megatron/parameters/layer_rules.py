"""The rules of one layer's parameters, out of the features of its family: by the names that parameter and tensors have
inside a layer.

Shapes and names of all Hugging Face tensors follow from the rules, so nothing else lists them.
"""

from __future__ import annotations

from services.trainer.megatron.parameters.rules import (
    MappingRule,
    Rules,
    columns,
    element,
    fixed,
    gated,
    qkv,
    rows,
    sent_whole,
    whole,
)
from trimaran.model.folder import ModelFacts

LATENT = {
    "q_proj": "linear_q_proj",
    "q_a_proj": "linear_q_down_proj",
    "q_b_proj": "linear_q_up_proj",
    "kv_a_proj_with_mqa": "linear_kv_down_proj",
    "kv_b_proj": "linear_kv_up_proj",
}
"""Latent attention's matrices by row: Hugging Face's names -> megatron-core's."""


def layer_rules(facts: ModelFacts, has_experts: bool) -> Rules:
    attention = _latent_attention(facts) if facts.latent else _attention(facts)
    output = columns("self_attn.o_proj.weight", facts.projections["o_proj"])
    before_mlp, behind = "post_attention_layernorm", dict[str, MappingRule]()
    if facts.described.norms_behind:
        before_mlp = "pre_feedforward_layernorm"
        names = {"self_attn_bda": "post_attention", "mlp_bda": "post_feedforward"}
        behind = {
            f"{own}.norm.weight": whole(f"{name}_layernorm.weight", (facts.hidden_size,))
            for own, name in names.items()
        }
    return {
        "input_layernorm.weight": whole("input_layernorm.weight", (facts.hidden_size,)),
        "self_attention.linear_proj.weight": output,
        **attention,
        "pre_mlp_layernorm.weight": whole(f"{before_mlp}.weight", (facts.hidden_size,)),
        **behind,
        **(_experts(facts) if has_experts else _mlp(facts)),
    }


def _attention(facts: ModelFacts) -> dict[str, MappingRule]:
    """Grouped-query attention: queries, keys and values, and the norms of heads."""
    hidden, dim, rules = facts.hidden_size, facts.head_dim, dict[str, MappingRule]()
    queries = facts.num_heads // facts.num_kv_heads * dim
    biases = [("bias", (dim,))] if facts.has_biases else []
    for kind, tail in (("weight", (dim, hidden)), *biases):
        names = (f"self_attn.q_proj.{kind}", f"self_attn.k_proj.{kind}", f"self_attn.v_proj.{kind}")
        rules[f"self_attention.linear_qkv.{kind}"] = qkv(names, facts.num_kv_heads, queries, tail)
    for letter in "qk" if facts.has_head_norms else "":
        rules[f"self_attention.{letter}_layernorm.weight"] = whole(
            f"self_attn.{letter}_norm.weight", (dim,)
        )
    return rules


def _latent_attention(facts: ModelFacts) -> dict[str, MappingRule]:
    """What makes queries, keys and values, and the norms of the small vectors between."""
    assert facts.latent
    ranks = {"q_a": facts.latent.queries_rank, "kv_a": facts.latent.keys_rank}
    norms = {
        f"self_attention.{name.removesuffix('_a')}_layernorm.weight": whole(
            f"self_attn.{name}_layernorm.weight", (rank,)
        )
        for name, rank in ranks.items()
        if rank
    }
    matrices = {
        f"self_attention.{LATENT[name]}.weight": rows(f"self_attn.{name}.weight", shape)
        for name, shape in facts.projections.items()
        if name in LATENT
    }
    return norms | matrices


def _mlp(facts: ModelFacts) -> dict[str, MappingRule]:
    return _gated_mlp("mlp.", "mlp.", facts.hidden_size, facts.intermediate_size)


def _gated_mlp(module: str, prefix: str, hidden: int, inner: int) -> dict[str, MappingRule]:
    """`module` in megatron-core, `prefix` of the Hugging Face names."""
    gate, up = f"{prefix}gate_proj.weight", f"{prefix}up_proj.weight"
    return {
        f"{module}linear_fc1.weight": gated((gate, up), (inner, hidden)),
        f"{module}linear_fc2.weight": columns(f"{prefix}down_proj.weight", (hidden, inner)),
    }


def _experts(facts: ModelFacts) -> dict[str, MappingRule]:
    """A router, experts, and one that every token passes where there is such a one."""
    kind, hidden = facts.described.experts, facts.hidden_size
    assert kind
    router = whole("mlp.gate.weight", (facts.num_experts, hidden))
    rules = {"mlp.router.weight": router}
    if kind.scores == "sigmoid":
        name = "mlp.gate.e_score_correction_bias"
        rules["mlp.router.expert_bias"] = fixed(name, (facts.num_experts,))
    for expert in range(facts.num_experts):
        module, prefix = f"mlp.experts.local_experts.{expert}.", f"mlp.experts.{expert}."
        if kind.stacked:
            rules |= _of_a_stack(facts, module, expert)
        else:
            own = _gated_mlp(module, prefix, hidden, facts.expert_size)
            rules |= {name: sent_whole(rule, expert) for name, rule in own.items()}
    if facts.shared_expert_size:
        names = "mlp.shared_experts.", f"mlp.{kind.shared}."
        rules |= _gated_mlp(*names, hidden, facts.shared_expert_size)
        if kind.shared_gate:
            gate = whole(f"mlp.{kind.shared}_gate.weight", (1, hidden))
            rules["mlp.shared_experts.gate_weight"] = gate
    return rules


def _of_a_stack(facts: ModelFacts, module: str, expert: int) -> dict[str, MappingRule]:
    """One tensor stacks the matrices of all experts of a layer."""
    count, hidden, size = facts.num_experts, facts.hidden_size, facts.expert_size
    inner, outer = (count, hidden, 2 * size), (count, size, hidden)
    return {
        f"{module}linear_fc1.weight": element("mlp.experts.gate_up_proj", inner, expert),
        f"{module}linear_fc2.weight": element("mlp.experts.down_proj", outer, expert),
    }
