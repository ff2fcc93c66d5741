"""The section `algorithm`: advantages, losses, KL, corrections."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, model_validator

from trimaran.choices import ADVANTAGES, AGGREGATIONS, LOSSES
from trimaran.config.recipes import RecipeName
from trimaran.config.section import Options, Section, one_of
from trimaran.config.values import Positive


class AdaptiveSection(Section):
    """A KL coefficient that follows a target. `adaptive: {target: 0.05}`"""

    target: Annotated[float, Field(gt=0)]
    """Nats a token."""
    horizon: Positive = 10000
    """Completions in which an error of 20% or more changes the coefficient by a fifth."""


class KlSection(Section):
    """The divergence from the frozen initial policy. `kl: {coefficient: 0.001, estimator: k3}`"""

    coefficient: Annotated[float, Field(ge=0)] = 0.0
    """0 keeps no reference."""
    adaptive: AdaptiveSection | None = None
    """Without it the coefficient stays."""
    place: Literal["loss", "reward"] = "loss"
    estimator: Literal["k1", "abs", "k2", "k3"] = "k3"
    offload: bool = False
    """The reference waits in the host's memory and is on the device during its passes only."""

    @model_validator(mode="after")
    def _adapts_something(self) -> KlSection:
        if self.adaptive and not self.coefficient:
            raise ValueError("adaptive starts from coefficient; give one above 0")
        return self


def _check_bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = bounds
    if not 0 <= low < 1 < high:
        raise ValueError(f"must be [low, high] with 1 between them (given: [{low:g}, {high:g}])")
    return bounds


Bounds = Annotated[tuple[float, float], AfterValidator(_check_bounds)]


class CorrectionSection(Section):
    """For the difference between the rollout's numbers, or its older weights, and the trainer's.

    correction: {weights: sequence, cap: 2.0, geometric_bounds: [0.99, 1.01]}
    """

    old: Literal["trainer", "rollout"] = "trainer"
    """Whose log-probabilities the loss takes its ratio to: the trainer's own before the first update
    of the batch (decoupled PPO), or the rollout's, which leaves nothing to correct."""
    weights: Literal["token", "sequence", "none"] = "token"
    """The importance weight exp(old - rollout): of each token, or the product over its completion."""
    cap: Annotated[float, Field(gt=0)] | None = 2.0
    """Truncates the weights."""
    token_bounds: Bounds | None = None
    """Tokens whose exp(old - rollout) lies outside do not train (IcePop)."""
    geometric_bounds: Bounds | None = None
    """Completions whose geometric mean of it lies outside do not train."""

    @model_validator(mode="after")
    def _corrects_something(self) -> CorrectionSection:
        if self.old == "rollout" and (self.token_bounds or self.geometric_bounds):
            raise ValueError("with old: rollout nothing differs; leave the bounds out")
        return self


class EntropySection(Section):
    """The entropy of the policy's next token. `entropy: {coefficient: 0.001}`"""

    coefficient: float = 0.0
    """The weight of a bonus in the loss, on the exact entropy of each trained token."""
    exact: bool = False
    """Measure it also without a bonus; else the metric is the mean of -log p of the sampled tokens."""

    @property
    def is_computed(self) -> bool:
        return self.exact or self.coefficient != 0.0


Advantage = Annotated[SerializeAsAny[Options], BeforeValidator(one_of(ADVANTAGES, "group"))]
Loss = Annotated[SerializeAsAny[Options], BeforeValidator(one_of(LOSSES, "ppo_clip"))]
Aggregation = Annotated[
    SerializeAsAny[Options], BeforeValidator(one_of(AGGREGATIONS, "token_mean"))
]


class DynamicSamplingSection(Section):
    """Groups whose rewards are all equal, which have no gradient, are replaced by those of further
    prompts (DAPO). `dynamic_sampling: {max_replaced: 3, term: accuracy}`"""

    term: str | None = None
    """One of reward.rules: equal are groups in which it is, such as those that are right or wrong
    throughout, whatever else is rewarded. Without it the whole reward."""

    max_replaced: Annotated[float, Field(gt=0, le=1000)] = 3.0
    """At most so many times run.groups_per_step between two steps; after that such groups train."""


class AlgorithmSection(Section):
    """GRPO and its family. docs/algorithms.md gives the formulas and the options of each type;
    docs/extending.md how installed packages add `loss`, `advantage` and `aggregation`.

    algorithm: {loss: {type: ppo_clip, clip_high: 0.28}, kl: {coefficient: 0.001}}
    """

    recipe: RecipeName | None = None
    """grpo, dr_grpo, dapo or gspo: the keys that a paper sets. Those that are given go before."""
    advantage: Advantage = cast(Any, "group")
    loss: Loss = cast(Any, "ppo_clip")
    aggregation: Aggregation = cast(Any, "token_mean")
    kl: KlSection = KlSection()
    correction: CorrectionSection = CorrectionSection()
    entropy: EntropySection = EntropySection()
    dynamic_sampling: DynamicSamplingSection | None = None
    """Without it every group trains."""
    truncated: Literal["train", "mask"] = "train"
    """mask: completions that were cut off, at a limit of tokens or of turns, count in the advantages, and do not
    train."""
    updates_per_batch: Positive = 1
    """Optimizer updates, each on a part of the step's groups."""
    epochs: Annotated[int, Field(ge=1, le=100)] = 1
    """How often each batch is gone through."""
    shuffle: bool = False
    """Which groups make an update is drawn again in each epoch; else they stay in prompt order."""

    @model_validator(mode="after")
    def _agrees(self) -> AlgorithmSection:
        """What the functions say of themselves."""
        advantage: Any = self.advantage
        in_reward = self.kl.coefficient > 0 and self.kl.place == "reward"
        if in_reward and not advantage.takes_penalties:
            raise ValueError(
                f"advantage: {advantage.type} looks at scores, not at their sum with a KL penalty; set kl.place:"
                " loss"
            )
        if self.dynamic_sampling and advantage.teaches_where_equal:
            whitened = ", whiten: true" if getattr(advantage, "whiten", False) else ""
            raise ValueError(
                f"dynamic_sampling: with advantage {advantage.type}{whitened} a group of equal"
                " rewards may teach something; leave dynamic_sampling out"
            )
        return self

    @property
    def num_updates(self) -> int:
        """Optimizer updates of a step."""
        return self.updates_per_batch * self.epochs

    @property
    def needs_greedy(self) -> bool:
        """Whether each prompt is also answered at temperature 0, for the advantage."""
        return cast(Any, self.advantage).needs_greedy

    @property
    def needs_whole_completions(self) -> bool:
        """Whether the loss of a token depends on others of its completion, so that these stand in one micro-batch."""
        loss, correction = cast(Any, self.loss), self.correction
        by_sequence = correction.weights == "sequence" or correction.geometric_bounds is not None
        return by_sequence or not loss.per_token

    @property
    def needs_all(self) -> bool:
        """Whether also completions whose advantage is 0 have a gradient."""
        loss: Any = self.loss
        return loss.needs_all or self.kl.coefficient > 0 or self.entropy.coefficient != 0
