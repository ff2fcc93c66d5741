"""Attention of completions over the prompt that they share, and over themselves.

A prompt's keys and values are read once for all completions of its group. What
a completion's token gets from the prompt and what it gets from its own
completion are two parts, each with its log-sum-exp. Joined, they are exactly
the attention over both.

Axes: N packed tokens, A tokens of completions that share a prompt, H heads,
K key/value heads, D channels of a head; Z, X, T as in `partial_attention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from services.trainer.megatron.packed_groups import PackedGroup
from services.trainer.megatron.partial_attention import Rows, attend, differentiate
from services.trainer.megatron.places import Places, is_token, place

BATCH_MAX_PAIRS = 1 << 17
"""Of queries and keys: larger members are computed alone, since their calls cost little."""
BATCH_MIN_FILL = 0.7
"""Share of a batch's pairs that are not padding."""


@dataclass(frozen=True, slots=True)
class Member:
    """Queries, as places in A, and the packed tokens that they attend to, int64."""

    queries: torch.Tensor
    keys: torch.Tensor


@dataclass(frozen=True, slots=True)
class Part:
    """Members in batches of like shapes. Each of the A tokens is a query once."""

    queries: Places
    keys: Places
    causal: bool
    biases: tuple[torch.Tensor | None, ...]
    """As in `partial_attention.Rows`, for each batch."""

    def rows(
        self, query_AHD: torch.Tensor, key_NKD: torch.Tensor, value_NKD: torch.Tensor
    ) -> list[Rows]:
        """Of each batch."""
        causal = query_AHD.shape[1] // key_NKD.shape[1] if self.causal else 0
        queries = self.queries.fold(query_AHD)
        keys, values = self.keys.fold(key_NKD), self.keys.fold(value_NKD)
        return [
            Rows(query, key, value, causal, bias)
            for query, key, value, bias in zip(queries, keys, values, self.biases, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class SharedPrompts:
    """The completions that share a prompt, in one micro-batch."""

    tokens_A: torch.Tensor
    """Packed tokens, int64."""
    parts: tuple[Part, Part]
    """Completions over themselves, and over the prompts."""


def lay_out(groups: Sequence[PackedGroup], num_heads: int, device: torch.device) -> SharedPrompts:
    """`groups`: each with a prompt and a completion. `num_heads`: K."""
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
    parts = (
        _part(own, True, num_heads, device),
        _part(prompts, False, num_heads, device),
    )
    return SharedPrompts(tokens.to(device), parts)


def _part(members: Sequence[Member], causal: bool, num_heads: int, device: torch.device) -> Part:
    batches = _batches(members)
    queries = [[member.queries for member in batch] for batch in batches]
    keys = [[member.keys for member in batch] for batch in batches]
    # Padding stands behind, where a causal mask hides it.
    biases = [None if causal else _bias(rows, num_heads) for rows in keys]
    return Part(
        place(queries, num_heads).to(device),
        place(keys, num_heads).to(device),
        causal,
        tuple(bias if bias is None else bias.to(device) for bias in biases),
    )


def _bias(rows: Sequence[torch.Tensor], num_heads: int) -> torch.Tensor | None:
    is_real = is_token(rows)
    if is_real.all():
        return None
    bias = torch.zeros(is_real.shape).masked_fill_(~is_real, float("-inf"))
    return bias.repeat_interleave(num_heads, dim=0)


def _batches(members: Sequence[Member]) -> list[list[Member]]:
    """The largest first."""
    batches: list[list[Member]] = []
    for member in sorted(members, key=lambda one: (-len(one.keys), -len(one.queries))):
        if not batches or not _fills([*batches[-1], member]):
            batches.append([])
        batches[-1].append(member)
    return batches


def _fills(batch: Sequence[Member]) -> bool:
    longest = max(len(member.queries) for member in batch), max(len(one.keys) for one in batch)
    pairs = len(batch) * longest[0] * longest[1]
    real = sum(len(member.queries) * len(member.keys) for member in batch)
    return pairs <= BATCH_MAX_PAIRS and real >= BATCH_MIN_FILL * pairs


def shared_prompt_attention(
    query_NHD: torch.Tensor,
    key_NKD: torch.Tensor,
    value_NKD: torch.Tensor,
    layout: SharedPrompts,
) -> torch.Tensor:
    """[A, H, D]: what the A tokens get from their prompt and their own completion."""
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
        query_AHD = query_NHD.index_select(0, layout.tokens_A).mul_(_scale(query_NHD))
        (own, own_normalizers), (other, other_normalizers) = (
            _attend(query_AHD, key_NKD, value_NKD, part) for part in layout.parts
        )
        share = (own_normalizers - other_normalizers).sigmoid()
        out = torch.lerp(other.float(), own.float(), share[..., None]).to(own.dtype)
        normalizers = torch.logaddexp(own_normalizers, other_normalizers)
        ctx.save_for_backward(query_AHD, key_NKD, value_NKD, out, normalizers)
        ctx.layout = layout
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, normalizers = ctx.saved_tensors
        gradient, layout = gradients[0], ctx.layout
        means = (gradient.float() * out).sum(dim=-1)
        of_key, of_value = torch.zeros_like(key), torch.zeros_like(value)
        of_queries = []
        for part in layout.parts:
            rows = part.rows(query, key, value)
            upstream = (
                part.queries.fold(gradient),
                part.queries.fold(normalizers, padding=float("inf")),
                part.queries.fold(means),
            )
            found = [differentiate(*one) for one in zip(rows, *upstream, strict=True)]
            mine, keys, values = zip(*found, strict=True)
            of_queries.append(part.queries.unfold(mine))
            of_key.index_copy_(0, part.keys.tokens_U, part.keys.unfold(keys))
            of_value.index_copy_(0, part.keys.tokens_U, part.keys.unfold(values))
        summed = (of_queries[0] + of_queries[1]).mul_(_scale(query))
        of_query = query.new_zeros(len(key), *query.shape[1:])
        return of_query.index_copy_(0, layout.tokens_A, summed), of_key, of_value, None


def _scale(query: torch.Tensor) -> float:
    return float(query.shape[-1] ** -0.5)


def _attend(
    query_AHD: torch.Tensor, key_NKD: torch.Tensor, value_NKD: torch.Tensor, part: Part
) -> tuple[torch.Tensor, torch.Tensor]:
    """[A, H, D], and the log-sum-exp, float32 [A, H]."""
    found = [attend(rows) for rows in part.rows(query_AHD, key_NKD, value_NKD)]
    outs, normalizers = zip(*found, strict=True)
    return part.queries.unfold(outs), part.queries.unfold(normalizers)
