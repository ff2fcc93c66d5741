"""Attention of completions over the prompt that they share, and over themselves.

A prompt's keys and values are read where they stand, for all completions of its
group at once. What a completion's tokens get from the prompt and what they get
from their own completion are two parts, each with its log-sum-exp, and joined
they are exactly the attention over both.

Axes: N packed tokens, A tokens of completions that share a prompt, Y tokens
that a part has as keys, H heads, K key/value heads, D channels of a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from services.trainer.megatron.packed_groups import PackedGroup
from services.trainer.megatron.partial_attention import Mask, attend, differentiate

BATCH_MAX_PAIRS = 1 << 17
"""Of queries and keys: larger members are computed alone, where padding saves nothing."""
BATCH_MIN_FILL = 0.7
"""Share of the pairs of a batch that are not padding."""


@dataclass(frozen=True, slots=True)
class Member:
    """Queries, as places in A, and the keys that they attend to, as packed tokens. int64"""

    queries: torch.Tensor
    keys: torch.Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """Members that are padded to one shape."""

    num_members: int
    num_queries: int
    num_keys: int
    mask: Mask


@dataclass(frozen=True, slots=True)
class Part:
    """Batches in which each of the A tokens is a query once. Indices are int64."""

    batches: tuple[Batch, ...]
    queries: torch.Tensor
    """For each query of all batches its place in A; padding repeats place 0."""
    padding: torch.Tensor
    """The queries that are padding."""
    places_A: torch.Tensor
    """The queries of the A tokens."""
    keys: torch.Tensor
    """For each key of all batches its packed token; padding repeats token 0."""
    places_Y: torch.Tensor
    """The keys that are no padding."""
    tokens_Y: torch.Tensor
    """Their packed tokens."""

    def split_queries(
        self, x_A: torch.Tensor, padding: float | None = None
    ) -> Iterator[torch.Tensor]:
        """[A, ...] -> for each batch [B, Q, ...], with this value in its padding."""
        rows = x_A.index_select(0, self.queries)
        if padding is not None:
            rows.index_fill_(0, self.padding, padding)
        return _split(rows, [(batch.num_members, batch.num_queries) for batch in self.batches])

    def split_keys(self, x_N: torch.Tensor) -> Iterator[torch.Tensor]:
        """[N, ...] -> for each batch [B, T, ...]."""
        rows = x_N.index_select(0, self.keys)
        return _split(rows, [(batch.num_members, batch.num_keys) for batch in self.batches])


def _split(rows: torch.Tensor, shapes: Sequence[tuple[int, int]]) -> Iterator[torch.Tensor]:
    parts = rows.split([first * second for first, second in shapes])
    return (part.unflatten(0, shape) for part, shape in zip(parts, shapes, strict=True))


@dataclass(frozen=True, slots=True)
class SharedPrompts:
    """The completions that share a prompt, in one micro-batch."""

    tokens_A: torch.Tensor
    """Packed tokens, int64."""
    own: Part
    prompts: Part


def lay_out(groups: Sequence[PackedGroup], device: torch.device) -> SharedPrompts:
    """Each group must have a prompt and a completion."""
    completions = [one for group in groups for one in group.completions]
    tokens = torch.cat(completions)
    places = torch.arange(len(tokens)).split([len(one) for one in completions])
    own = [Member(*pair) for pair in zip(places, completions, strict=True)]
    prompts: list[Member] = []
    first = 0
    for group in groups:
        last = first + len(group.completions)
        prompts.append(Member(torch.cat(places[first:last]), group.prompt))
        first = last
    return SharedPrompts(
        tokens.to(device),
        _part(own, causal=True, device=device),
        _part(prompts, causal=False, device=device),
    )


def _part(members: Sequence[Member], causal: bool, device: torch.device) -> Part:
    batches: list[Batch] = []
    queries, keys = _Rows(), _Rows()
    for batch in _batches(members):
        shape = _shape(batch)
        queries.extend([member.queries for member in batch], shape[0])
        is_real = keys.extend([member.keys for member in batch], shape[1])
        # Padding stands behind, where a causal mask hides it.
        hidden = None if causal or bool(is_real.all()) else ~is_real.to(device)
        batches.append(Batch(len(batch), *shape, Mask(causal, hidden)))
    query_sources, query_places = queries.joined()
    key_sources, key_places = keys.joined()
    padding = torch.ones(len(query_sources), dtype=torch.bool)
    padding[query_places] = False
    # The query of each place in A.
    owners = torch.empty_like(query_places)
    owners[query_sources[query_places]] = query_places
    indices = (
        query_sources,
        padding.nonzero()[:, 0],
        owners,
        key_sources,
        key_places,
        key_sources[key_places],
    )
    return Part(tuple(batches), *(index.to(device) for index in indices))


class _Rows:
    """Rows that are padded to the length of their batch, one batch after the other."""

    def __init__(self) -> None:
        self._sources: list[torch.Tensor] = []
        self._is_real: list[torch.Tensor] = []

    def extend(self, rows: Sequence[torch.Tensor], length: int) -> torch.Tensor:
        """bool [rows, length]: what is no padding."""
        is_real = torch.arange(length) < torch.tensor([[len(row)] for row in rows])
        sources = torch.zeros(is_real.shape, dtype=torch.int64)
        sources[is_real] = torch.cat(list(rows))
        self._sources.append(sources.flatten())
        self._is_real.append(is_real.flatten())
        return is_real

    def joined(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Sources, and the places of those that are no padding."""
        return torch.cat(self._sources), torch.cat(self._is_real).nonzero()[:, 0]


