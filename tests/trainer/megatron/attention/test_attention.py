"""Attention over packed groups against one dense mask in float64."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.step.packing import GroupLengths

pytestmark = pytest.mark.usefixtures("single_rank")

D = 4
groups_of_any_shape = st.lists(
    st.builds(
        GroupLengths,
        st.integers(1, 14),
        st.lists(st.integers(0, 14), min_size=1, max_size=5).map(tuple),
    )
    # Episodes that share nothing.
    | st.builds(
        GroupLengths, st.just(0), st.lists(st.integers(1, 14), min_size=1, max_size=3).map(tuple)
    ),
    min_size=1,
    max_size=4,
)
limits = st.fixed_dictionaries(
    {
        "partial_attention.CHUNK_SCORES_CPU": st.sampled_from([1, 40, 1 << 20]),
        "partial_attention.CAUSAL_CHUNK_QUERIES": st.sampled_from([1, 3, 128]),
        "shared_prompts.BATCH_MAX_PAIRS": st.sampled_from([0, 200, 1 << 17]),
        "shared_prompts.BATCH_MIN_FILL": st.sampled_from([0.1, 0.7]),
        "sequences.EXPLICIT_LENGTH": st.sampled_from([0, 256]),
        # All groups in parts, as measured, and all as whole sequences.
        "attention.PAIR_COST_CPU": st.sampled_from([0.0, 1.2, 1e9]),
    }
)


def lay_out(groups: list[GroupLengths], num_key_heads: int) -> Any:
    from services.trainer.megatron.attention.attention import build_layout

    return build_layout(groups, torch.ones(D // 2), torch.float32, num_key_heads)


def visible(groups: list[GroupLengths]) -> torch.Tensor:
    """bool [N, N]: may the first token attend to the second?"""
    numbers: list[tuple[int, int, int]] = []
    for group, lengths in enumerate(groups):
        for completion, length in enumerate([lengths.prompt, *lengths.completions]):
            numbers += [(group, completion, place) for place in range(length)]
    group, completion, _ = torch.tensor(numbers).unbind(-1)
    order = torch.arange(len(numbers))
    same = (completion[:, None] == completion) | (completion == 0)
    return (group[:, None] == group) & same & (order[:, None] >= order)


def dense_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    repeats = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    scores = torch.einsum("nhd,mhd->hnm", query, key) / math.sqrt(D)
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return torch.einsum("hnm,mhd->nhd", weights, value)


Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def random_tensors(num_tokens: int, key_heads: int, repeats: int) -> Tensors:
    """Query, key and value."""
    torch.manual_seed(num_tokens)

    def tensor(heads: int) -> torch.Tensor:
        return 2 * torch.randn(num_tokens, heads, D, dtype=torch.float64)

    return tensor(key_heads * repeats), tensor(key_heads), tensor(key_heads)


@given(groups_of_any_shape, st.integers(1, 3), st.integers(1, 3), limits)
def test_output_and_gradients_equal_those_of_a_dense_mask(
    groups: list[GroupLengths], key_heads: int, repeats: int, constants: dict[str, float]
) -> None:
    from services.trainer.megatron.attention.attention import attend

    mask = visible(groups)
    query, key, value = exact = random_tensors(len(mask), key_heads, repeats)
    upstream = torch.randn_like(query)
    for tensor in exact:
        tensor.requires_grad_()
    expected = dense_attention(query, key, value, mask)
    gradients = torch.autograd.grad(expected, exact, upstream)

    query, key, value = ours = tuple(x.detach().float().requires_grad_() for x in exact)
    with replaced(constants):
        out = attend(query, key, value, lay_out(groups, key_heads))
        found = torch.autograd.grad(out, ours, upstream.float())

    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    for mine, exact_one in zip(found, gradients, strict=True):
        torch.testing.assert_close(mine.double(), exact_one, rtol=1e-5, atol=2e-5)


@contextlib.contextmanager
def replaced(constants: dict[str, float]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, constant in constants.items():
            stack.enter_context(mock.patch(f"services.trainer.megatron.attention.{name}", constant))
        yield


def test_scores_far_apart_are_joined_without_overflow() -> None:
    """The prompt gets all of the attention, or the completion does."""
    from services.trainer.megatron.attention.attention import attend

    groups = [GroupLengths(3, (2, 2))]
    mask = visible(groups)
    for sign in (1, -1):
        query, key, value = random_tensors(len(mask), 1, 1)
        query, key = query.abs(), key.abs()
        key[:3] *= 300 * sign
        expected = dense_attention(query, key, value, mask)
        with replaced({"attention.PAIR_COST_CPU": 0.0}):
            out = attend(query.float(), key.float(), value.float(), lay_out(groups, 1))
        torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)


def test_nothing_of_a_shared_prompt_is_copied() -> None:
    layout = lay_out([GroupLengths(48, (7, 9, 8)), GroupLengths(48, (8,) * 8)], num_key_heads=2)
    assert len(layout.sequences.tokens) == 96
    assert len(layout.shared.prompts.keys.sources) == 2 * 96
    assert len(layout.sequences.prompts_P) == 0


@pytest.mark.parametrize(
    ("group", "shares"),
    [
        (GroupLengths(38, (24,) * 8), True),
        (GroupLengths(4096, (128, 128)), True),
        (GroupLengths(4096, (128,)), False),
        (GroupLengths(4096, (128, 0)), False),
        (GroupLengths(4, (128,) * 8), False),
        (GroupLengths(38, ()), False),
    ],
)
def test_a_prompt_is_shared_where_copies_would_cost_more(group: GroupLengths, shares: bool) -> None:
    from trimaran.model.memory.layer import PAIR_COST_CPU
    from trimaran.model.memory.work import shares_prompt

    assert shares_prompt(group.prompt, group.completions, PAIR_COST_CPU) == shares
