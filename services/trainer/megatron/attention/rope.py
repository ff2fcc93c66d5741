"""Rotary position embedding and its scalings: what config.json says, and the frequencies of it.

Sources: RoFormer (arXiv 2104.09864); linear: position interpolation (arXiv 2306.15595); yarn: arXiv
2309.00071; llama3: the reference code of Llama 3.1; keys as transformers reads them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trimaran.errors import InputError

if TYPE_CHECKING:
    import torch

MULTIMODAL = "mrope"
"""How folders before transformers 4.49 call the default kind with sections."""
KINDS = ("default", "linear", "dynamic", "yarn", "llama3")


@dataclass(frozen=True, slots=True)
class Rope:
    """Example: Rope(theta=10000.0, kind="linear", factor=4.0)"""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original_positions: float = 0.0
    """Positions of the training before it was scaled; yarn and llama3."""
    low: float = 1.0
    """llama3: low_freq_factor; yarn: beta_slow."""
    high: float = 4.0
    """llama3: high_freq_factor; yarn: beta_fast."""
    attention_factor: float = 1.0
    """yarn: cosines and sines are multiplied by it."""
    truncate: bool = True
    """yarn: bounds are whole channels."""
    sections: tuple[int, ...] = ()
    """Pairs of channels for time, height and width of images; empty where a token has one position."""
    interleaved: bool = False
    """The pairs of the three axes take turns."""
    scores_mscale: float = 0.0
    """yarn: mscale_all_dim, by which latent attention scales its scores."""
    share: float = 1.0
    """Of a head's channels, the first ones, that turn."""


def parse_rope(config: Mapping[str, Any], where: str, may_be_partial: bool = False) -> Rope:
    """transformers 5 writes `rope_parameters`; older folders `rope_theta` and `rope_scaling`. `may_be_partial`: models
    of the family may turn a share of the channels alone.

    Raises InputError, which begins with `where`, for a kind that we do not have.
    """
    share = _share(config)
    if share != 1.0 and not may_be_partial:
        raise InputError(f"{where}: partial_rotary_factor {share} is not supported; it must be 1.0")
    return replace(_parse_kind(config, where), share=share)


def _share(config: Mapping[str, Any]) -> float:
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return float(given.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0)


def _parse_kind(config: Mapping[str, Any], where: str) -> Rope:
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    base = given.get("rope_theta") or config.get("rope_theta") or 10000.0
    try:
        theta = float(base)
    except (TypeError, ValueError):
        raise InputError(f"{where}: rope_theta is no number: {base!r}") from None
    kind = given.get("rope_type") or given.get("type") or "default"
    sections = tuple(given.get("mrope_section") or ())
    if kind == MULTIMODAL or (sections and kind == "default"):
        return Rope(theta, sections=sections, interleaved=bool(given.get("mrope_interleaved")))
    if kind not in KINDS:
        raise InputError(f"{where}: rope type {kind!r} is not supported; use {', '.join(KINDS)}")
    positions = float(config["max_position_embeddings"])
    original = float(given.get("original_max_position_embeddings") or positions)
    try:
        if kind == "linear":
            return Rope(theta, kind, float(given["factor"]))
        if kind == "llama3":
            low, high = float(given["low_freq_factor"]), float(given["high_freq_factor"])
            return Rope(theta, kind, float(given["factor"]), original, low, high)
        if kind == "yarn":
            return _parse_yarn(theta, given, original, positions)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where}: rope type {kind!r} without a number ({error})") from None
    # dynamic: nothing is scaled up to max_position_embeddings, and nothing longer is trained.
    return Rope(theta)


def _parse_yarn(theta: float, given: Mapping[str, Any], original: float, positions: float) -> Rope:
    factor = float(given.get("factor") or positions / original)
    attention = given.get("attention_factor")
    over, under = given.get("mscale"), given.get("mscale_all_dim")
    if attention is None:
        attention = _mscale(factor, 1.0)
        if over and under:
            attention = _mscale(factor, over) / _mscale(factor, under)
    low, high = float(given.get("beta_slow") or 1.0), float(given.get("beta_fast") or 32.0)
    truncate = bool(given.get("truncate", True))
    sizes = theta, "yarn", factor, original, low, high, float(attention), truncate
    return Rope(*sizes, scores_mscale=float(under or 0.0))


def _mscale(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def inverse_frequencies(rope: Rope, channels: int) -> torch.Tensor:
    """Rotations per token and pair of channels, float32 [channels / 2]. `channels`: of a head, that may turn."""
    import torch  # not above: `trimaran plan` reads a rope without it

    head_dim = int(channels * rope.share)

    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _interpolate(frequencies, _llama3_share(rope, frequencies), rope.factor)
    if rope.kind == "yarn":
        return _interpolate(frequencies, _yarn_share(rope, head_dim), rope.factor)
    return frequencies


def _interpolate(frequencies: torch.Tensor, kept: torch.Tensor, factor: float) -> torch.Tensor:
    """`kept`: the share of each frequency that stays; the rest is divided by `factor`."""
    return (1 - kept) * frequencies / factor + kept * frequencies


def _llama3_share(rope: Rope, frequencies: torch.Tensor) -> torch.Tensor:
    """Long wavelengths are divided, those between the two bounds interpolated."""
    turns = rope.original_positions * frequencies / (2 * math.pi)
    return ((turns - rope.low) / (rope.high - rope.low)).clamp(0.0, 1.0)


def _yarn_share(rope: Rope, head_dim: int) -> torch.Tensor:
    """The same between the channels that turn `high` and `low` times over the original positions."""
    import torch

    def channel(turns: float) -> float:
        length = math.log(rope.original_positions / (turns * 2 * math.pi))
        return head_dim * length / (2 * math.log(rope.theta))

    first, last = channel(rope.high), channel(rope.low)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    ramp = torch.arange(head_dim // 2, dtype=torch.float32) - first
    return 1 - (ramp / max(last - first, 0.001)).clamp(0.0, 1.0)
