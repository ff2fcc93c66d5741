"""Statistics of groups and of the batch, exact where all values are equal.

Axes: B values, P groups. `groups_B` says which group each value is of, 0..P-1; `counts_B` how often
each value counts, once where it is not given. A value that counts 0 times is in no statistic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

VARIANCE_EPSILON = 1e-8
"""Added to the variance of a batch. Source: verl's `masked_whiten` (verl/utils/torch_functional.py)."""


def group_mean(
    values_B: torch.Tensor, groups_B: torch.Tensor, counts_B: torch.Tensor | None = None
) -> torch.Tensor:
    """The mean of each group, [P]; 0 where nothing counts.

    It is exactly v where all values of the group are v, so that v - mean is exactly 0: the sum of
    equal floats, divided by their number, is not always the float itself.

    Example: values_B - group_mean(values_B, groups_B)[groups_B]
    """
    counts_B = _counts(values_B, counts_B)
    least_P = _least(values_B, groups_B, counts_B)
    excess_P = _sums(counts_B * (values_B - least_P[groups_B]), groups_B)
    return least_P + excess_P / _sums(counts_B, groups_B).clamp(min=1)


def group_std(
    values_B: torch.Tensor, groups_B: torch.Tensor, counts_B: torch.Tensor | None = None
) -> torch.Tensor:
    """The sample standard deviation of each group, [P]: exactly 0 where its values are equal or one."""
    counts_B = _counts(values_B, counts_B)
    deviations_B = values_B - group_mean(values_B, groups_B, counts_B)[groups_B]
    squares_P = _sums(counts_B * deviations_B.square(), groups_B)
    return (squares_P / (_sums(counts_B, groups_B) - 1).clamp(min=1)).sqrt()


def whiten(values: torch.Tensor, counts: torch.Tensor | None = None) -> torch.Tensor:
    """(v - mean) / sqrt(variance + 1e-8) over the whole batch, with the sample variance.

    A value that counts as often as its completion has trained tokens is whitened over tokens. Exactly
    0 are values that do not count, and all where those that count are equal, or one.

    Example: whiten(torch.tensor([3.0, 1.0]), torch.tensor([1, 3])) is about [1.5, -0.5]
    """
    counts = _counts(values, counts)
    batch = values.new_zeros(values.shape).long()
    mean = group_mean(values, batch, counts)[batch]
    variance = group_std(values, batch, counts)[batch].square()
    return ((values - mean) / (variance + VARIANCE_EPSILON).sqrt()).where(counts > 0, 0.0)


def _counts(values_B: torch.Tensor, counts_B: torch.Tensor | None) -> torch.Tensor:
    return values_B.new_ones(values_B.shape) if counts_B is None else counts_B.to(values_B)


def _sums(values_B: torch.Tensor, groups_B: torch.Tensor) -> torch.Tensor:
    return values_B.new_zeros(_num_groups(groups_B)).index_add(0, groups_B, values_B)


def _least(values_B: torch.Tensor, groups_B: torch.Tensor, counts_B: torch.Tensor) -> torch.Tensor:
    counting = counts_B > 0
    zeros_P = values_B.new_zeros(_num_groups(groups_B))
    return zeros_P.scatter_reduce(
        0, groups_B[counting], values_B[counting], "amin", include_self=False
    )


def _num_groups(groups_B: torch.Tensor) -> int:
    return int(groups_B.max()) + 1 if len(groups_B) else 0
