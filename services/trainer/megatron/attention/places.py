"""Tokens of several rows, padded to batches and folded for matrix products; and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, slots=True)
class Places:
    """Where tokens stand in padded batches, once for each key/value head.

    Axes: B rows of a batch, L its longest length, K key/value heads,
    H heads, R = H / K. Indices are int64 and count heads, too: of 3 heads, token 2 has 6, 7 and 8.
    """

    shapes: tuple[tuple[int, int], ...]
    """B * K and L of each batch."""
    num_heads: int
    """K"""
    sources: torch.Tensor
    """Flat over all batches' [B, K, L], the token's; padding repeats token 0."""
    padding: torch.Tensor
    """The places that are padding."""
    tokens: torch.Tensor
    """That have a place, in order."""
    owners: torch.Tensor
    """Their places, flat over [tokens, K]."""

    def fold(self, x: torch.Tensor, padding: float | None = None) -> list[torch.Tensor]:
        """[tokens, H, ...] -> for each batch [B * K, L * R, ...], with this value as padding."""
        heads = x.reshape(len(x) * self.num_heads, -1, *x.shape[2:])
        places = heads.index_select(0, self.sources)
        if padding is not None:
            places.index_fill_(0, self.padding, padding)
        parts = places.split([first * second for first, second in self.shapes])
        shaped = zip(parts, self.shapes, strict=True)
        return [part.unflatten(0, shape).flatten(1, 2) for part, shape in shaped]

    def unfold(self, batches: Sequence[torch.Tensor]) -> torch.Tensor:
        """For each batch [B * K, L * R, ...] -> [tokens, H, ...]."""
        parts = [
            batch.unflatten(1, (length, -1)).flatten(0, 1)
            for batch, (_, length) in zip(batches, self.shapes, strict=True)
        ]
        places = torch.cat(parts) if len(parts) > 1 else parts[0]
        heads = places.index_select(0, self.owners)
        return heads.view(len(self.tokens), -1, *places.shape[2:])

    def to(self, device: torch.device) -> Places:
        names = ("sources", "padding", "tokens", "owners")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def place(batches: Sequence[Sequence[torch.Tensor]], num_heads: int, multiple: int = 1) -> Places:
    """`batches`: of each, the tokens of its rows, int64. No token may stand in two rows. `multiple`: as in `is_token`."""
    shapes: list[tuple[int, int]] = []
    sources, is_real = [], []
    for rows in batches:
        real = is_token(rows, multiple)
        padded = torch.zeros(real.shape, dtype=torch.int64)
        padded[real] = torch.cat(list(rows))
        heads = padded[:, None] * num_heads + torch.arange(num_heads)[:, None]
        sources.append(heads.flatten())
        is_real.append(real[:, None].expand_as(heads).flatten())
        shapes.append((len(rows) * num_heads, real.shape[1]))
    all_sources, all_real = torch.cat(sources), torch.cat(is_real)
    places = all_real.nonzero()[:, 0]
    owners = places[all_sources[places].argsort()]
    tokens = all_sources[owners[::num_heads]] // num_heads
    padding = (~all_real).nonzero()[:, 0]
    return Places(tuple(shapes), num_heads, all_sources, padding, tokens, owners)


def is_token(rows: Sequence[torch.Tensor], multiple: int = 1) -> torch.Tensor:
    """bool [rows, length]: what is no padding. `length`: the longest's, up to a multiple."""
    lengths = torch.tensor([len(row) for row in rows])
    length = -(-int(lengths.max()) // multiple) * multiple
    return torch.arange(length) < lengths[:, None]
