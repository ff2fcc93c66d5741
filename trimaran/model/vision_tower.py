"""The vision tower of a vision-language model: its sizes, and names and shapes of all its tensors.

A tower turns an image into features that stand in the prompt like embeddings of tokens:

    image ─▶ patches ─▶ blocks of attention and MLP ─▶ merger: a square of patches is one token

Qwen3-VL also merges what some inner blocks give (*deepstack*, arXiv 2406.04334). The language model adds
these features to what its first layers give, at the places of the image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VisionFacts:
    """The facts of `vision_config`. Example: vision_facts(config["vision_config"], image_token_id=151655).depth"""

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    channels: int
    """The channels of a pixel."""
    patch_size: int
    """Pixels along a side."""
    temporal_patch_size: int
    """Frames of a patch; a still image is repeated."""
    merge_size: int
    """Patches along the side of a square that is one token."""
    image_token_id: int
    """Stands in the prompt for each merged square."""
    num_positions: int = 0
    """Entries of the learnt table of positions; 0 where rotary ones are all."""
    num_deepstack: int = 0
    """Layers of the language model, from the first on, that get features of inner blocks."""

    @property
    def merged(self) -> int:
        """Patches of a token."""
        return self.merge_size**2

    @property
    def patch_numbers(self) -> int:
        """Numbers of one patch, as the processor gives it."""
        return self.channels * self.temporal_patch_size * self.patch_size**2

    @property
    def block_parameters(self) -> int:
        """Parameters of the matrices of one block."""
        matrices = 3 if self.is_gated else 2
        return self.hidden_size * (4 * self.hidden_size + matrices * self.intermediate_size)

    @property
    def is_gated(self) -> bool:
        """Qwen2.5-VL: RMS norms and a gated MLP. Else Qwen3-VL: layer norms, an MLP of two matrices, and
        a learnt table of positions."""
        return not self.num_positions


def vision_facts(config: Mapping[str, Any], image_token_id: int) -> VisionFacts:
    """Raises KeyError for a size that `vision_config` lacks."""
    return VisionFacts(
        depth=int(config["depth"]),
        hidden_size=int(config["hidden_size"]),
        intermediate_size=int(config["intermediate_size"]),
        num_heads=int(config["num_heads"]),
        channels=int(config.get("in_channels") or config.get("in_chans") or 3),
        patch_size=int(config["patch_size"]),
        temporal_patch_size=int(config["temporal_patch_size"]),
        merge_size=int(config["spatial_merge_size"]),
        image_token_id=image_token_id,
        num_positions=int(config.get("num_position_embeddings") or 0),
        num_deepstack=len(config.get("deepstack_visual_indexes") or ()),
    )


def tower_tensors(facts: VisionFacts, out: int) -> Mapping[str, Shape]:
    """Shapes by the names inside the tower. `out`: channels of the language model."""
    return dict(_tensors(facts, out))


def num_tower_parameters(facts: VisionFacts, out: int) -> int:
    return sum(map(prod, tower_tensors(facts, out).values()))


def _tensors(facts: VisionFacts, out: int) -> Iterator[tuple[str, Shape]]:
    hidden, merged = facts.hidden_size, facts.hidden_size * facts.merged
    patch = (facts.channels, facts.temporal_patch_size, facts.patch_size, facts.patch_size)
    yield "patch_embed.proj.weight", (hidden, *patch)
    if not facts.is_gated:
        yield "patch_embed.proj.bias", (hidden,)
        yield "pos_embed.weight", (facts.num_positions, hidden)
    for block in range(facts.depth):
        yield from _block(f"blocks.{block}.", facts)
    if facts.is_gated:
        yield "merger.ln_q.weight", (hidden,)
        yield from _linear("merger.mlp.0", merged, merged)
        yield from _linear("merger.mlp.2", merged, out)
        return
    yield from _merger("merger.", hidden, merged, out)
    for layer in range(facts.num_deepstack):
        yield from _merger(f"deepstack_merger_list.{layer}.", merged, merged, out)


def _block(prefix: str, facts: VisionFacts) -> Iterator[tuple[str, Shape]]:
    hidden, inner = facts.hidden_size, facts.intermediate_size
    for norm in ("norm1", "norm2"):
        yield f"{prefix}{norm}.weight", (hidden,)
        if not facts.is_gated:
            yield f"{prefix}{norm}.bias", (hidden,)
    yield from _linear(f"{prefix}attn.qkv", hidden, 3 * hidden)
    yield from _linear(f"{prefix}attn.proj", hidden, hidden)
    first, last = ("gate_proj", "up_proj"), "down_proj"
    if not facts.is_gated:
        first, last = ("linear_fc1",), "linear_fc2"
    for name in first:
        yield from _linear(f"{prefix}mlp.{name}", hidden, inner)
    yield from _linear(f"{prefix}mlp.{last}", inner, hidden)


def _merger(prefix: str, normed: int, merged: int, out: int) -> Iterator[tuple[str, Shape]]:
    """`normed`: channels that its norm sees, before or after a square is put together."""
    yield f"{prefix}norm.weight", (normed,)
    yield f"{prefix}norm.bias", (normed,)
    yield from _linear(f"{prefix}linear_fc1", merged, merged)
    yield from _linear(f"{prefix}linear_fc2", merged, out)


def _linear(name: str, inputs: int, outputs: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (outputs, inputs)
    yield f"{name}.bias", (outputs,)
