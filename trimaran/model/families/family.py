"""What a model family is: which of a short list of features its models have, and the keys of its config.json.

Data alone. The trainer builds megatron-core's model from it and maps tensors by it, the planner counts with it,
and no torch is loaded for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Feature: TypeAlias = bool | str
"""Whether all models of the family have it; or the key of config.json that says so of each."""


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of the MLP. Example: Experts(shared="shared_expert", shared_gate=True)"""

    scores: Literal["softmax", "sigmoid"] = "softmax"
    """Of the router's logits. With sigmoid, experts are chosen within groups of them, by scores with a bias that is
    not trained; the weights of a token's experts add up to `routed_scaling_factor`."""
    normalized: Feature = "norm_topk_prob"
    """The weights of a token's experts add up to 1; else they are those of the softmax over all experts."""
    shared: str = ""
    """The name of what every token passes besides; empty for none."""
    shared_gate: bool = False
    """Its output is weighed by a gate."""
    stacked: bool = False
    """One tensor holds the matrices of all experts of a layer."""


@dataclass(frozen=True, slots=True)
class Family:
    """Example: QWEN2 = Family(biases=True)"""

    biases: Feature = False
    """Queries, keys and values have a bias."""
    head_norms: Feature = False
    """Queries and keys of each head have a norm."""
    partial_rope: bool = False
    """Only the first of a head's channels may turn with the position (`partial_rotary_factor`)."""
    latent: bool = False
    """Queries, keys and values come out of small vectors (multi-head latent attention)."""
    window: bool = False
    """A token may attend to the last `sliding_window` tokens alone, null or absent for all; in all layers, or in those
    of which `layer_types` or `sliding_window_pattern` says so."""
    norms_behind: bool = False
    """Attention and MLP have a norm behind them as well."""
    norms_around_one: bool = False
    """Norms multiply by 1 + w."""
    scaled_embeddings: bool = False
    """By the root of their channels."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    """Of the gated MLP."""
    tied: bool = False
    """The output layer is the embedding where config.json does not say."""
    experts: Experts | None = None
    tower: str = ""
    """The vision tower: module and class of `transformers.models`; empty for a model that takes no images."""
    nested_names: bool = False
    """Names of its tensors begin with those of the two modules, `folder.LANGUAGE` and `folder.VISION`."""
    required: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keys that config.json may have with these values only: with others, layers would be others."""
    known: frozenset[str] = frozenset()
    """Further keys of config.json, which are read or which change nothing; those of all families stand in
    services/trainer/megatron/known_keys.py. A folder with another key is refused."""

    @property
    def takes_images(self) -> bool:
        return bool(self.tower)

    @property
    def switches(self) -> tuple[str, ...]:
        """The keys of config.json that say which features a model has."""
        return tuple(one for one in (self.biases, self.head_norms) if isinstance(one, str))