def _batches(members: Sequence[Member]) -> list[list[Member]]:
    """Members of like shapes, the largest first."""
    batches: list[list[Member]] = []
    for member in sorted(members, key=lambda one: (-len(one.keys), -len(one.queries))):
        if not batches or not _fills([*batches[-1], member]):
            batches.append([])
        batches[-1].append(member)
    return batches


def _fills(batch: Sequence[Member]) -> bool:
    num_queries, num_keys = _shape(batch)
    pairs = len(batch) * num_queries * num_keys
    real = sum(len(member.queries) * len(member.keys) for member in batch)
    return pairs <= BATCH_MAX_PAIRS and real >= BATCH_MIN_FILL * pairs


def _shape(batch: Sequence[Member]) -> tuple[int, int]:
    """Queries and keys."""
    queries = max(len(member.queries) for member in batch)
    return queries, max(len(member.keys) for member in batch)


def shared_prompt_attention(
    query_NHD: torch.Tensor,
    key_NKD: torch.Tensor,
    value_NKD: torch.Tensor,
    layout: SharedPrompts,
) -> torch.Tensor:
    """[A, H, D]: what the completions' tokens get from their prompt and their own completion."""
    return _SharedPromptAttention.apply(  # type: ignore[no-any-return]
        query_NHD, key_NKD, value_NKD, layout
    )


class _SharedPromptAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query_NHD: torch.Tensor,
        key_NKD: torch.Tensor,
        value_NKD: torch.Tensor,
        layout: SharedPrompts,
    ) -> torch.Tensor:
        query_AHD = query_NHD.index_select(0, layout.tokens_A)
        own, own_normalizers = _attend(query_AHD, key_NKD, value_NKD, layout.own)
        other, other_normalizers = _attend(query_AHD, key_NKD, value_NKD, layout.prompts)
        share = (own_normalizers - other_normalizers).sigmoid()
        out = torch.lerp(other.float(), own.float(), share[..., None]).to(own.dtype)
        normalizers = torch.logaddexp(own_normalizers, other_normalizers)
        ctx.save_for_backward(query_AHD, key_NKD, value_NKD, out, normalizers)
        ctx.layout = layout
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, normalizers = ctx.saved_tensors
        layout: SharedPrompts = ctx.layout
        means = (gradients[0].float() * out.float()).sum(dim=-1)
        of_key, of_value = torch.zeros_like(key), torch.zeros_like(value)
        of_query = query.new_zeros(len(key), *query.shape[1:])
        of_queries = []
        for part in (layout.own, layout.prompts):
            of_rows, of_keys, of_values = _differentiate(
                gradients[0], query, key, value, normalizers, means, part
            )
            of_queries.append(of_rows)
            of_key.index_copy_(0, part.tokens_Y, of_keys)
            of_value.index_copy_(0, part.tokens_Y, of_values)
        of_query.index_copy_(0, layout.tokens_A, of_queries[0] + of_queries[1])
        return of_query, of_key, of_value, None


def _attend(
    query_AHD: torch.Tensor, key_NKD: torch.Tensor, value_NKD: torch.Tensor, part: Part
) -> tuple[torch.Tensor, torch.Tensor]:
    """[A, H, D], and the log-sum-exp, float32 [A, H]."""
    rows = part.split_queries(query_AHD), part.split_keys(key_NKD), part.split_keys(value_NKD)
    outs, normalizers = zip(
        *(attend(*one, batch.mask) for batch, *one in zip(part.batches, *rows, strict=True)),
        strict=True,
    )
    out, normalizer = _joined(outs), _joined(normalizers)
    return out.index_select(0, part.places_A), normalizer.index_select(0, part.places_A)


def _joined(batches: Sequence[torch.Tensor]) -> torch.Tensor:
    """Of each batch [B, Q, ...] -> rows of all."""
    return torch.cat([batch.flatten(0, 1) for batch in batches])


def _differentiate(
    gradient_AHD: torch.Tensor,
    query_AHD: torch.Tensor,
    key_NKD: torch.Tensor,
    value_NKD: torch.Tensor,
    normalizers_AH: torch.Tensor,
    means_AH: torch.Tensor,
    part: Part,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of the A queries, and of the Y keys and values."""
    rows = (
        part.split_queries(gradient_AHD),
        part.split_queries(query_AHD),
        part.split_keys(key_NKD),
        part.split_keys(value_NKD),
        part.split_queries(normalizers_AH, padding=float("inf")),
        part.split_queries(means_AH),
    )
    of_queries, of_keys, of_values = zip(
        *(differentiate(*one, batch.mask) for batch, *one in zip(part.batches, *rows, strict=True)),
        strict=True,
    )
    return (
        _joined(of_queries).index_select(0, part.places_A),
        _joined(of_keys).index_select(0, part.places_Y),
        _joined(of_values).index_select(0, part.places_Y),
    )
