"""Causal attention within whole sequences, laid out in grids of like length.

Axes: U tokens, S sequences of a grid, T its longest length, H heads,
K key/value heads, R = H / K, D channels of a head, P tokens of prompts that
stand in several sequences, C sequences of the largest group.

A sequence is a prompt alone, where completions attend to it in place; or a
prompt and a completion, where that costs less. In the second case a prompt's
rows are copied for each of its completions. Short rows are computed in two
plain matrix products, because the CPU's fused kernel is slow on them; long rows
go to `scaled_dot_product_attention`, which never holds a T x T matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from services.trainer.megatron.attention.segments import SequenceGroup
from trimaran.model.memory.layer import EXPLICIT_LENGTH

GRID_MIN_FILL = 0.7
"""A sequence shorter than this share of its grid's longest opens the next grid."""


@dataclass(frozen=True, slots=True)
class Grid:
    num_sequences: int
    length: int


@dataclass(frozen=True, slots=True)
class Sequences:
    """Grids, and where tokens stand among their rows. Indices are int64."""

    grids: tuple[Grid, ...]
    tokens: torch.Tensor
    """For each row its token; a padding row repeats token 0."""
    owners_U: torch.Tensor
    """For each token the row whose output it takes."""
    unread: torch.Tensor
    """The rows whose output is not used: padding, and all copies of a prompt but the first."""
    prompts_P: torch.Tensor
    """The tokens that are copied."""
    copies_PC: torch.Tensor
    """For each of them its rows; what a smaller group lacks repeats its first."""
    is_copy_PC: torch.Tensor
    """float32, 0 for such a repetition."""

    def to_rows(self, x_U: torch.Tensor) -> list[torch.Tensor]:
        """[U, ...] -> for each grid [S, T, ...]."""
        rows = _ToRows.apply(x_U, self)
        parts = rows.split([grid.num_sequences * grid.length for grid in self.grids])
        return [
            part.unflatten(0, (grid.num_sequences, grid.length))
            for part, grid in zip(parts, self.grids, strict=True)
        ]

    def to_tokens(self, grids: Sequence[torch.Tensor]) -> torch.Tensor:
        """For each grid [S, T, ...] -> [U, ...]."""
        rows = [grid.flatten(0, 1) for grid in grids]
        joined = torch.cat(rows) if len(rows) > 1 else rows[0]
        return _ToTokens.apply(joined, self)  # type: ignore[no-any-return]


def lay_out(groups: Sequence[SequenceGroup], device: torch.device) -> Sequences:
    sequences = [sequence for group in groups for sequence in group.sequences]
    grids, firsts = _grids([len(sequence) for sequence in sequences])
    num_rows = sum(grid.num_sequences * grid.length for grid in grids)
    tokens = torch.zeros(num_rows, dtype=torch.int64)
    num_tokens = sum(len(group.prompt) + sum(map(len, group.completions)) for group in groups)
    owners = torch.empty(num_tokens, dtype=torch.int64)
    # Backwards, so that a prompt belongs to its group's first sequence.
    for sequence, first in reversed(list(zip(sequences, firsts, strict=True))):
        rows = torch.arange(first, first + len(sequence))
        tokens[rows] = sequence
        owners[sequence] = rows
    unread = torch.ones(num_rows, dtype=torch.bool)
    unread[owners] = False
    indices = (tokens, owners, unread.nonzero()[:, 0])
    parts = (*indices, *_prompt_copies(groups, firsts))
    return Sequences(grids, *(part.to(device) for part in parts))


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


def _by_length(lengths: Sequence[int]) -> list[list[int]]:
    order = sorted(range(len(lengths)), key=lambda place: (-lengths[place], place))
    grids: list[list[int]] = []
    for place in order:
        if not grids or lengths[place] < GRID_MIN_FILL * lengths[grids[-1][0]]:
            grids.append([])
        grids[-1].append(place)
    return grids


