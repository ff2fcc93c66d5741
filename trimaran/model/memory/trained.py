"""How many parameters of one trainer rank train, where some are frozen by their names."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import NamedTuple

from trimaran.config import TrainerSection
from trimaran.config.parallel import RankPlace
from trimaran.model.freezing import is_frozen
from trimaran.model.memory.model import ModelSizes, num_layers, vocabulary
from trimaran.model.vision_tower import tower_tensors

HEAD = "lm_head.weight"


class Matrix(NamedTuple):
    """One of a layer, by the name that it has there in the Hugging Face folder."""

    name: str
    parameters: int
    is_expert: bool = False
    """Spread over the ranks of `Layout.expert_parts`, and not over tensor-parallel ones."""
    is_whole: bool = False
    """The same on every tensor-parallel rank."""


def layer_matrices(model: ModelSizes, layer: int) -> Iterator[Matrix]:
    """All of the layer. Norms and biases are left out, as in `ModelSizes`."""
    facts, hidden = model.facts, model.facts.hidden_size
    for name, shape in facts.projections.items():
        yield Matrix(f"self_attn.{name}.weight", prod(shape))
    if not facts.has_experts(layer):
        yield from _mlp("mlp.", hidden * facts.intermediate_size)
        return
    yield Matrix("mlp.gate.weight", model.router_matrices, is_whole=True)
    if facts.stacks_experts:
        each = facts.num_experts * hidden * facts.expert_size
        yield Matrix("mlp.experts.gate_up_proj", 2 * each, is_expert=True)
        yield Matrix("mlp.experts.down_proj", each, is_expert=True)
        return
    for expert in range(facts.num_experts):
        for one in _mlp(f"mlp.experts.{expert}.", hidden * facts.expert_size):
            yield one._replace(is_expert=True)
    if (experts := facts.described.experts) and facts.shared_expert_size:
        yield from _mlp(f"mlp.{experts.shared}.", hidden * facts.shared_expert_size)


def _mlp(prefix: str, parameters: int) -> Iterator[Matrix]:
    for name in ("gate", "up", "down"):
        yield Matrix(f"{prefix}{name}_proj.weight", parameters)


def head_name(model: ModelSizes) -> str:
    return embedding_name(model) if model.facts.tied else HEAD


def embedding_name(model: ModelSizes) -> str:
    return f"{model.facts.language_prefix}embed_tokens.weight"


class Trained(NamedTuple):
    """Parameters of a rank; those of experts have ranks of their own that hold the same."""

    dense: int
    experts: int


def trained_parameters(
    model: ModelSizes, place: RankPlace, freeze: tuple[str, ...], virtual_stages: int = 1
) -> Trained:
    """Parameters of the rank that train. Frozen are those whose names a pattern of `freeze` matches.

    Example: trained_parameters(model, place, ("model.embed_tokens.weight",)).dense
    """
    layout, split, whole, experts = place.layout, 0, 0, 0
    for layer in place.layers(model.facts.num_layers, virtual_stages):
        sums = _trained_of_layer(model, layer, freeze)
        split, whole, experts = split + sums[0], whole + sums[1], experts + sums[2]
    table = vocabulary(model, place) * model.facts.hidden_size
    tables = {embedding_name(model)} if place.pipeline == 0 else set[str]()
    tables |= {head_name(model)} if place.is_last_stage else set()
    trained = sum(table for name in tables if not is_frozen(name, freeze))
    if place.pipeline == 0:
        trained += trained_tower(model, freeze)
    return Trained(split // layout.tensor + whole + trained, experts // layout.expert_parts)


def patterns(section: TrainerSection) -> tuple[str, ...]:
    """Over the names of what does not train: with adapters all of the model."""
    return ("*",) if section.lora else section.freeze


@lru_cache(maxsize=64)
def trained_tower(model: ModelSizes, freeze: tuple[str, ...]) -> int:
    """Parameters of the vision tower that train; 0 without one."""
    facts = model.facts
    if facts.vision is None:
        return 0
    return sum(
        prod(shape)
        for name, shape in tower_tensors(facts.vision, facts.hidden_size).items()
        if not is_frozen(f"{facts.vision_prefix}{name}", freeze)
    )


def adapter_parameters(
    model: ModelSizes, place: RankPlace, rank: int, targets: tuple[str, ...]
) -> int:
    """Parameters of the trainer rank's adapters of `rank` (services/trainer/megatron/parameters/lora.py). The matrix that is as
    wide as what ranks share is split, the other stands on each of them."""
    facts, tensor = model.facts, place.layout.tensor
    hidden, inner = facts.hidden_size, facts.intermediate_size
    shapes = facts.projections
    shared = {name: shape[1 if name == "o_proj" else 0] for name, shape in shapes.items()}
    shared |= {f"{name}_proj": inner for name in ("gate", "up", "down")}
    layer = sum(rank * (hidden + shared[target] // tensor) for target in targets)
    return num_layers(model, place) * layer


@lru_cache(maxsize=4096)
def _trained_of_layer(
    model: ModelSizes, layer: int, freeze: tuple[str, ...]
) -> tuple[int, int, int]:
    """Parameters that tensor-parallel ranks share, that each of them has, and of experts."""
    sums = [0, 0, 0]
    for matrix in layer_matrices(model, layer):
        name = f"{model.facts.language_prefix}layers.{layer}.{matrix.name}"
        if not is_frozen(name, freeze):
            sums[2 if matrix.is_expert else 1 if matrix.is_whole else 0] += matrix.parameters
    return sums[0], sums[1], sums[2]
