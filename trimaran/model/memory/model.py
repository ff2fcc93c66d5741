"""A model's sizes, and how many of its parameters one trainer rank holds."""

from __future__ import annotations

from dataclasses import dataclass

from trimaran.config.parallel import RankPlace
from trimaran.model.folder import ModelFacts

BYTES = {"bfloat16": 2, "float32": 4}
"""Bytes of one number, by the names of `model.dtype`."""


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Example: ModelSizes(facts).matrices is 7.6e9 for the facts of Qwen2.5-7B

    Norms and biases are left out: they are less than a thousandth of a model in use.
    """

    facts: ModelFacts
    dtype: str = "bfloat16"

    @property
    def number_bytes(self) -> int:
        return BYTES[self.dtype]

    @property
    def queries(self) -> int:
        """Channels of all heads."""
        return self.facts.num_heads * self.facts.head_dim

    @property
    def keys(self) -> int:
        """Channels of all key/value heads."""
        return self.facts.num_kv_heads * self.facts.head_dim

    @property
    def values(self) -> int:
        """Channels of the attention's output, of all heads."""
        return self.facts.projections["o_proj"][1]

    @property
    def expert_matrices(self) -> int:
        """Parameters of the experts of a layer that has some, together; 0 without experts."""
        return self.facts.num_experts * 3 * self.facts.hidden_size * self.facts.expert_size

    def mlp_matrices(self, layer: int) -> int:
        """Parameters of what the layer's tokens all pass: its MLP, or the expert that is shared."""
        facts = self.facts
        shared = facts.has_experts(layer)
        return (
            3
            * facts.hidden_size
            * (facts.shared_expert_size if shared else facts.intermediate_size)
        )

    @property
    def router_matrices(self) -> int:
        """Parameters of what chooses the experts of a layer that has some; 0 without experts."""
        return self.facts.hidden_size * self.facts.num_experts

    @property
    def tower(self) -> int:
        """Parameters of the vision tower, norms and biases as well; 0 without one."""
        return self.facts.tower_parameters

    @property
    def matrices(self) -> int:
        """Parameters of the whole model."""
        return self.facts.num_parameters


def num_layers(model: ModelSizes, place: RankPlace) -> int:
    """Layers of the rank."""
    return len(place.layers(model.facts.num_layers))


def num_expert_layers(model: ModelSizes, place: RankPlace) -> int:
    """Those of them that have experts."""
    return sum(map(model.facts.has_experts, place.layers(model.facts.num_layers)))


def vocabulary(model: ModelSizes, place: RankPlace) -> int:
    """Rows of the rank's slice of the embedding and of the head, with their padding."""
    return -(-model.facts.vocab_size // place.layout.tensor)


def dense_parameters(model: ModelSizes, place: RankPlace) -> int:
    """Parameters of the rank, without experts. The first stage has the embedding, the last one the head; with one
    stage, a tied head is the embedding. The router of experts stands on every tensor-parallel rank, a vision
    tower on every one of the first stage."""
    facts, tables = model.facts, num_tables(model, place)
    split = sum(
        (facts.attention_parameters + model.mlp_matrices(layer)) // place.layout.tensor
        for layer in place.layers(facts.num_layers)
    )
    return (
        split
        + tables * vocabulary(model, place) * facts.hidden_size
        + whole_parameters(model, place)
    )


def whole_parameters(model: ModelSizes, place: RankPlace) -> int:
    """Those among them that every tensor-parallel rank has."""
    routers = num_expert_layers(model, place) * model.router_matrices
    return routers + (model.tower if place.pipeline == 0 else 0)


def num_tables(model: ModelSizes, place: RankPlace) -> int:
    """Embedding and head, as many as the rank holds."""
    both_ends = (place.pipeline == 0) + place.is_last_stage
    return 1 if both_ends == 2 and model.facts.tied else both_ends


def expert_parameters(model: ModelSizes, place: RankPlace) -> int:
    """Parameters of the rank's part of the experts."""
    return num_expert_layers(model, place) * model.expert_matrices // place.layout.expert_parts
