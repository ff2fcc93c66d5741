"""What advantages, losses and aggregations are: functions of a step's completions and tokens.

Each is a class whose fields are its options, so that the configuration can check them, and whose
`__call__` is pure. Modules of such classes do without `import torch` at their top and use methods
of tensors instead: processes that only read a configuration have no use for torch.

Axes: B completions and M tokens of a step's batch, P prompts (groups) of it; in a loss M tokens and
B completions of one micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from trimaran.config.section import Options

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of a step's completions, one completion after the other; an answer that is no episode has one.
    On the host.

    Axis: R turns.
    Example: an episode of two turns, of 3 and 2 trained tokens, and an answer of one token:
        Turns(torch.tensor([1.0, nan, nan]).double(), torch.tensor([0, 0, 1]),
              torch.tensor([0, 1, 0]), torch.tensor([0, 0, 0, 1, 1, 2]))
    """

    rewards_R: torch.Tensor
    """float64: the environment's for the turn; NaN where it gave none."""
    completions_R: torch.Tensor
    """int64: which completion."""
    numbers_R: torch.Tensor
    """int64: place in its completion, from 0 on."""
    turns_M: torch.Tensor
    """int64: the turn of each trained token, among R."""


@dataclass(frozen=True, slots=True)
class Rewards:
    """Rewards of the scored completions of a step's batch, group by group. On the host.

    Example: two groups of two completions, without a KL term in the reward:
        Rewards(torch.tensor([1.0, 0.0, 1.0, 1.0]).double(), {}, {}, torch.tensor([0, 0, 1, 1]),
                torch.tensor([5, 7, 4, 4]), torch.tensor([5, 7, 4, 4]))
    """

    totals_B: torch.Tensor
    """float64: the weighted sum of the terms, less all of the completion's KL penalty."""
    terms: Mapping[str, torch.Tensor]
    """Rule -> its value before its weight, float64 [B]; NaN where it does not apply."""
    term_weights: Mapping[str, float]
    groups_B: torch.Tensor
    """int64: which group, 0..P-1, not descending."""
    lengths_B: torch.Tensor
    """int64: trained tokens of each, in all M."""
    sampled_B: torch.Tensor
    """int64: tokens of each, also where they are masked and do not train."""
    greedy_P: torch.Tensor | None = None
    """float64: the reward of each prompt's greedy answer, where the advantage asked for one."""
    penalties_M: torch.Tensor | None = None
    """float64: coefficient x KL of each token, where the KL term is in the reward."""
    turns: Turns | None = None
    """None where no turn has a reward of its own."""


class Advantage(Options):
    """How much better each completion, or each of its tokens, is than could be expected.

    Example of a package's own:
        class Centred(Advantage):
            def __call__(self, rewards):
                return rewards.totals_B - group_mean(rewards.totals_B, rewards.groups_B)[rewards.groups_B]
    """

    per_token: ClassVar[bool] = False
    """Whether the values are of tokens."""

    takes_penalties: ClassVar[bool] = True
    """Whether it may be asked with a KL term in the reward."""
    compares_group: ClassVar[bool] = True
    """Whether a group of one teaches nothing."""

    @property
    def teaches_where_equal(self) -> bool:
        """Whether a group of equal rewards may teach something."""
        return False

    @property
    def least_group(self) -> int:
        """Completions of a group below which all advantages are 0, whatever the rewards."""
        return 2 if self.compares_group else 1

    @property
    def needs_greedy(self) -> bool:
        """Whether each prompt is also answered greedily, for `Rewards.greedy_P`."""
        return False

    def __call__(self, rewards: Rewards) -> torch.Tensor:
        """float64, one value a completion [B] or, with `per_token`, a token [M]. Called once a step on every rank, with
        the same rewards. A completion whose values are all exactly 0 goes through no forward pass,
        unless there is a KL or entropy term."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a loss needs of each trained token of a micro-batch besides its log-probability."""

    old_logprobs_M: torch.Tensor
    """float32: before the first update of the batch."""
    advantages_M: torch.Tensor
    """float32."""
    completions_M: torch.Tensor
    """int64: which completion, 0..B-1. All tokens of a completion are in one micro-batch, unless the loss is
    `per_token`."""
    num_completions: int
    """B."""
    seed: int = 0
    """For a loss that draws lots; the same when a step is made again."""

    def mean(self, values_M: torch.Tensor) -> torch.Tensor:
        """Over the tokens of each completion, [B], with gradient."""
        sums = values_M.new_zeros(self.num_completions).index_add(0, self.completions_M, values_M)
        counts = self.completions_M.bincount(minlength=self.num_completions)
        return sums / counts.clamp(min=1)


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """What a loss answers.

    Example: TokenLosses(-ratio * advantages, {"clipped/share": was_clipped.float()})
    """

    losses_M: torch.Tensor
    """With gradient. The learner multiplies each by its importance and its aggregation weight, adds
    KL and entropy terms, and sums."""
    metrics: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Key after `trainer/policy/` -> a number a token, float32 [M]; reported as the mean over trained tokens.
    Those that are not computed count as 0."""


class Loss(Options):
    """The policy-gradient term of the loss.

    `needs_all`: whether a token's loss depends on tokens of others, so that also those without an
    advantage go through a forward pass. `per_token`: whether it depends on the token alone; only then may the
    branches of an episode, which is one completion, stand in different micro-batches.

    Example of a package's own:
        class Reinforce(Loss):
            def __call__(self, logprobs_M, tokens):
                return TokenLosses(-tokens.advantages_M * logprobs_M)
    """

    needs_all: ClassVar[bool] = False
    per_token: ClassVar[bool] = False

    def __call__(self, logprobs_M: torch.Tensor, tokens: Tokens) -> TokenLosses:
        """`logprobs_M`: natural logarithms of the policy's probabilities, float32, with gradient.

        Called once a micro-batch on every data-parallel rank; M differs from call to call, and may be 0.
        """
        raise NotImplementedError


class Aggregation(Options):
    """How the tokens of a mini-batch are averaged: the weight of each."""

    def __call__(self, lengths_B: torch.Tensor) -> torch.Tensor:
        """The weight of one token of each completion of a mini-batch, float64 [B], from their numbers
        of trained tokens, int64 [B], which may be 0. The loss is the weighted sum."""
        raise NotImplementedError
