"""A model's sizes, and how many of its parameters one trainer rank holds."""

from __future__ import annotations

from dataclasses import dataclass

from trimaran.choices import family_facts
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
    def has_head_norms(self) -> bool:
        return family_facts(self.facts.family).head_norms

    @property
    def attention_matrices(self) -> int:
        """Parameters of one layer's."""
        return 2 * self.facts.hidden_size * (self.queries + self.keys)

    @property
    def expert_matrices(self) -> int:
        """Parameters of one layer's experts together; 0 without experts."""
        return self.facts.num_experts * 3 * self.facts.hidden_size * self.facts.expert_size

    @property
    def mlp_matrices(self) -> int:
        """Parameters of what one layer's tokens all pass: its MLP, or the expert that is shared."""
        facts = self.facts
        inner = facts.shared_expert_size if facts.num_experts else facts.intermediate_size
        return 3 * facts.hidden_size * inner

    @property
    def router_matrices(self) -> int:
        """Parameters of what chooses one layer's experts; 0 without experts."""
        return self.facts.hidden_size * self.facts.num_experts

    @property
    def tower(self) -> int:
        """Parameters of the vision tower, norms and biases as well; 0 without one."""
        return self.facts.tower_parameters

    @property
    def matrices(self) -> int:
        """Parameters of the whole model."""
        dense = self.attention_matrices + self.mlp_matrices
        layer = dense + self.router_matrices + self.expert_matrices
        tables = 1 if self.facts.tied else 2
        return (
            self.facts.num_layers * layer
            + tables * self.facts.vocab_size * self.facts.hidden_size
            + self.tower
        )


def num_layers(model: ModelSizes, place: RankPlace) -> int:
    """Layers of the rank."""
    return len(place.layers(model.facts.num_layers))


def vocabulary(model: ModelSizes, place: RankPlace) -> int:
    """Rows of the rank's slice of the embedding and of the head, with their padding."""
    return -(-model.facts.vocab_size // place.layout.tensor)


def dense_parameters(model: ModelSizes, place: RankPlace) -> int:
    """Parameters of the rank, without experts. The first stage has the embedding, the last one the head; with one
    stage, a tied head is the embedding. The router of experts stands on every tensor-parallel rank, a vision
    tower on every one of the first stage."""
    split = (model.attention_matrices + model.mlp_matrices) // place.layout.tensor
    tables = num_tables(model, place)
    return (
        num_layers(model, place) * split
        + tables * vocabulary(model, place) * model.facts.hidden_size
        + whole_parameters(model, place)
    )


def whole_parameters(model: ModelSizes, place: RankPlace) -> int:
    """Those among them that every tensor-parallel rank has."""
    routers = num_layers(model, place) * model.router_matrices
    return routers + (model.tower if place.pipeline == 0 else 0)


def num_tables(model: ModelSizes, place: RankPlace) -> int:
    """Embedding and head, as many as the rank holds."""
    both_ends = (place.pipeline == 0) + place.is_last_stage
    return 1 if both_ends == 2 and model.facts.tied else both_ends


def expert_parameters(model: ModelSizes, place: RankPlace) -> int:
    """Parameters of the rank's part of the experts."""
    return num_layers(model, place) * model.expert_matrices // place.layout.expert_parts
