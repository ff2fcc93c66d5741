"""Attention over packed groups, for any torch device.

Each group's prompt serves its completions where it stands (`shared_prompts`),
or the group is laid out as whole sequences (`sequences`), whichever costs less.

Axes: N packed tokens, H heads, K key/value heads, D channels of a head, V of its values: fewer than D in latent
attention, where the rest is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.utils import is_layer_window_attention

from services.trainer.megatron.attention import sequences, shared_prompts
from services.trainer.megatron.attention.context import ALONE, ContextSplit
from services.trainer.megatron.attention.rotary import rotate
from services.trainer.megatron.attention.segments import Segments, assign, positions
from services.trainer.megatron.attention.sequences import Sequences
from services.trainer.megatron.attention.shared_prompts import (
    SharedPrompts,
    shared_prompt_attention,
)
from services.trainer.megatron.vision.vision import Deepstack
from services.trainer.step.packing import GroupLengths
from trimaran.model.memory.layer import PAIR_COST, PAIR_COST_CPU


@dataclass
class PackedLayout(PackedSeqParams):
    """What the core attention needs of a micro-batch; travels through megatron-core untouched.

    The format is not "thd", so that megatron-core's own packed paths stay out of it.
    """

    qkv_format: str = "sbhd"
    segments: Segments | None = None
    sequences: Sequences | None = None
    shared: SharedPrompts | None = None
    cos_ND: torch.Tensor | None = None
    sin_ND: torch.Tensor | None = None
    context: ContextSplit = ALONE
    window: int = 0
    """The last tokens to which one attends, in layers with a window; 0 for all."""
    of_windows: tuple[torch.Tensor, torch.Tensor] | None = None
    """Cosines and sines of these layers, where they are others."""
    deepstack: Deepstack | None = None
    """Features of images, where some layers add features of them."""
    experts_nLK: torch.Tensor | None = None
    """int16, of this rank's tokens: for the routers to choose again (`replay.py`)."""


def build_layout(
    groups: Sequence[GroupLengths],
    inverse_frequencies: torch.Tensor,
    dtype: torch.dtype,
    num_key_heads: int,
    attention_factor: float = 1.0,
    context: ContextSplit = ALONE,
    positions_ND: torch.Tensor | None = None,
    window: int = 0,
    window_frequencies: torch.Tensor | None = None,
) -> PackedLayout:
    """Decide for each group how its prompt is attended to, and say where its tokens go.

    `num_key_heads`: key/value heads of this rank outside the attention. `attention_factor`: `rope.Rope` says of what.
    `positions_ND`: of each token for each pair of channels, [N, D / 2]; else each token has one in its sequence.
    `window`: as `ModelFacts` has it.
    """
    device = inverse_frequencies.device
    if positions_ND is None:
        positions_ND = positions(groups)[:, None]
    positions_ND = positions_ND.float().to(device)

    def turns(frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions_ND * frequencies
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()

    cos, sin = turns(inverse_frequencies)
    of_windows = None
    if window_frequencies is not None:
        local_cos, local_sin = turns(window_frequencies)
        of_windows = local_cos.to(dtype), local_sin.to(dtype)
    pair_cost = PAIR_COST_CPU if device.type == "cpu" else PAIR_COST
    if window >= max(group.prompt + max(group.completions, default=0) for group in groups):
        window = 0
    if window:  # of a shared prompt each token of a completion would see another part
        pair_cost = float("inf")
    segments, in_sequences, sharing = assign(groups, pair_cost)
    return PackedLayout(
        segments=segments,
        sequences=sequences.lay_out(in_sequences, device),
        shared=shared_prompts.lay_out(sharing, context.key_heads(num_key_heads), device)
        if sharing
        else None,
        cos_ND=(cos * attention_factor).to(dtype),
        sin_ND=(sin * attention_factor).to(dtype),
        context=context,
        window=window,
        of_windows=of_windows,
    )


class PackedAttention(MegatronModule):
    """The `core_attention` of our layer spec: rotary embedding and causal attention."""

    def __init__(
        self, config: Any, layer_number: int, softmax_scale: float | None = None, **_: Any
    ) -> None:
        """`softmax_scale`: by which scores are multiplied, where it is not 1 / root of the channels."""
        super().__init__(config=config)
        self._scale = softmax_scale
        sizes = config.window_size, config.window_attn_skip_freq
        self._has_window = is_layer_window_attention(*sizes, layer_number)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: None,
        *,
        packed_seq_params: PackedLayout,
        **_: Any,
    ) -> torch.Tensor:
        """[N, 1, H, D], [N, 1, K, D], [N, 1, K, V] -> [N, 1, H * V].

        With context parallelism N is this rank's share of the tokens.
        """
        layout = packed_seq_params
        assert layout.cos_ND is not None and layout.sin_ND is not None
        channels, missing = value.shape[-1], query.shape[-1] - value.shape[-1]
        value = F.pad(value, (0, missing)) if missing else value
        if self._scale:
            query = query * (self._scale * query.shape[-1] ** 0.5)
        query, key, value = layout.context.to_heads(*(x.squeeze(1) for x in (query, key, value)))
        turns, window = (layout.cos_ND, layout.sin_ND), 0
        if self._has_window:
            turns, window = layout.of_windows or turns, layout.window
        query, key = rotate(query, *turns), rotate(key, *turns)
        out = layout.context.to_tokens(attend(query, key, value, layout, window))
        return out[..., :channels].flatten(1).unsqueeze(1)


def attend(
    query_NHD: torch.Tensor,
    key_NKD: torch.Tensor,
    value_NKD: torch.Tensor,
    layout: PackedLayout,
    window: int = 0,
) -> torch.Tensor:
    """Causal attention of each completion over its prompt and itself, or over the last `window` tokens: [N, H, D]."""
    assert layout.segments and layout.sequences
    (query_U, query_A), (key_U, key_A), (value_U, value_A) = (
        layout.segments.split(x) for x in (query_NHD, key_NKD, value_NKD)
    )
    rows = zip(*(layout.sequences.to_rows(x) for x in (query_U, key_U, value_U)), strict=True)
    out_U = layout.sequences.to_tokens(
        [sequences.attend_within(*one, window=window) for one in rows]
    )
    if query_A is None or key_A is None or value_A is None or layout.shared is None:
        return out_U
    own, others = (key_A, value_A), (key_U, value_U)
    return layout.segments.join(out_U, shared_prompt_attention(query_A, own, others, layout.shared))
