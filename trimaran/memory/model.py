"""A model's sizes, and how many of its parameters one trainer rank holds."""

from __future__ import annotations

from dataclasses import dataclass

from trimaran.model_folder import ModelFacts
from trimaran.parallel import RankPlace

BYTES = {"bfloat16": 2, "float32": 4}
"""Of one number, by the names of `model.dtype`."""
WITH_HEAD_NORMS = ("qwen3", "qwen3_moe")
"""Families that normalise each head's queries and keys."""


@dataclass(frozen=True, slots=True)
class Experts:
    """Of a mixture-of-experts layer. Example: Qwen3-30B-A3B has Experts(count=128, chosen=8, size=768)"""

    count: int
    chosen: int
    """For each token."""
    size: int
    """Of one expert, as `intermediate_size` is an MLP's."""


@dataclass(frozen=True, slots=True)
class Model:
    """Example: Model(facts).matrices is 7.6e9 for the facts of Qwen2.5-7B

    Norms and biases are left out: they are less than a thousandth of a model in use.
    """

    facts: ModelFacts
    dtype: str = "bfloat16"
    experts: Experts | None = None
    """In every layer, in place of its MLP."""

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
        return self.facts.family in WITH_HEAD_NORMS

    @property
    def attention_matrices(self) -> int:
        """Parameters of one layer's."""
        return 2 * self.facts.hidden_size * (self.queries + self.keys)

    @property
    def expert_matrices(self) -> int:
        """Parameters of one layer's experts together; 0 without experts."""
        if self.experts is None:
            return 0
        return self.experts.count * 3 * self.facts.hidden_size * self.experts.size

    @property
    def other_matrices(self) -> int:
        """Parameters of one layer's MLP, or of the router before its experts."""
        inner = 3 * self.facts.intermediate_size if self.experts is None else self.experts.count
        return self.facts.hidden_size * inner

    @property
    def matrices(self) -> int:
        """Parameters of the whole model."""
        layer = self.attention_matrices + self.other_matrices + self.expert_matrices
        tables = 1 if self.facts.tied else 2
        return (
            self.facts.num_layers * layer + tables * self.facts.vocab_size * self.facts.hidden_size
        )


def num_layers(model: Model, place: RankPlace) -> int:
    """Of the rank's stage; of the largest one where they cannot be equal."""
    return -(-model.facts.num_layers // place.layout.pipeline)


def vocabulary(model: Model, place: RankPlace) -> int:
    """Rows of the rank's slice of the embedding and of the head, with their padding."""
    return -(-model.facts.vocab_size // place.layout.tensor)


def dense_parameters(model: Model, place: RankPlace) -> int:
    """Of the rank, without experts. The first stage has the embedding, the last one the head; with one
    stage, a tied head is the embedding. The router of experts stands on every tensor-parallel rank."""
    tensor = place.layout.tensor
    router = 0 if model.experts is None else model.other_matrices
    split = model.attention_matrices + model.other_matrices - router
    tables = num_tables(model, place)
    return (
        num_layers(model, place) * (split // tensor + router)
        + tables * vocabulary(model, place) * model.facts.hidden_size
    )


def num_tables(model: Model, place: RankPlace) -> int:
    """Embedding and head, as many as the rank holds."""
    both_ends = (place.pipeline == 0) + place.is_last_stage
    return 1 if both_ends == 2 and model.facts.tied else both_ends


def expert_parameters(model: Model, place: RankPlace) -> int:
    """Of the rank's experts: its share of them, each split as everything else over tensor ranks."""
    sizes = place.layout
    return num_layers(model, place) * model.expert_matrices // (sizes.expert * sizes.tensor)
