"""What we need to know of a Hugging Face config.json to build the model in megatron-core."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.trainer.megatron.attention.rope import Rope, parse_rope
from services.trainer.megatron.known_keys import check_keys
from trimaran.choices import FAMILIES
from trimaran.config.parallel import ParallelLayout
from trimaran.errors import InputError
from trimaran.model.families.family import Experts, Family
from trimaran.model.folder import ModelFacts, language_config, read_model_folder
from trimaran.model.memory.model import ModelSizes
from trimaran.model.memory.stages import tower_passes


@dataclass(frozen=True, slots=True)
class Routing:
    """What config.json says of a token's way to its experts; the defaults where there are none."""

    normalized: bool = True
    """The weights of a token's experts add up to 1, before they are multiplied by `scale`."""
    scale: float = 1.0
    groups: int | None = None
    """Groups of experts; None where a token's may be of any."""
    chosen_groups: int | None = None
    """Those that a token's experts are of."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Example: read_architecture(Path("models/SmolLM2-135M-Instruct")).facts.num_layers == 30"""

    facts: ModelFacts
    norm_epsilon: float
    rope: Rope
    routing: Routing
    window_rope: Rope | None = None
    """That of layers with a window, where it is another one."""
    softmax_scale: float | None = None
    """By which scores are multiplied, where it is not 1 / root of a head's channels."""


def read_architecture(folder: Path, is_whole: bool = True) -> Architecture:
    """Raises InputError where we cannot train what the folder's config.json describes. `is_whole`: as for
    `read_model_folder`."""
    facts = read_model_folder(folder, is_whole)
    source = folder / "config.json"
    config = language_config(json.loads(source.read_text(encoding="utf-8")))
    family = FAMILIES.load(facts.family)
    if not isinstance(family, Family):
        raise InputError(
            f"model.path: {source}: the family {facts.family!r} of {FAMILIES.group} is a"
            f" {type(family).__name__}, and no trimaran.model.families.family.Family;"
            " docs/extending.md has the recipe"
        )
    check_keys(config, family, f"model.path: {source}")
    if "rms_norm_eps" not in config:
        raise InputError(f"model.path: {source} lacks rms_norm_eps")
    rope, window_rope = _ropes(config, family, f"model.path: {source}")
    if facts.vision and sum(rope.sections) * 2 != facts.head_dim:
        raise InputError(
            f"model.path: {source}: mrope_section {list(rope.sections)} is not of heads with"
            f" {facts.head_dim} channels; it must have three numbers that add up to the half"
        )
    routing = _routing(config, family.experts, f"model.path: {source}")
    scalar = config.get("query_pre_attn_scalar")
    scale = float(scalar) ** -0.5 if scalar else None
    return Architecture(facts, config["rms_norm_eps"], rope, routing, window_rope, scale)


def _ropes(config: Mapping[str, Any], family: Family, where: str) -> tuple[Rope, Rope | None]:
    """That of layers that attend to all, and that of those with a window where it is another one."""
    given = config.get("rope_parameters") or {}
    if "full_attention" in given:  # as transformers 5 writes them
        parts = (given[f"{kind}_attention"] for kind in ("full", "sliding"))
        full, window = (parse_rope({**config, "rope_parameters": one}, where) for one in parts)
        return full, window
    rope = parse_rope(config, where, family.partial_rope)
    local = config.get("rope_local_base_freq")
    return rope, Rope(float(local)) if local else None


def _routing(config: Mapping[str, Any], experts: Experts | None, where: str) -> Routing:
    """Raises InputError for groups that megatron-core cannot choose as the model does."""
    if experts is None:
        return Routing()
    if experts.scores == "softmax":
        key = experts.normalized
        return Routing(key if isinstance(key, bool) else bool(config.get(key, False)))
    scale, groups = float(config["routed_scaling_factor"]), config["n_group"]
    chosen, count = config["topk_group"], config["num_experts_per_tok"]
    if groups == chosen:
        return Routing(scale=scale)
    if count != 2 * chosen:
        raise InputError(
            f"{where}: num_experts_per_tok {count} with topk_group {chosen} is not supported: the model ranks"
            f" groups by their two best experts, and megatron-core by their {count // chosen} best"
            " (num_experts_per_tok / topk_group)"
        )
    return Routing(scale=scale, groups=groups, chosen_groups=chosen)


def image_cost(
    facts: ModelFacts, layout: ParallelLayout, freeze: tuple[str, ...] = (), virtual_stages: int = 1
) -> float:
    """The cost of seeing what one image token stands for, in passes of a token through the layers of the stage that
    has most: matrices alone.

    Stages compute side by side, so an update takes as long as the slowest. Tensor- and context-parallel
    ranks share a pass through their layers; those of the first stage have all of the tower each.
    `freeze`: patterns over the names of what does not train.
    """
    if facts.vision is None:
        return 0.0
    most = max(len(one.layers(facts.num_layers, virtual_stages)) for one in layout.senders)
    used = facts.used_parameters(facts.num_layers - 1)
    layers = most * used / (layout.tensor * layout.context)
    tower = facts.vision.merged * facts.vision.depth * facts.vision.block_parameters
    return tower_passes(ModelSizes(facts), freeze) * tower / layers


def attention_cost(facts: ModelFacts) -> float:
    """The cost of attending to one token, in passes of a token through the last layer's matrices: query and key,
    then weight and value, are multiplied once each for every channel."""
    used = facts.used_parameters(facts.num_layers - 1)
    return 2 * facts.num_heads * facts.head_dim / used
