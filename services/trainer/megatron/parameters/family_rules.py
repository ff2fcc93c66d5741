"""The rules of all parameters of a whole model, out of those of its family's layers.

No torch is loaded: the planner uses them, too.
"""

from __future__ import annotations

from dataclasses import replace

from services.trainer.megatron.parameters.layer_rules import layer_rules
from services.trainer.megatron.parameters.rules import Rules, rows, whole
from trimaran.model.folder import EMBEDDING, HEAD, ModelFacts
from trimaran.model.vision_tower import tower_tensors

TOWER = "visual."
"""Before the names of the vision tower's parameters."""


def family_rules(facts: ModelFacts) -> Rules:
    """The embedding, layer by layer, the last norm, the output layer, and the vision tower where there is
    one. Facts are all that it takes: a checkpoint holds them."""
    table, prefix = (facts.vocab_size, facts.hidden_size), facts.language_prefix
    embedding = rows(f"{prefix}{EMBEDDING}", table)
    rules = {"embedding.word_embeddings.weight": embedding}
    # Layers of a kind are alike, and there are many experts.
    kinds = {facts.has_experts(layer) for layer in range(facts.num_layers)}
    made = {kind: layer_rules(facts, kind) for kind in kinds}
    for layer in range(facts.num_layers):
        for name, rule in made[facts.has_experts(layer)].items():
            rules[f"decoder.layers.{layer}.{name}"] = rule.inside(f"{prefix}layers.{layer}.")
    rules["decoder.final_layernorm.weight"] = whole(f"{prefix}norm.weight", (facts.hidden_size,))
    # A tied model has an output layer of its own where it is on another stage than the embedding.
    head = embedding if facts.tied else rows(HEAD, table)
    rules["output_layer.weight"] = replace(head, is_copy=facts.tied)
    return {**rules, **tower_rules(facts)}


def tower_rules(facts: ModelFacts) -> Rules:
    """The rules of the vision tower, which is transformers' own: its tensors as they are, on every tensor-parallel
    rank of the first stage."""
    if facts.vision is None:
        return {}
    return {
        f"{TOWER}{name}": whole(f"{facts.vision_prefix}{name}", shape)
        for name, shape in tower_tensors(facts.vision, facts.hidden_size).items()
    }
