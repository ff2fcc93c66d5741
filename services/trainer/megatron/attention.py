"""Attention over packed sequences, for any torch device.

Axes: N packed tokens, S sequences of a grid, T its longest length, H heads,
K key/value heads, R = H / K, D channels of a head.

Tokens stay packed everywhere else; inside the attention they are laid out in
grids [S, T] of sequences of like length. Short rows are computed in two plain
matrix products, because the CPU's fused kernel is slow on them; long rows go
to `scaled_dot_product_attention`, which never holds a T x T matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.module import MegatronModule

EXPLICIT_MAX_LENGTH = 256
GRID_MIN_FILL = 0.7
"""A sequence shorter than this share of its grid's longest opens the next grid."""


@dataclass(frozen=True, slots=True)
class Grid:
    num_sequences: int
    length: int


@dataclass(frozen=True, slots=True)
class Places:
    """The one-to-one map between packed tokens and rows of the grids, int64."""

    rows_N: torch.Tensor
    """For each packed token its row among the rows of all grids."""
    tokens: torch.Tensor
    """For each row its packed token; a padding row repeats token 0."""
    padding: torch.Tensor
    """The rows that hold no token."""


@dataclass
class PackedLayout(PackedSeqParams):
    """What the core attention needs of a micro-batch; travels through megatron-core untouched.

    The format is not "thd", so that megatron-core's own packed paths stay out of it.
    """

    qkv_format: str = "sbhd"
    grids: tuple[Grid, ...] = ()
    places: Places | None = None
    cos_ND: torch.Tensor | None = None
    sin_ND: torch.Tensor | None = None


def build_layout(
    lengths: Sequence[int], inverse_frequencies: torch.Tensor, dtype: torch.dtype
) -> PackedLayout:
    """Lay sequences of these lengths (tokens, packed in this order) out in grids."""
    device = inverse_frequencies.device
    starts = list(accumulate(lengths, initial=0))
    rows = torch.empty(starts[-1], dtype=torch.int64)
    grids: list[Grid] = []
    num_rows = 0
    for members in _by_length(lengths):
        longest = lengths[members[0]]
        for row, member in enumerate(members):
            first = num_rows + row * longest
            rows[starts[member] : starts[member + 1]] = torch.arange(first, first + lengths[member])
        grids.append(Grid(len(members), longest))
        num_rows += len(members) * longest
    tokens = torch.full((num_rows,), -1, dtype=torch.int64)
    tokens[rows] = torch.arange(starts[-1])
    places = Places(
        rows.to(device), tokens.clamp(0).to(device), (tokens < 0).nonzero()[:, 0].to(device)
    )
    positions = torch.cat([torch.arange(length) for length in lengths]).to(device)
    angles = positions[:, None].float() * inverse_frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return PackedLayout(
        grids=tuple(grids),
        places=places,
        cos_ND=angles.cos().to(dtype),
        sin_ND=angles.sin().to(dtype),
    )


def _by_length(lengths: Sequence[int]) -> list[list[int]]:
    order = sorted(range(len(lengths)), key=lambda place: (-lengths[place], place))
    grids: list[list[int]] = []
    for place in order:
        if not grids or lengths[place] < GRID_MIN_FILL * lengths[grids[-1][0]]:
            grids.append([])
        grids[-1].append(place)
    return grids


class _ToRows(torch.autograd.Function):
    """Packed tokens -> rows of the grids. Both ways are gathers: scatters are slow on the CPU."""

    @staticmethod
    def forward(ctx: Any, packed: torch.Tensor, places: Places) -> torch.Tensor:
        ctx.places = places
        return packed.index_select(0, places.tokens)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0].index_select(0, ctx.places.rows_N), None


class _ToPacked(torch.autograd.Function):
    """Rows of the grids -> packed tokens; what stands in padding rows has no gradient."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, places: Places) -> torch.Tensor:
        ctx.places = places
        return rows.index_select(0, places.rows_N)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        rows = gradients[0].index_select(0, ctx.places.tokens)
        return rows.index_fill_(0, ctx.places.padding, 0.0), None


def rotate(x_NHD: torch.Tensor, cos_ND: torch.Tensor, sin_ND: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding with the two halves of a head as pairs (as Hugging Face has it)."""
    first, second = x_NHD.chunk(2, dim=-1)
    return x_NHD * cos_ND[:, None] + torch.cat((-second, first), dim=-1) * sin_ND[:, None]


def explicit_attention(
    query_STHD: torch.Tensor, key_STKD: torch.Tensor, value_STKD: torch.Tensor
) -> torch.Tensor:
    """Causal attention; the heads that share a key are folded into the rows of one product."""
    S, T, H, D = query_STHD.shape
    K = key_STKD.shape[2]
    R = H // K
    rows = query_STHD.view(S, T, K, R, D).permute(0, 2, 3, 1, 4).reshape(S * K, R * T, D)
    keys = key_STKD.permute(0, 2, 3, 1).reshape(S * K, D, T)
    values = value_STKD.permute(0, 2, 1, 3).reshape(S * K, T, D)
    hidden = torch.ones(T, T, dtype=torch.bool, device=rows.device).triu(1).repeat(R, 1)
    scores = torch.bmm(rows * D**-0.5, keys).float()
    weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1).to(rows.dtype)
    out = torch.bmm(weights, values)
    return out.view(S, K, R, T, D).permute(0, 3, 1, 2, 4).reshape(S, T, H, D)


def fused_attention(
    query_STHD: torch.Tensor, key_STKD: torch.Tensor, value_STKD: torch.Tensor
) -> torch.Tensor:
    query, key, value = (x.transpose(1, 2) for x in (query_STHD, key_STKD, value_STKD))
    grouped = query.shape[1] != key.shape[1]
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
    return out.transpose(1, 2)


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
        assert layout.places and layout.cos_ND is not None and layout.sin_ND is not None
        query = rotate(query.squeeze(1), layout.cos_ND, layout.sin_ND)
        key = rotate(key.squeeze(1), layout.cos_ND, layout.sin_ND)
        sizes = [grid.num_sequences * grid.length for grid in layout.grids]
        parts = [
            _ToRows.apply(x, layout.places).split(sizes) for x in (query, key, value.squeeze(1))
        ]
        rows = [
            _attend(grid, *part)
            for grid, part in zip(layout.grids, zip(*parts, strict=True), strict=True)
        ]
        packed = _ToPacked.apply(torch.cat(rows) if len(rows) > 1 else rows[0], layout.places)
        return packed.flatten(1).unsqueeze(1)


def _attend(
    grid: Grid, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    shape = (grid.num_sequences, grid.length)
    attend = explicit_attention if grid.length <= EXPLICIT_MAX_LENGTH else fused_attention
    return attend(*(x.unflatten(0, shape) for x in (query, key, value))).flatten(0, 1)
