"""Losses: the policy-gradient term of each trained token, with gradient.

`ratio` is the policy's probability of a token over the old one, from log-probabilities whose
difference is limited to -20..20 nats; beyond them it has no gradient.
Axes: M trained tokens of a micro-batch, B completions.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, model_validator

from services.trainer.grpo.kinds import Loss, TokenLosses, Tokens
from services.trainer.grpo.ratios import limited, limited_exp

if TYPE_CHECKING:
    import torch

Below = Annotated[float, Field(gt=0, le=1)]
"""How far a ratio may be below 1; 1 is no bound, as a ratio is above 0."""
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]


class PpoClip(Loss):
    """-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A).

    With `dual_clip` c it is at most -c * A where A < 0: a token that the policy likes much more than
    before no longer pushes without bound. Sources: PPO (arXiv 1707.06347); two bounds: DAPO (arXiv
    2503.14476); dual clip: Ye et al. (arXiv 1912.09729), where c = 3.
    """

    clip_low: Below = 0.2
    clip_high: Positive = 0.2
    dual_clip: Annotated[float, Field(gt=1)] | None = None

    per_token: ClassVar[bool] = True

    def __call__(self, logprobs_M: torch.Tensor, tokens: Tokens) -> TokenLosses:
        ratios_M = limited_exp(logprobs_M - tokens.old_logprobs_M)
        gains_M, was_clipped_M = _clip(ratios_M, tokens.advantages_M, self.clip_low, self.clip_high)
        metrics = {"clipped/share": was_clipped_M.float()}
        if self.dual_clip is not None:
            least_M = self.dual_clip * tokens.advantages_M
            too_bad_M = (tokens.advantages_M < 0) & (gains_M < least_M)
            gains_M = least_M.where(too_bad_M, gains_M)
            metrics["dual_clipped/share"] = too_bad_M.float()
        return TokenLosses(-gains_M, metrics)


class Gspo(Loss):
    """PPO's clipped loss with one ratio a completion: the geometric mean of its tokens' ratios.

    A token has the completion's ratio as its value, and that times its own log-probability's gradient,
    so that `sequence_mean` gives the paper's objective. Source: GSPO (arXiv 2507.18071), and its
    GSPO-token for the gradient; the bounds are those of its section 5.1.
    """

    clip_low: Below = 3e-4
    clip_high: Positive = 4e-4

    def __call__(self, logprobs_M: torch.Tensor, tokens: Tokens) -> TokenLosses:
        ratios_M = _completion_ratio(logprobs_M - tokens.old_logprobs_M, tokens)
        gains_M, was_clipped_M = _clip(ratios_M, tokens.advantages_M, self.clip_low, self.clip_high)
        return TokenLosses(-gains_M, {"clipped/share": was_clipped_M.float()})


class Cispo(Loss):
    """-clip(ratio, 1 - clip_low, 1 + clip_high) * A * logprob, without a gradient through the ratio.

    Every token keeps a gradient. Source: CISPO (MiniMax-M1, arXiv 2506.13585), which
    has no lower bound; the upper one is that of verl's example.
    """

    clip_low: Annotated[float, Field(ge=0, le=1)] = 1.0
    """0, as EasyR1's example has it: no weight is below 1."""
    clip_high: Positive = 0.2

    per_token: ClassVar[bool] = True

    def __call__(self, logprobs_M: torch.Tensor, tokens: Tokens) -> TokenLosses:
        ratios_M = limited_exp(logprobs_M.detach() - tokens.old_logprobs_M)
        weights_M = ratios_M.clamp(1 - self.clip_low, 1 + self.clip_high)
        return TokenLosses(
            -weights_M * tokens.advantages_M * logprobs_M,
            {"clipped/share": (weights_M != ratios_M).float()},
        )


class Sapo(Loss):
    """-sigmoid(tau * (ratio - 1)) * 4 / tau * A: a gate that closes smoothly instead of a clip.

    The gradient at ratio 1 is that of PPO. A larger tau closes the gate sooner. Source: SAPO
    (arXiv 2511.20347).
    """

    tau_positive: Positive = 1.0
    """Where A > 0."""
    tau_negative: Positive = 1.05
    """Elsewhere."""

    per_token: ClassVar[bool] = True

    def __call__(self, logprobs_M: torch.Tensor, tokens: Tokens) -> TokenLosses:
        ratios_M = limited_exp(logprobs_M - tokens.old_logprobs_M)
        advantages_M = tokens.advantages_M
        taus_M = advantages_M.new_full(advantages_M.shape, self.tau_negative)
        taus_M = taus_M.masked_fill(advantages_M > 0, self.tau_positive)
        gates_M = (taus_M * (ratios_M - 1)).sigmoid() * 4 / taus_M
        return TokenLosses(-gates_M * advantages_M)


