"""Aggregations: the weight of one token of each completion of a mini-batch. Axis: B completions.

A completion without trained tokens does not count, and has weight 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from services.trainer.grpo.kinds import Aggregation

if TYPE_CHECKING:
    import torch


class TokenMean(Aggregation):
    """1 / trained tokens of the mini-batch: every token counts alike.

    Source: DAPO (arXiv 2503.14476), equation 8. Example: of lengths [3, 0, 1]: [0.25, 0, 0.25]
    """

    def __call__(self, lengths_B: torch.Tensor) -> torch.Tensor:
        return _counting(lengths_B) / lengths_B.sum().clamp(min=1)


class SequenceMean(Aggregation):
    """1 / (completions * tokens of this one): every completion counts alike, by its tokens' mean.

    Source: DeepSeekMath (arXiv 2402.03300), equation 3. Example: of [4, 0, 1]: [0.125, 0, 0.5]
    """

    def __call__(self, lengths_B: torch.Tensor) -> torch.Tensor:
        return _share(lengths_B) / lengths_B.clamp(min=1)


class SequenceSum(Aggregation):
    """1 / completions: the mean over completions of the sum over their tokens.

    Source: verl's `seq-mean-token-sum` (verl/trainer/ppo/core_algos.py).
    Example: of [4, 0, 1]: [0.5, 0, 0.5]
    """

    def __call__(self, lengths_B: torch.Tensor) -> torch.Tensor:
        return _share(lengths_B)


class Fixed(Aggregation):
    """1 / (completions * tokens): a denominator that no length changes.

    Source: Dr. GRPO (arXiv 2503.20783), whose constant is the longest completion that is allowed.
    Example: of [4, 0, 1] with tokens = 8: [0.0625, 0, 0.0625]
    """

    tokens: Annotated[int, Field(ge=1)]
    """The same for each completion, such as `rollout.max_tokens`; of episodes `environment.max_tokens`."""

    def __call__(self, lengths_B: torch.Tensor) -> torch.Tensor:
        return _share(lengths_B) / self.tokens


def _counting(lengths_B: torch.Tensor) -> torch.Tensor:
    return (lengths_B > 0).double()


def _share(lengths_B: torch.Tensor) -> torch.Tensor:
    """1 / completions of each that counts."""
    counting_B = _counting(lengths_B)
    return counting_B / counting_B.sum().clamp(min=1)
