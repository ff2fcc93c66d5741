"""Advantages: how much better a completion, or a token of it, is than could be expected.

Axes: B scored completions of a step's batch, P groups, M trained tokens, completion by completion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from services.trainer.grpo.groups import group_mean, group_std, whiten
from services.trainer.grpo.kinds import Advantage, Rewards, Turns
from trimaran.errors import InputError

if TYPE_CHECKING:
    import torch

STD_EPSILON = 1e-4
"""Keeps the quotient finite where the rewards of a group hardly differ. Source: TRL
(trl/trainer/grpo_trainer.py)."""


class CompletionAdvantage(Advantage):
    """One number a completion, which the batch may whiten."""

    whiten: bool = False
    """Whether they are brought to mean 0 and variance 1 over the trained tokens of the batch. A
    completion of a group with equal rewards may then have an advantage that is not 0."""

    @property
    def teaches_where_equal(self) -> bool:
        return self.whiten

    def __call__(self, rewards: Rewards) -> torch.Tensor:
        """float64 [B]."""
        values_B = self.of_completions(rewards)
        return whiten(values_B, rewards.lengths_B) if self.whiten else values_B

    def of_completions(self, rewards: Rewards) -> torch.Tensor:
        """float64 [B], not whitened."""
        raise NotImplementedError


class GroupAdvantage(CompletionAdvantage):
    """(r - mean) / (std + 1e-4) of the group, with the sample standard deviation.

    Exactly 0 where all rewards of the group are equal, or it has one only. Source: DeepSeekMath
    (arXiv 2402.03300), section 4.1; without the division Dr. GRPO (arXiv 2503.20783).
    Example: of rewards [1, 0] of one group, without the division: [0.5, -0.5]
    """

    normalize_std: bool = True

    def of_completions(self, rewards: Rewards) -> torch.Tensor:
        values_B = _above_group_mean(rewards)
        return values_B / _spread(rewards) if self.normalize_std else values_B


class Rloo(CompletionAdvantage):
    """r - mean of the others' rewards = n / (n - 1) * (r - mean), of n completions of the group.

    Source: RLOO (arXiv 2402.14740). A group of one has 0.
    Example: of rewards [1, 0, 0.5] of one group: [0.75, -0.75, 0]
    """

    def of_completions(self, rewards: Rewards) -> torch.Tensor:
        num_B = rewards.groups_B.bincount()[rewards.groups_B].double()
        return num_B / (num_B - 1).clamp(min=1) * _above_group_mean(rewards)


class MtGrpo(Advantage):
    """Token by token: (r - mean) / (std + 1e-4) of the group, and `turn_weight` times the same of the turn's own reward.

    The reward of a turn is compared with those of the turns of the same number in the group's episodes. The
    last turn of an episode has the first part alone, and so has one without a reward, or without another to
    compare it with; where no turn has a reward this is `group`. Source: MT-GRPO (arXiv 2505.11821), whose
    episodes have two turns.
    Example: two episodes of rewards [1, 0] and two turns, the first ones with rewards [0, 1], without the
    division: [0.5 - 0.5, 0.5] and [-0.5 + 0.5, -0.5], for the tokens of each turn
    """

    turn_weight: Annotated[float, Field(gt=0)] = 1.0
    normalize_std: bool = True

    per_token: ClassVar[bool] = True

    @property
    def teaches_where_equal(self) -> bool:
        return True

    def __call__(self, rewards: Rewards) -> torch.Tensor:
        """float64 [M]."""
        values_B = GroupAdvantage(normalize_std=self.normalize_std).of_completions(rewards)
        values_M = values_B.repeat_interleave(rewards.lengths_B)
        if (turns := rewards.turns) is None:
            return values_M
        return values_M + self.turn_weight * self._of_turns(turns, rewards.groups_B)[turns.turns_M]

    def _of_turns(self, turns: Turns, groups_B: torch.Tensor) -> torch.Tensor:
        """float64 [R]."""
        num_B = turns.completions_R.bincount(minlength=len(groups_B))
        is_last_R = turns.numbers_R == num_B[turns.completions_R] - 1
        counts_R = (~is_last_R & ~turns.rewards_R.isnan()).double()
        # What is compared: turns of one number in one group.
        likes_R = groups_B[turns.completions_R] * num_B.max() + turns.numbers_R
        return _normal(turns.rewards_R, likes_R, counts_R, self.normalize_std)


class ReinforcePlusPlus(Advantage):
    """Token by token: r - the KL penalties from this token on, whitened over all tokens of the batch.

    Source: REINFORCE++ (arXiv 2501.03262); verl's `reinforce_plus_plus` with its default gamma
    of 1. Without a KL term in the reward the value is the whitened reward.
    Example: of one completion with reward 1 and penalties [0.1, 0.2], before whitening: [0.7, 0.8]
    """

    per_token: ClassVar[bool] = True
    compares_group: ClassVar[bool] = False

    @property
    def teaches_where_equal(self) -> bool:
        return True

    def __call__(self, rewards: Rewards) -> torch.Tensor:
        """float64 [M]."""
        lengths_B, penalties_M = rewards.lengths_B, rewards.penalties_M
        if penalties_M is None:
            return whiten(rewards.totals_B, lengths_B).repeat_interleave(lengths_B)
        # The total has all penalties of its completion; a token takes those before it back.
        paid_M = penalties_M.cumsum(0) - penalties_M
        starts_M = (lengths_B.cumsum(0) - lengths_B).repeat_interleave(lengths_B)
        returns_M = rewards.totals_B.repeat_interleave(lengths_B) + paid_M - paid_M[starts_M]
        return whiten(returns_M)


class ReinforcePlusPlusBaseline(Advantage):
    """r - mean of the group, whitened over all tokens of the batch.

    Source: REINFORCE++ with baseline (arXiv 2501.03262), verl's `reinforce_plus_plus_baseline`.
    """

    @property
    def teaches_where_equal(self) -> bool:
        return True

    def __call__(self, rewards: Rewards) -> torch.Tensor:
        """float64 [B]."""
        return whiten(_above_group_mean(rewards), rewards.lengths_B)


class Opo(CompletionAdvantage):
    """r - sum(length * r) / sum(length) of the group: longer completions count more in the baseline.

    Source: OPO (arXiv 2505.23585): the baseline of least variance if the squared norm of a
    completion's gradient grows with its length.
    Example: of rewards [1, 0] with 1 and 3 tokens: [0.75, -0.25]
    """

    def of_completions(self, rewards: Rewards) -> torch.Tensor:
        groups_B = rewards.groups_B
        baseline_P = group_mean(rewards.totals_B, groups_B, rewards.sampled_B)
        return rewards.totals_B - baseline_P[groups_B]


class ReMax(CompletionAdvantage):
    """r - the reward of the prompt's greedy answer. One completion a prompt is enough.

    Source: ReMax (arXiv 2310.10505).
    """

    compares_group: ClassVar[bool] = False

    @property
    def teaches_where_equal(self) -> bool:
        return True

    @property
    def needs_greedy(self) -> bool:
        return True

    def of_completions(self, rewards: Rewards) -> torch.Tensor:
        """Raises InputError where no greedy answer was made."""
        if rewards.greedy_P is None:
            raise InputError(
                "algorithm.advantage: remax needs the reward of each prompt's greedy answer, and the"
                " batch brings none; use another advantage for such batches"
            )
        return rewards.totals_B - rewards.greedy_P[rewards.groups_B]


class PassAtK(CompletionAdvantage):
    """The mean advantage over all sets of k completions of the group, each rewarded by its best.

    With n completions of which w are wrong, and rho = 1 - C(w, k) / C(n, k):

        correct: (1 - rho) / sigma                              sigma = sqrt(rho * (1 - rho))
        wrong:   (1 - rho - C(w - 1, k - 1) / C(n - 1, k - 1)) / sigma

    All 0 where sigma is: none is correct, or fewer than k are wrong. A group of fewer than k takes
    its own number for k. Source: Pass@k training (arXiv 2508.10751), the analytical derivation.
    Example: k = 2, of rewards [1, 0, 0]: rho = 2/3, so [0.707, -0.354, -0.354]
    """

    k: Annotated[int, Field(ge=1)] = 4
    threshold: float = 0.5
    """A completion is correct if its reward is at least that."""

    takes_penalties: ClassVar[bool] = False

    @property
    def least_group(self) -> int:
        """More than k: of k completions there is one set, and nothing to compare."""
        return self.k + 1

    def of_completions(self, rewards: Rewards) -> torch.Tensor:
        """Raises InputError with a KL term in the reward."""
        _refuse_penalties(rewards, "pass_at_k")
        groups_B = rewards.groups_B
        is_wrong_B = rewards.totals_B < self.threshold
        num_P = groups_B.bincount().double()
        wrong_P = groups_B[is_wrong_B].bincount(minlength=len(num_P)).double()
        k_P = num_P.clamp(max=self.k)
        fail_P = _share_of_sets(wrong_P, num_P, k_P)
        others_fail_P = _share_of_sets(wrong_P - 1, num_P - 1, k_P - 1)
        sigma_P = (fail_P * (1 - fail_P)).sqrt()
        values_B = fail_P[groups_B] - is_wrong_B * others_fail_P[groups_B]
        sigma_B = sigma_P[groups_B]
        return (values_B / sigma_B).where(sigma_B > 0, 0.0)


class BestOfGroup(CompletionAdvantage):
    """Best reward minus second best for the best of the group, 0 for the others and for ties.

    What the group's best reward loses without the completion: leave-one-out for pass@n. Source: Tang
    et al. (arXiv 2503.19595); verl's `grpo_passk`, which divides by the standard deviation.
    Example: of rewards [1, 0.2, 0]: [0.8, 0, 0]
    """

    normalize_std: bool = False

    def of_completions(self, rewards: Rewards) -> torch.Tensor:
        values_B, groups_B = rewards.totals_B, rewards.groups_B
        best_P = values_B.new_zeros(len(groups_B.bincount())).scatter_reduce(
            0, groups_B, values_B, "amax", include_self=False
        )
        is_best_B = values_B == best_P[groups_B]
        # Of a group without others it stays the best itself.
        second_P = best_P.scatter_reduce(
            0, groups_B[~is_best_B], values_B[~is_best_B], "amax", include_self=False
        )
        is_alone_B = groups_B[is_best_B].bincount(minlength=len(best_P))[groups_B] == 1
        lead_B = (values_B - second_P[groups_B]).where(is_best_B & is_alone_B, 0.0)
        return lead_B / _spread(rewards) if self.normalize_std else lead_B


class Gdpo(Advantage):
    """Sum over terms of weight * (term - mean) / (std + 1e-4) of the group, then whitened.

    A completion to which a term does not apply (NaN) is not in its mean and std, and the term is not in
    its sum. Whitened over the batch with each completion counting once. Source: GDPO (arXiv
    2601.05242), as TRL's `normalize_then_sum` has it; verl's `gdpo` whitens over tokens.
    """

    takes_penalties: ClassVar[bool] = False

    @property
    def teaches_where_equal(self) -> bool:
        return True

    def __call__(self, rewards: Rewards) -> torch.Tensor:
        """float64 [B]. Raises InputError with a KL term in the reward."""
        _refuse_penalties(rewards, "gdpo")
        groups_B = rewards.groups_B
        values_B = rewards.totals_B.new_zeros(rewards.totals_B.shape)
        for term, given_B in rewards.terms.items():
            normal_B = _normal(given_B, groups_B, (~given_B.isnan()).double())
            values_B = values_B + rewards.term_weights[term] * normal_B
        return whiten(values_B)


def _above_group_mean(rewards: Rewards) -> torch.Tensor:
    groups_B = rewards.groups_B
    return rewards.totals_B - group_mean(rewards.totals_B, groups_B)[groups_B]


def _spread(rewards: Rewards) -> torch.Tensor:
    """The divisor of each completion, from its group."""
    return group_std(rewards.totals_B, rewards.groups_B)[rewards.groups_B] + STD_EPSILON


def _normal(
    values: torch.Tensor, groups: torch.Tensor, counts: torch.Tensor, by_std: bool = True
) -> torch.Tensor:
    """(v - mean) / (std + 1e-4) of its group, or the numerator alone; 0 for a value that does not count, NaN too."""
    values = values.nan_to_num(nan=0.0)
    above = counts * (values - group_mean(values, groups, counts)[groups])
    return above / (group_std(values, groups, counts)[groups] + STD_EPSILON) if by_std else above


def _share_of_sets(part_P: torch.Tensor, num_P: torch.Tensor, k_P: torch.Tensor) -> torch.Tensor:
    """C(part, k) / C(num, k): of the sets of k, those that lie within the part."""
    share_P = (part_P >= k_P).double()
    for taken in range(int(k_P.max()) if len(k_P) else 0):
        factor_P = (part_P - taken) / (num_P - taken).clamp(min=1)
        share_P = share_P * factor_P.where(taken < k_P, 1.0)
    return share_P


def _refuse_penalties(rewards: Rewards, name: str) -> None:
    if rewards.penalties_M is not None:
        raise InputError(
            f"algorithm.advantage: {name} looks at scores, not at their sum with a KL penalty;"
            " set algorithm.kl.place: loss"
        )