class GeometricMean(Loss):
    """-A * geometric mean of the completion's ratios, each of them clipped first, in nats.

    A token's log-ratio is at most `clip_high` where A >= 0, at least -`clip_low` where A < 0. As with
    GSPO a token's gradient is its completion's ratio times its own, and `sequence_mean` gives the
    paper's objective. Source: GMPO (arXiv 2507.20673), verl's `geo_mean`.
    """

    clip_low: Positive = 0.4
    clip_high: Positive = 0.4

    def __call__(self, logprobs_M: torch.Tensor, tokens: Tokens) -> TokenLosses:
        advantages_M = tokens.advantages_M
        logs_M = limited(logprobs_M - tokens.old_logprobs_M)
        clipped_M = logs_M.clamp(max=self.clip_high).where(
            advantages_M >= 0, logs_M.clamp(min=-self.clip_low)
        )
        return TokenLosses(
            -_completion_ratio(clipped_M, tokens) * advantages_M,
            {"clipped/share": (clipped_M != logs_M).float().detach()},
        )


class ClipCov(Loss):
    """PPO's clipped loss without some tokens whose covariance is large: these keep the entropy up.

    The covariance of a token is (A - mean A) * (logprob - mean logprob), means over the micro-batch. Of the
    tokens that PPO does not clip and whose covariance is between `lower` and `upper`, share * M are
    drawn (one at least) and left out. So the loss depends on how the batch is cut into micro-batches.
    Source: Clip-Cov (arXiv 2505.22617), verl's `clip_cov`.
    """

    clip_low: Below = 0.2
    clip_high: Positive = 0.2
    share: Share = 2e-4
    """The covariances of the tokens of a micro-batch."""
    lower: float = 1.0
    upper: float = 5.0

    needs_all: ClassVar[bool] = True

    @model_validator(mode="after")
    def _is_a_range(self) -> ClipCov:
        if self.lower >= self.upper:
            raise ValueError(f"lower ({self.lower:g}) must be less than upper ({self.upper:g})")
        return self

    def __call__(self, logprobs_M: torch.Tensor, tokens: Tokens) -> TokenLosses:
        ratios_M = limited_exp(logprobs_M - tokens.old_logprobs_M)
        gains_M, was_clipped_M = _clip(ratios_M, tokens.advantages_M, self.clip_low, self.clip_high)
        covariances_M = _covariances(logprobs_M, tokens)
        may_go_M = (self.lower < covariances_M) & (covariances_M < self.upper) & ~was_clipped_M
        places = may_go_M.nonzero().flatten()
        number = min(max(int(self.share * len(logprobs_M)), 1), len(places))
        # On the host, so that every device draws alike.
        drawn = Random(tokens.seed).sample(range(len(places)), number)
        left_out_M = may_go_M.new_zeros(may_go_M.shape).index_fill(0, places[drawn], True)
        return TokenLosses(
            -gains_M.masked_fill(left_out_M, 0.0),
            {
                "clipped/share": was_clipped_M.float(),
                "covariance_clipped/share": left_out_M.float(),
            },
        )


class KlCov(Loss):
    """-ratio * A, and coefficient * |logprob - old| more for the tokens of the largest covariances.

    These are share * M tokens (one at least) of the micro-batch, by the covariance that `ClipCov` has, so the
    loss depends on how the batch is cut into micro-batches. Source: KL-Cov (arXiv 2505.22617), verl's `kl_cov`.
    """

    share: Share = 2e-4
    """The covariances of the tokens of a micro-batch."""
    coefficient: Positive = 1.0

    needs_all: ClassVar[bool] = True

    def __call__(self, logprobs_M: torch.Tensor, tokens: Tokens) -> TokenLosses:
        logs_M = limited(logprobs_M - tokens.old_logprobs_M)
        number = min(max(int(self.share * len(logprobs_M)), 1), len(logprobs_M))
        largest = _covariances(logprobs_M, tokens).topk(number).indices
        penalized_M = logprobs_M.detach().new_zeros(logprobs_M.shape).index_fill(0, largest, 1.0)
        losses_M = -logs_M.exp() * tokens.advantages_M
        return TokenLosses(
            losses_M + self.coefficient * penalized_M * logs_M.abs(),
            {"penalized/share": penalized_M},
        )


def _clip(
    ratios_M: torch.Tensor, advantages_M: torch.Tensor, low: float, high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """min(ratio * A, clip(ratio) * A), and where the clip made it smaller."""
    free_M = ratios_M * advantages_M
    clipped_M = ratios_M.clamp(1 - low, 1 + high) * advantages_M
    return free_M.minimum(clipped_M), (clipped_M < free_M).detach()


def _completion_ratio(logs_M: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    """exp of the mean over each completion, [M]; the gradient to a token's log is that value."""
    means_M = tokens.mean(logs_M.detach())[tokens.completions_M]
    return limited_exp(means_M + (logs_M - logs_M.detach()))


def _covariances(logprobs_M: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    """Without gradient."""
    current_M, advantages_M = logprobs_M.detach(), tokens.advantages_M
    return (advantages_M - advantages_M.mean()) * (current_M - current_M.mean())
