"""Attention over some of a query's keys, with the log-sum-exp by which it is joined with the rest.

Plain torch operations, for any device. Scores exist in chunks only, and the
backward pass computes them again.

Axes: Z matrix products (one for each sequence and key/value head), R heads that
share a key, X rows of a product (R for each query, next to each other), T keys,
D channels of a head.

Source: FlashAttention (arXiv 2205.14135), section 3.1 and appendix B.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from services.trainer.megatron.exponential import exp_

CHUNK_SCORES_CPU = 1 << 19
"""Scores that exist at a time, unless one query has more: few enough for the CPU's cache."""
CHUNK_SCORES = 1 << 26
"""On an accelerator, where each call costs: with their float32 copies about 1 GiB."""
CAUSAL_CHUNK_QUERIES = 128
"""With more in one chunk, more of its scores would be hidden ones."""


@dataclass(frozen=True, slots=True)
class QueryRows:
    """What attends to what. The queries are scaled already."""

    queries_ZXD: torch.Tensor
    keys_ZTD: torch.Tensor
    values_ZTD: torch.Tensor
    causal_R: int = 0
    """R, if query t may not attend to keys after t; 0 if it may."""
    bias_ZT: torch.Tensor | None = None
    """float32: -inf for a key that is padding, else 0."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    products: slice
    rows: slice
    reach: slice
    """Keys that not all of its rows are forbidden to attend to."""


def attend(rows: QueryRows) -> tuple[torch.Tensor, torch.Tensor]:
    """[Z, X, D], and the log of the sum over the keys of exp(score), float32 [Z, X].

    Each query must have a key that it may attend to.
    """
    out = torch.empty_like(rows.queries_ZXD)
    normalizers = out.new_empty(out.shape[:2], dtype=torch.float32)
    for chunk in _chunks(rows):
        scores = _scores(rows, chunk)
        weights = scores.softmax(dim=-1)
        # The largest weight is exp(largest score - normalizer).
        normalizers[chunk.products, chunk.rows] = scores.amax(-1) - weights.amax(-1).log()
        values = rows.values_ZTD[chunk.products, chunk.reach]
        out[chunk.products, chunk.rows] = torch.bmm(weights.to(values.dtype), values)
    return out, normalizers


def differentiate(
    rows: QueryRows,
    gradient_ZXD: torch.Tensor,
    normalizers_ZX: torch.Tensor,
    means_ZX: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The parts of the gradients of queries, keys and values that come from these keys.

    `gradient`: of the output over all keys. `normalizers`: the log-sum-exp over all keys, infinite
    for a row that does not count. `means`: the sum over channels of output x gradient.
    """
    dtype = rows.queries_ZXD.dtype
    of_queries = torch.empty_like(rows.queries_ZXD)
    # Chunks are added up in float32.
    of_keys = torch.zeros_like(rows.keys_ZTD, dtype=torch.float32)
    of_values = torch.zeros_like(of_keys)
    for chunk in _chunks(rows):
        mine, others = (chunk.products, chunk.rows), (chunk.products, chunk.reach)
        weights = exp_(_scores(rows, chunk).sub_(normalizers_ZX[mine][..., None]))
        of_scores = torch.bmm(gradient_ZXD[mine], rows.values_ZTD[others].mT).float()
        of_scores = of_scores.sub_(means_ZX[mine][..., None]).mul_(weights).to(dtype)
        of_values[others] += torch.bmm(weights.to(dtype).mT, gradient_ZXD[mine])
        of_keys[others] += torch.bmm(of_scores.mT, rows.queries_ZXD[mine])
        of_queries[mine] = torch.bmm(of_scores, rows.keys_ZTD[others])
    return of_queries, of_keys.to(dtype), of_values.to(dtype)


def _scores(rows: QueryRows, chunk: _Chunk) -> torch.Tensor:
    """float32, -inf where a query may not attend to a key."""
    keys = rows.keys_ZTD[chunk.products, chunk.reach]
    # In bf16 the product rounds scores, where fused kernels would not. The log-probabilities of
    # SmolLM2-135M come no further from those in float32 by that.
    scores = torch.bmm(rows.queries_ZXD[chunk.products, chunk.rows], keys.mT).float()
    # Adding a bias is faster than filling by a mask.
    if rows.bias_ZT is not None:
        scores += rows.bias_ZT[chunk.products, None, chunk.reach]
    if rows.causal_R:
        first = chunk.rows.start // rows.causal_R
        length = chunk.reach.stop - first
        later = scores.new_full((length, length), float("-inf")).triu_(1)
        scores[..., first:] += later.repeat_interleave(rows.causal_R, dim=0)
    return scores


def _chunks(rows: QueryRows) -> Iterator[_Chunk]:
    (num_products, num_rows, _), num_keys = rows.queries_ZXD.shape, rows.keys_ZTD.shape[1]
    limit = CHUNK_SCORES_CPU if rows.queries_ZXD.device.type == "cpu" else CHUNK_SCORES
    step = max(limit // num_keys, 1)
    if rows.causal_R:
        queries = min(max(step // rows.causal_R, 1), CAUSAL_CHUNK_QUERIES)
        step = queries * rows.causal_R
    step = min(step, num_rows)
    together = max(limit // (step * num_keys), 1)
    for product in range(0, num_products, together):
        for row in range(0, num_rows, step):
            end = min(row + step, num_rows)
            reach = end // rows.causal_R if rows.causal_R else num_keys
            yield _Chunk(slice(product, product + together), slice(row, end), slice(reach))
