"""What we need to know of a Hugging Face config.json to build the model in megatron-core."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trimaran.choices import FAMILIES
from trimaran.errors import InputError
from trimaran.model_folder import Family, ModelFacts, read_model_folder


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding. Example: Rope(theta=10000.0, llama3=None)"""

    theta: float
    llama3: Mapping[str, float] | None
    """factor, low_freq_factor, high_freq_factor, original_max_position_embeddings; or no scaling."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Example: read_architecture(Path("models/SmolLM2-135M-Instruct")).facts.num_layers == 30"""

    facts: ModelFacts
    norm_epsilon: float
    qkv_bias: bool
    rope: Rope


def read_architecture(folder: Path) -> Architecture:
    """Raises InputError where we cannot train what the folder's config.json describes."""
    facts = read_model_folder(folder)
    source = folder / "config.json"
    config = json.loads(source.read_text(encoding="utf-8"))
    family: Family = FAMILIES.load(facts.family)
    variants = {
        "attention_bias": not family.qkv_bias and config.get("attention_bias"),
        "mlp_bias": config.get("mlp_bias"),
        "hidden_act": config.get("hidden_act", "silu") != "silu" and config["hidden_act"],
    }
    for key, value in variants.items():
        if value:
            raise InputError(f"model.path: {source}: {key}: {value!r} is not supported")
    if "rms_norm_eps" not in config:
        raise InputError(f"model.path: {source} lacks rms_norm_eps")
    return Architecture(
        facts=facts,
        norm_epsilon=config["rms_norm_eps"],
        qkv_bias=family.qkv_bias,
        rope=_parse_rope(source, config),
    )


def attention_cost(facts: ModelFacts) -> float:
    """Of attending to one token, in passes of a token through a layer's matrices: query and key,
    then weight and value, are multiplied once each for every channel."""
    return 2 * facts.num_heads * facts.head_dim / facts.layer_parameters


def _parse_rope(source: Path, config: Mapping[str, Any]) -> Rope:
    """transformers 5 writes `rope_parameters`; older folders `rope_theta` and `rope_scaling`."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(given.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = given.get("rope_type") or given.get("type") or "default"
    if kind == "default":
        return Rope(theta, None)
    if kind != "llama3":
        raise InputError(
            f"model.path: {source}: rope type {kind!r} is not supported; use default or llama3"
        )
    keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    return Rope(theta, {key: float(given[key]) for key in keys})


def inverse_frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """Rotations per token and pair of channels, float32 [head_dim / 2].

    Source: RoFormer (arXiv 2104.09864); llama3: long wavelengths are divided by
    `factor`, those between the two bounds interpolated (Llama 3.1 reference code).
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.llama3 is None:
        return frequencies
    factor, low, high, original = rope.llama3.values()
    wavelengths = 2 * math.pi / frequencies
    smooth = ((original / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - smooth) * frequencies / factor + smooth * frequencies
