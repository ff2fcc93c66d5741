"""Attention over some of a query's keys, with the log-sum-exp by which it is joined with the rest.

Plain torch operations, for any device. Scores exist in chunks only, and the
backward pass computes them again. The heads that share a key are folded into
the rows of one matrix product.

Axes: B batches, Q queries, T keys, H heads, K key/value heads, R = H / K,
D channels of a head, Z = B * K products, X = Q * R rows of one.

Source: FlashAttention (arXiv 2205.14135), section 3.1 and appendix B.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

CHUNK_SCORES = 1 << 20
"""Scores that exist at a time, unless a single query has more: few enough for the CPU's cache."""
CAUSAL_CHUNK_QUERIES = 128
"""More in one chunk would compute more of the scores that are hidden."""


@dataclass(frozen=True, slots=True)
class Mask:
    """Which keys a query may not attend to; by default none."""

    causal: bool = False
    """Key t is hidden from query q < t."""
    hidden_BT: torch.Tensor | None = None
    """bool: keys that are padding."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    products: slice
    rows: slice
    num_keys: int
    """Later ones are hidden from all of its rows."""


@dataclass(frozen=True, slots=True)
class _Folded:
    """Queries, scaled, and keys and values."""

    rows_ZXD: torch.Tensor
    keys_ZTD: torch.Tensor
    values_ZTD: torch.Tensor
    repeats: int
    """R"""
    mask: Mask

    def scores(self, chunk: _Chunk) -> torch.Tensor:
        """float32 [products, rows, keys] of the chunk."""
        keys = self.keys_ZTD[chunk.products, : chunk.num_keys]
        scores = torch.bmm(self.rows_ZXD[chunk.products, chunk.rows], keys.mT).float()
        if self.mask.causal:
            first = chunk.rows.start // self.repeats
            square = torch.ones(chunk.num_keys - first, chunk.num_keys - first, dtype=torch.bool)
            later = square.triu(1).repeat_interleave(self.repeats, 0).to(scores.device)
            scores[..., first:].masked_fill_(later, float("-inf"))
        if self.mask.hidden_BT is not None:
            num_heads = len(self.keys_ZTD) // len(self.mask.hidden_BT)
            hidden_ZT = self.mask.hidden_BT.repeat_interleave(num_heads, 0)[chunk.products]
            scores.masked_fill_(hidden_ZT[:, None], float("-inf"))
        return scores

    def chunks(self) -> Iterator[_Chunk]:
        num_products, num_rows, _ = self.rows_ZXD.shape
        num_keys, repeats = self.keys_ZTD.shape[1], self.repeats
        queries = max(CHUNK_SCORES // (repeats * num_keys), 1)
        if self.mask.causal:
            queries = min(queries, CAUSAL_CHUNK_QUERIES)
        step = min(queries * repeats, num_rows)
        together = max(CHUNK_SCORES // (step * num_keys), 1)
        for product in range(0, num_products, together):
            for row in range(0, num_rows, step):
                end = min(row + step, num_rows)
                reach = end // repeats if self.mask.causal else num_keys
                yield _Chunk(slice(product, product + together), slice(row, end), reach)


def attend(
    query_BQHD: torch.Tensor, key_BTKD: torch.Tensor, value_BTKD: torch.Tensor, mask: Mask
) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, Q, H, D], and the log of the sum over the keys of exp(score), float32 [B, Q, H].

    Each query must have a key that it may attend to.
    """
    folded = _fold(query_BQHD, key_BTKD, value_BTKD, mask)
    out = torch.empty_like(folded.rows_ZXD)
    normalizers = out.new_empty(out.shape[:2], dtype=torch.float32)
    for chunk in folded.chunks():
        scores = folded.scores(chunk)
        weights = scores.softmax(dim=-1)
        # The largest weight is exp(largest score - normalizer).
        normalizers[chunk.products, chunk.rows] = scores.amax(-1) - weights.amax(-1).log()
        values = folded.values_ZTD[chunk.products, : chunk.num_keys]
        out[chunk.products, chunk.rows] = torch.bmm(weights.to(values.dtype), values)
    num_heads, repeats = key_BTKD.shape[2], folded.repeats
    normalizers = _unfold(normalizers[..., None], num_heads, repeats)[..., 0]
    return _unfold(out, num_heads, repeats), normalizers


def differentiate(
    gradient_BQHD: torch.Tensor,
    query_BQHD: torch.Tensor,
    key_BTKD: torch.Tensor,
    value_BTKD: torch.Tensor,
    normalizers_BQH: torch.Tensor,
    means_BQH: torch.Tensor,
    mask: Mask,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The parts of the gradients of query, key and value that come from these keys.

    `gradient`: of the output over all keys. `normalizers`: the log-sum-exp over all keys, infinite
    for a query that does not count. `means`: the sum over channels of output x gradient.
    """
    folded = _fold(query_BQHD, key_BTKD, value_BTKD, mask)
    num_heads, dtype = key_BTKD.shape[2], query_BQHD.dtype
    gradients = _fold_rows(gradient_BQHD, num_heads)
    normalizers = _fold_rows(normalizers_BQH[..., None], num_heads)
    means = _fold_rows(means_BQH[..., None], num_heads)
    of_rows = torch.empty_like(folded.rows_ZXD)
    # Chunks are added up in float32.
    of_keys = torch.zeros_like(folded.keys_ZTD, dtype=torch.float32)
    of_values = torch.zeros_like(of_keys)
    for chunk in folded.chunks():
        part = chunk.products, chunk.rows
        reach = chunk.products, slice(chunk.num_keys)
        weights = folded.scores(chunk).sub_(normalizers[part]).exp_()
        of_scores = torch.bmm(gradients[part], folded.values_ZTD[reach].mT).float()
        of_scores = of_scores.sub_(means[part]).mul_(weights).to(dtype)
        of_values[reach] += torch.bmm(weights.to(dtype).mT, gradients[part])
        of_keys[reach] += torch.bmm(of_scores.mT, folded.rows_ZXD[part])
        of_rows[part] = torch.bmm(of_scores, folded.keys_ZTD[reach])
    of_rows *= query_BQHD.shape[-1] ** -0.5
    return (
        _unfold(of_rows, num_heads, folded.repeats),
        _unfold(of_keys.to(dtype), num_heads),
        _unfold(of_values.to(dtype), num_heads),
    )


def _fold(
    query_BQHD: torch.Tensor, key_BTKD: torch.Tensor, value_BTKD: torch.Tensor, mask: Mask
) -> _Folded:
    num_heads = key_BTKD.shape[2]
    rows = _fold_rows(query_BQHD, num_heads) * query_BQHD.shape[-1] ** -0.5
    keys, values = (_fold_rows(x, num_heads) for x in (key_BTKD, value_BTKD))
    return _Folded(rows, keys, values, query_BQHD.shape[2] // num_heads, mask)


def _fold_rows(x_BQHD: torch.Tensor, num_heads: int) -> torch.Tensor:
    """[B, Q, H, D] -> [B * K, Q * R, D]; `num_heads`: K."""
    split = x_BQHD.unflatten(2, (num_heads, -1)).transpose(1, 2)
    return split.flatten(2, 3).flatten(0, 1)


def _unfold(x_ZXD: torch.Tensor, num_heads: int, repeats: int = 1) -> torch.Tensor:
    """The way back: [B * K, Q * R, D] -> [B, Q, H, D]."""
    split = x_ZXD.unflatten(0, (-1, num_heads)).unflatten(2, (-1, repeats))
    return split.transpose(1, 2).flatten(2, 3)