def _prompt_copies(
    groups: Sequence[SequenceGroup], firsts: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    most = max(len(group.completions) for group in groups)
    prompts = [torch.empty(0, dtype=torch.int64)]
    copies = [torch.empty(0, most, dtype=torch.int64)]
    is_copy = [torch.empty(0, most)]
    place = 0
    for group in groups:
        size = len(group.sequences)
        starts = torch.tensor(firsts[place : place + size])
        place += size
        if size == 1:
            continue
        starts = torch.cat([starts, starts[:1].expand(most - size)])
        prompts.append(group.prompt)
        copies.append(torch.arange(len(group.prompt))[:, None] + starts)
        is_copy.append((torch.arange(most) < size).float().expand(len(group.prompt), most))
    return torch.cat(prompts), torch.cat(copies), torch.cat(is_copy)


class _ToRows(torch.autograd.Function):
    """Tokens -> rows of the grids. A prompt's gradient is the sum over its copies."""

    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, layout: Sequences) -> torch.Tensor:
        ctx.layout = layout
        return tokens.index_select(0, layout.tokens)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        rows, layout = gradients[0], ctx.layout
        tokens = rows.index_select(0, layout.owners_U)
        if len(layout.prompts_P):
            copies = rows.index_select(0, layout.copies_PC.flatten())
            copies = copies.view(*layout.copies_PC.shape, -1).float()
            summed = torch.einsum("pcx,pc->px", copies, layout.is_copy_PC)
            summed = summed.to(tokens.dtype).view(-1, *tokens.shape[1:])
            tokens.index_copy_(0, layout.prompts_P, summed)
        return tokens, None


class _ToTokens(torch.autograd.Function):
    """Rows of the grids -> tokens; rows that are not read have no gradient."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, layout: Sequences) -> torch.Tensor:
        ctx.layout = layout
        return rows.index_select(0, layout.owners_U)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        rows = gradients[0].index_select(0, ctx.layout.tokens)
        return rows.index_fill_(0, ctx.layout.unread, 0.0), None


def attend_within(
    query_STHD: torch.Tensor, key_STKD: torch.Tensor, value_STKD: torch.Tensor, window: int = 0
) -> torch.Tensor:
    """Causal attention of each sequence of a grid, over the last `window` tokens where it is not 0: [S, T, H, D]."""
    short = query_STHD.shape[1] <= EXPLICIT_LENGTH
    attention = explicit_attention if short else fused_attention
    return attention(query_STHD, key_STKD, value_STKD, window)


def _hidden(length: int, window: int, device: torch.device) -> torch.Tensor:
    """bool [T, T]: which keys a query does not see."""
    pairs = torch.ones(length, length, dtype=torch.bool, device=device)
    return pairs.triu(1) | pairs.tril(-window) if window else pairs.triu(1)


def explicit_attention(
    query_STHD: torch.Tensor, key_STKD: torch.Tensor, value_STKD: torch.Tensor, window: int = 0
) -> torch.Tensor:
    """Causal attention; the heads that share a key are folded into the rows of one product."""
    S, T, H, D = query_STHD.shape
    K = key_STKD.shape[2]
    R = H // K
    rows = query_STHD.view(S, T, K, R, D).permute(0, 2, 3, 1, 4).reshape(S * K, R * T, D)
    keys = key_STKD.permute(0, 2, 3, 1).reshape(S * K, D, T)
    values = value_STKD.permute(0, 2, 1, 3).reshape(S * K, T, D)
    hidden = _hidden(T, window, rows.device).repeat(R, 1)
    scores = torch.bmm(rows * D**-0.5, keys).float()
    weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1).to(rows.dtype)
    out = torch.bmm(weights, values)
    return out.view(S, K, R, T, D).permute(0, 3, 1, 2, 4).reshape(S, T, H, D)


def fused_attention(
    query_STHD: torch.Tensor, key_STKD: torch.Tensor, value_STKD: torch.Tensor, window: int = 0
) -> torch.Tensor:
    query, key, value = (x.transpose(1, 2) for x in (query_STHD, key_STKD, value_STKD))
    grouped = query.shape[1] != key.shape[1]
    seen = ~_hidden(query.shape[2], window, query.device) if window else None
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=seen, is_causal=not window, enable_gqa=grouped
    )
    return out.transpose(1, 2)
