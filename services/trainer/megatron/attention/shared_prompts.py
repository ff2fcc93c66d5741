"""Attention of completions over the prompt that they share, and over themselves.

A prompt's keys and values are read once for all completions of its group. What
a completion's token gets from the prompt and what it gets from its own
completion are two parts, each with its log-sum-exp. Joined, they are exactly
the attention over both.

Axes: U and A tokens as in `segments`, H heads, K key/value heads, D channels of
a head; Z, X, T as in `partial_attention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from services.trainer.megatron.attention.partial_attention import QueryRows, attend, differentiate
from services.trainer.megatron.attention.places import Places, is_token, place
from services.trainer.megatron.attention.segments import SharingGroup

CPU_ROWS = 16
"""Rows are padded to a multiple on a CPU: few lengths, few kernels (`services.trainer.megatron.model.CPU_ROWS` says why)."""
BATCH_MAX_PAIRS = 1 << 17
"""Elements of queries and keys: larger members are computed alone, since their calls cost little."""
BATCH_MIN_FILL = 0.7
"""Share of a batch's pairs that are not padding."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """Queries and the keys that they attend to, as tokens, int64."""

    queries: torch.Tensor
    keys: torch.Tensor


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Members in batches of like shapes. Each of the A tokens is a query once."""

    queries: Places
    keys: Places
    causal: bool
    biases: tuple[torch.Tensor | None, ...]
    """As in `partial_attention.Rows`, for each batch."""

    def rows(
        self, query_AHD: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> list[QueryRows]:
        """The inputs of each batch. `key` and `value`: of A or U tokens."""
        causal = query_AHD.shape[1] // key.shape[1] if self.causal else 0
        queries = self.queries.fold(query_AHD)
        keys, values = self.keys.fold(key), self.keys.fold(value)
        return [
            QueryRows(query, key, value, causal, bias)
            for query, key, value, bias in zip(queries, keys, values, self.biases, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class SharedPrompts:
    own: PromptPart
    """The A tokens over those of their completion."""
    prompts: PromptPart
    """The A tokens over those U tokens that are their prompt."""


def lay_out(groups: Sequence[SharingGroup], num_heads: int, device: torch.device) -> SharedPrompts:
    """`groups`: each with a prompt and a completion. `num_heads`: K."""
    own = [GroupMember(one, one) for group in groups for one in group.completions]
    prompts = [GroupMember(torch.cat(group.completions), group.prompt) for group in groups]
    return SharedPrompts(
        _part(own, True, num_heads, device), _part(prompts, False, num_heads, device)
    )


def _part(
    members: Sequence[GroupMember], causal: bool, num_heads: int, device: torch.device
) -> PromptPart:
    batches, multiple = _batches(members), CPU_ROWS if device.type == "cpu" else 1
    queries = [[member.queries for member in batch] for batch in batches]
    keys = [[member.keys for member in batch] for batch in batches]
    # Padding stands behind, where a causal mask hides it.
    biases = [None if causal else _bias(is_token(rows, multiple), num_heads) for rows in keys]
    return PromptPart(
        place(queries, num_heads, multiple).to(device),
        place(keys, num_heads, multiple).to(device),
        causal,
        tuple(bias if bias is None else bias.to(device) for bias in biases),
    )


def _bias(is_real: torch.Tensor, num_heads: int) -> torch.Tensor | None:
    if is_real.all():
        return None
    bias = torch.zeros(is_real.shape).masked_fill_(~is_real, float("-inf"))
    return bias.repeat_interleave(num_heads, dim=0)


def _batches(members: Sequence[GroupMember]) -> list[list[GroupMember]]:
    """The largest first."""
    batches: list[list[GroupMember]] = []
    for member in sorted(members, key=lambda one: (-len(one.keys), -len(one.queries))):
        if not batches or not _fills([*batches[-1], member]):
            batches.append([])
        batches[-1].append(member)
    return batches


def _fills(batch: Sequence[GroupMember]) -> bool:
    longest = max(len(member.queries) for member in batch), max(len(one.keys) for one in batch)
    pairs = len(batch) * longest[0] * longest[1]
    real = sum(len(member.queries) * len(member.keys) for member in batch)
    return pairs <= BATCH_MAX_PAIRS and real >= BATCH_MIN_FILL * pairs


def shared_prompt_attention(
    query_AHD: torch.Tensor,
    own_AKD: Sequence[torch.Tensor],
    others_UKD: Sequence[torch.Tensor],
    layout: SharedPrompts,
) -> torch.Tensor:
    """[A, H, D]: what the A tokens get from their prompt and their own completion.

    `own`, `others`: key and value of the A tokens, and of the U tokens.
    """
    return _SharedPromptAttention.apply(  # type: ignore[no-any-return]
        query_AHD, *own_AKD, *others_UKD, layout
    )


class _SharedPromptAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query_AHD: torch.Tensor,
        key_AKD: torch.Tensor,
        value_AKD: torch.Tensor,
        key_UKD: torch.Tensor,
        value_UKD: torch.Tensor,
        layout: SharedPrompts,
    ) -> torch.Tensor:
        query = query_AHD * _scale(query_AHD)
        own, own_normalizers = _attend(query, key_AKD, value_AKD, layout.own)
        other, other_normalizers = _attend(query, key_UKD, value_UKD, layout.prompts)
        share = (own_normalizers - other_normalizers).sigmoid()
        out = torch.lerp(other.float(), own.float(), share[..., None]).to(own.dtype)
        normalizers = torch.logaddexp(own_normalizers, other_normalizers)
        ctx.save_for_backward(query, key_AKD, value_AKD, key_UKD, value_UKD, out, normalizers)
        ctx.layout = layout
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key_A, value_A, key_U, value_U, out, normalizers = ctx.saved_tensors
        gradient, layout = gradients[0], ctx.layout
        upstream = gradient, normalizers, (gradient.float() * out).sum(dim=-1)
        of_own = _differentiate(query, key_A, value_A, upstream, layout.own)
        of_others = _differentiate(query, key_U, value_U, upstream, layout.prompts)
        of_query = (of_own[0] + of_others[0]).mul_(_scale(query))
        return of_query, *of_own[1:], *of_others[1:], None


def _scale(query: torch.Tensor) -> float:
    return float(query.shape[-1] ** -0.5)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, part: PromptPart
) -> tuple[torch.Tensor, torch.Tensor]:
    """[A, H, D], and the log-sum-exp, float32 [A, H]."""
    found = [attend(rows) for rows in part.rows(query, key, value)]
    outs, normalizers = zip(*found, strict=True)
    return part.queries.unfold(outs), part.queries.unfold(normalizers)


def _differentiate(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    upstream: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    part: PromptPart,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of query, key and value. `upstream`: gradient, normalizers and means of
    `partial_attention.differentiate`."""
    gradient, normalizers, means = upstream
    found = [
        differentiate(*one)
        for one in zip(
            part.rows(query, key, value),
            part.queries.fold(gradient),
            part.queries.fold(normalizers, padding=float("inf")),
            part.queries.fold(means),
            strict=True,
        )
    ]
    of_queries, of_keys, of_values = zip(*found, strict=True)
    return (
        part.queries.unfold(of_queries),
        _spread(part.keys.unfold(of_keys), part.keys.tokens, len(key)),
        _spread(part.keys.unfold(of_values), part.keys.tokens, len(key)),
    )


def _spread(x: torch.Tensor, tokens: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """To these of so many tokens; 0 for the others."""
    if len(tokens) == num_tokens:
        return x
    return x.new_zeros(num_tokens, *x.shape[1:]).index_copy_(0, tokens, x)
