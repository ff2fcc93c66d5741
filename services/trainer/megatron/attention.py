"""Attention over packed groups, for any torch device.

A group's tokens stand packed: its prompt once, then its completions. A prompt
that several completions share serves them all where it stands
(`shared_prompts`). Where that would cost more than copies of it, the group is
laid out as whole sequences (`sequences`).

Axes: N packed tokens, A those of completions that share a prompt, H heads,
K key/value heads, D channels of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.module import MegatronModule

from services.trainer.megatron import sequences, shared_prompts
from services.trainer.megatron.packed_groups import PackedGroup, pack_groups, positions
from services.trainer.megatron.sequences import Sequences
from services.trainer.megatron.shared_prompts import SharedPrompts, shared_prompt_attention
from services.trainer.packing import GroupLengths

PAIR_COST_CPU, PAIR_COST = 1.2, 5.0


@dataclass
class PackedLayout(PackedSeqParams):
    """What the core attention needs of a micro-batch; travels through megatron-core untouched.

    The format is not "thd", so that megatron-core's own packed paths stay out of it.
    """

    qkv_format: str = "sbhd"
    sequences: Sequences | None = None
    shared: SharedPrompts | None = None
    cos_ND: torch.Tensor | None = None
    sin_ND: torch.Tensor | None = None


def build_layout(
    groups: Sequence[GroupLengths],
    inverse_frequencies: torch.Tensor,
    dtype: torch.dtype,
    num_key_heads: int,
) -> PackedLayout:
    """Decide for each group how its prompt is attended to, and say where its tokens go.

    `num_key_heads`: key/value heads of this rank.
    """
    device = inverse_frequencies.device
    angles = positions(groups)[:, None].float().to(device) * inverse_frequencies
    angles = torch.cat([angles, angles], dim=-1)
    packed = pack_groups(groups)
    pair_cost = PAIR_COST_CPU if device.type == "cpu" else PAIR_COST
    shared = [group for group in packed if shares_prompt(group, pair_cost)]
    alone = [
        PackedGroup(group.prompt, ()) if shares_prompt(group, pair_cost) else group
        for group in packed
    ]
    return PackedLayout(
        sequences=sequences.lay_out(alone, device),
        shared=shared_prompts.lay_out(shared, num_key_heads, device) if shared else None,
        cos_ND=angles.cos().to(dtype),
        sin_ND=angles.sin().to(dtype),
    )


def shares_prompt(group: PackedGroup, pair_cost: float) -> bool:
    """Whether that costs less than whole sequences, by the pairs of a query and a key.

    `pair_cost`: of a pair in `shared_prompts`, in pairs of whole sequences.
    """
    prompt, completions = len(group.prompt), [len(one) for one in group.completions]
    whole = sum((prompt + one) ** 2 / 2 for one in completions)
    parts = sum(one * (prompt + one / 2) for one in completions)
    return prompt**2 / 2 + pair_cost * parts < whole


def rotate(x_NHD: torch.Tensor, cos_ND: torch.Tensor, sin_ND: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding with the two halves of a head as pairs (as Hugging Face has it)."""
    first, second = x_NHD.chunk(2, dim=-1)
    return x_NHD * cos_ND[:, None] + torch.cat((-second, first), dim=-1) * sin_ND[:, None]


class PackedAttention(MegatronModule):
    """The `core_attention` of our layer spec: rotary embedding and causal attention."""

    def __init__(self, config: Any, **_: Any) -> None:
        super().__init__(config=config)

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
        """[N, 1, H, D], [N, 1, K, D], [N, 1, K, D] -> [N, 1, H * D]."""
        layout = packed_seq_params
        assert layout.cos_ND is not None and layout.sin_ND is not None
        query = rotate(query.squeeze(1), layout.cos_ND, layout.sin_ND)
        key = rotate(key.squeeze(1), layout.cos_ND, layout.sin_ND)
        return attend(query, key, value.squeeze(1), layout).flatten(1).unsqueeze(1)


def attend(
    query_NHD: torch.Tensor, key_NKD: torch.Tensor, value_NKD: torch.Tensor, layout: PackedLayout
) -> torch.Tensor:
    """Causal attention of each completion over its prompt and itself: [N, H, D]."""
    assert layout.sequences
    packed = query_NHD, key_NKD, value_NKD
    grids = [
        sequences.attend_within(*rows)
        for rows in zip(*(layout.sequences.to_rows(x) for x in packed), strict=True)
    ]
    shared = layout.shared
    others = shared_prompt_attention(*packed, shared) if shared else None
    return layout.sequences.to_packed(grids, others, shared.tokens_A if shared else None)
