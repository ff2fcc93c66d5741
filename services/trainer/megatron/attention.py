"""Attention over packed groups, for any torch device.

Axes: N packed tokens, S sequences of a grid, T its longest length, H heads,
K key/value heads, R = H / K, D channels of a head, P prompt tokens of all
groups, C completions of the largest group.

Tokens are packed everywhere else, and a group's prompt stands there once. Only
here are they laid out as whole sequences, prompt and completion, in grids
[S, T] of like length: a prompt's rows are copied for each of its completions.
That costs little, as nearly all the time goes into the linear layers. Short
rows are computed in two plain matrix products, because the CPU's fused kernel
is slow on them; long rows go to `scaled_dot_product_attention`, which never
holds a T x T matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.module import MegatronModule

from services.trainer.packing import GroupLengths

EXPLICIT_MAX_LENGTH = 256
GRID_MIN_FILL = 0.7
"""A sequence shorter than this share of its grid's longest opens the next grid."""


@dataclass(frozen=True, slots=True)
class Grid:
    num_sequences: int
    length: int


@dataclass(frozen=True, slots=True)
class Places:
    """Where packed tokens stand among the rows of all grids, int64."""

    tokens: torch.Tensor
    """For each row its packed token; a padding row repeats token 0."""
    owners_N: torch.Tensor
    """For each packed token the row whose output it takes."""
    unread: torch.Tensor
    """The rows whose output nobody takes: padding, and all copies of a prompt but the first."""
    prompts_P: torch.Tensor
    """The packed tokens that are copied."""
    copies_PC: torch.Tensor
    """For each of them its rows; what a smaller group lacks repeats its first."""
    is_copy_PC: torch.Tensor
    """float32, 0 for such a repetition."""


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
    groups: Sequence[GroupLengths],
    inverse_frequencies: torch.Tensor,
    dtype: torch.dtype,
    attention_factor: float = 1.0,
) -> PackedLayout:
    """Lay the sequences of these groups out in grids. `attention_factor`: `rope.Rope` says of what."""
    sequences, positions = _sequences(groups)
    grids, firsts = _grids([len(tokens) for tokens in sequences])
    angles = positions[:, None].float().to(inverse_frequencies.device) * inverse_frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return PackedLayout(
        grids=grids,
        places=_places(groups, sequences, grids, firsts, inverse_frequencies.device),
        cos_ND=(angles.cos() * attention_factor).to(dtype),
        sin_ND=(angles.sin() * attention_factor).to(dtype),
    )


def _sequences(groups: Sequence[GroupLengths]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The packed tokens of each whole sequence, and the position of each packed token."""
    sequences: list[torch.Tensor] = []
    positions: list[torch.Tensor] = []
    start = 0
    for group in groups:
        prompt = torch.arange(start, start + group.prompt)
        positions.append(torch.arange(group.prompt))
        start += group.prompt
        for length in group.completions:
            sequences.append(torch.cat([prompt, torch.arange(start, start + length)]))
            positions.append(torch.arange(group.prompt, group.prompt + length))
            start += length
    return sequences, torch.cat(positions)


def _grids(lengths: Sequence[int]) -> tuple[tuple[Grid, ...], list[int]]:
    """The grids, and the first row of each sequence."""
    grids: list[Grid] = []
    firsts = [0] * len(lengths)
    num_rows = 0
    for members in _by_length(lengths):
        grid = Grid(len(members), lengths[members[0]])
        for place, member in enumerate(members):
            firsts[member] = num_rows + place * grid.length
        grids.append(grid)
        num_rows += grid.num_sequences * grid.length
    return tuple(grids), firsts


def _places(
    groups: Sequence[GroupLengths],
    sequences: Sequence[torch.Tensor],
    grids: Sequence[Grid],
    firsts: Sequence[int],
    device: torch.device,
) -> Places:
    num_rows = sum(grid.num_sequences * grid.length for grid in grids)
    tokens = torch.zeros(num_rows, dtype=torch.int64)
    owners = torch.empty(sum(group.num_tokens for group in groups), dtype=torch.int64)
    # Backwards, so that a prompt belongs to its group's first sequence.
    for sequence, first in reversed(list(zip(sequences, firsts, strict=True))):
        rows = torch.arange(first, first + len(sequence))
        tokens[rows] = sequence
        owners[sequence] = rows
    unread = torch.ones(num_rows, dtype=torch.bool)
    unread[owners] = False
    prompts, copies, is_copy = _prompt_copies(groups, sequences, firsts)
    parts = (tokens, owners, unread.nonzero()[:, 0], prompts, copies, is_copy)
    return Places(*(part.to(device) for part in parts))


def _prompt_copies(
    groups: Sequence[GroupLengths], sequences: Sequence[torch.Tensor], firsts: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    most = max(len(group.completions) for group in groups)
    prompts, copies, is_copy = [], [], []
    place = 0
    for group in groups:
        size = len(group.completions)
        starts = torch.tensor(firsts[place : place + size])
        starts = torch.cat([starts, starts[:1].expand(most - size)])
        prompts.append(sequences[place][: group.prompt])
        copies.append(torch.arange(group.prompt)[:, None] + starts)
        is_copy.append((torch.arange(most) < size).float().expand(group.prompt, most))
        place += size
    return torch.cat(prompts), torch.cat(copies), torch.cat(is_copy)


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
        rows, places = gradients[0], ctx.places
        packed = rows.index_select(0, places.owners_N)
        copies = rows.index_select(0, places.copies_PC.flatten())
        copies = copies.view(*places.copies_PC.shape, -1).float()
        summed = torch.einsum("pcx,pc->px", copies, places.is_copy_PC)
        summed = summed.to(packed.dtype).view(-1, *packed.shape[1:])
        return packed.index_copy_(0, places.prompts_P, summed), None


class _ToPacked(torch.autograd.Function):
    """Rows of the grids -> packed tokens; rows that nobody reads have no gradient."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, places: Places) -> torch.Tensor:
        ctx.places = places
        return rows.index_select(0, places.owners_N)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        rows = gradients[0].index_select(0, ctx.places.tokens)
        return rows.index_fill_(0, ctx.places.unread, 0.0), None


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
