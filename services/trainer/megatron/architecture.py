"""What we need to know of a Hugging Face config.json to build the model in megatron-core."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.trainer.megatron.attention.rope import Rope, parse_rope
from services.trainer.megatron.families.family import Family
from services.trainer.megatron.known_keys import check_keys
from trimaran.choices import FAMILIES
from trimaran.config.parallel import ParallelLayout
from trimaran.errors import InputError
from trimaran.model.folder import ModelFacts, language_config, read_model_folder
from trimaran.model.memory.model import ModelSizes
from trimaran.model.memory.stages import tower_passes


@dataclass(frozen=True, slots=True)
class Architecture:
    """Example: read_architecture(Path("models/SmolLM2-135M-Instruct")).facts.num_layers == 30"""

    facts: ModelFacts
    family: Family
    keywords: Mapping[str, Any]
    """The family's, of megatron-core's TransformerConfig."""
    norm_epsilon: float
    rope: Rope


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
            f" {type(family).__name__}, and no services.trainer.megatron.families.family.Family;"
            " docs/extending.md has the recipe"
        )
    check_keys(config, family, f"model.path: {source}")
    if "rms_norm_eps" not in config:
        raise InputError(f"model.path: {source} lacks rms_norm_eps")
    rope = parse_rope(config, f"model.path: {source}")
    if facts.vision and sum(rope.sections) * 2 != facts.head_dim:
        raise InputError(
            f"model.path: {source}: mrope_section {list(rope.sections)} is not of heads with"
            f" {facts.head_dim} channels; it must have three numbers that add up to the half"
        )
    return Architecture(facts, family, family.keywords(config), config["rms_norm_eps"], rope)


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
    layers = most * facts.used_layer_parameters / (layout.tensor * layout.context)
    tower = facts.vision.merged * facts.vision.depth * facts.vision.block_parameters
    return tower_passes(ModelSizes(facts), freeze) * tower / layers


def attention_cost(facts: ModelFacts) -> float:
    """The cost of attending to one token, in passes of a token through a layer's matrices: query and key,
    then weight and value, are multiplied once each for every channel."""
    return 2 * facts.num_heads * facts.head_dim / facts.used_layer_parameters
