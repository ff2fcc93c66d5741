"""What is known of each trained token of a step before its first update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch

from services.trainer.grpo.kinds import Advantage
from services.trainer.grpo.kl import adapt_coefficient, kl_estimate
from services.trainer.step.batch import PackedBatch, StepBatch
from services.trainer.step.finite import bad_rewards
from services.trainer.step.outputs import TokenOutputs
from services.trainer.step.packing import join
from services.trainer.step.part_times import PartTimes
from services.trainer.step.updates import Update
from trimaran.config import RunConfig
from trimaran.errors import InputError

WITHOUT_GRADIENT = 4
"""Times `micro_batch_tokens` in a pass that keeps no activations: those of a layer are there at a
time, and the least of the models has more layers than that."""
KL_COEFFICIENT, KL = "trainer/kl_coefficient", "trainer/kl"


class Passes(Protocol):
    """The part of `learner.Policy` that looks at the weights as they are."""

    @property
    def device(self) -> torch.device: ...
    def forward(
        self, micro_batches: Sequence[PackedBatch], entropy: bool = False
    ) -> list[TokenOutputs]: ...
    def forward_reference(self, micro_batches: Sequence[PackedBatch]) -> list[torch.Tensor]: ...
    def reduce(self, sums: torch.Tensor, largest: torch.Tensor) -> None: ...


@dataclass(frozen=True, slots=True)
class StepValues:
    """float32 [M], on the device: of all trained tokens of the step on every data-parallel rank, 0
    where a token is not computed."""

    rollout_logprobs_M: torch.Tensor
    advantages_M: torch.Tensor
    policy_logprobs_M: torch.Tensor | None
    """The trainer's own; None where those of the only update are the same."""
    reference_logprobs_M: torch.Tensor | None
    """None without a KL term."""
    kl_M: torch.Tensor | None
    """The KL term in the reward; None where it is in the loss, or nowhere."""
    kl_coefficient: float


def early_advantages(step: StepBatch, config: RunConfig) -> torch.Tensor | None:
    """float64 [M]; None where they need the KL of each token first."""
    if config.algorithm.kl.coefficient and config.algorithm.kl.place == "reward":
        return None
    return _finite_advantages(step, config, None)


def _finite_advantages(
    step: StepBatch, config: RunConfig, penalties_M: torch.Tensor | None
) -> torch.Tensor:
    """float64 [M]; 0 in groups with a reward or a penalty that is not finite, which are in no
    statistic of the batch: their update is left out, and the others shall not suffer."""
    broken = {*bad_rewards(step)}
    if penalties_M is not None and (bad_M := ~penalties_M.isfinite()).any():
        broken |= step.groups_where(bad_M)
    if not broken:
        return _advantages(step, config, penalties_M)
    kept_M = ~step.tokens_of(broken)
    values_M = torch.zeros(step.num_tokens, dtype=torch.float64)
    kept = penalties_M if penalties_M is None else penalties_M[kept_M]
    values_M[kept_M] = _advantages(step.without(broken), config, kept)
    return values_M


def _advantages(
    step: StepBatch, config: RunConfig, penalties_M: torch.Tensor | None
) -> torch.Tensor:
    """float64 [M]. Raises InputError where the function gives another number of values."""
    advantage = cast(Advantage, config.algorithm.advantage)
    values = advantage(step.rewards(config.term_weights, penalties_M))
    what, num = "token", step.num_tokens
    if not advantage.per_token:
        what, num = "completion", len(step.completions_B)
    if values.shape != (num,):
        raise InputError(
            f"algorithm.advantage: {advantage.type} gives values of shape {tuple(values.shape)} for"
            f" {num} {what}s; it must give one for each"
        )
    return values if advantage.per_token else step.spread(values)


@torch.no_grad()
def look_up(
    policy: Passes,
    step: StepBatch,
    rollout_logprobs_M: torch.Tensor,
    advantages_M: torch.Tensor | None,
    updates: Sequence[Update],
    config: RunConfig,
    previous: Mapping[str, float],
    times: PartTimes,
) -> StepValues:
    """The passes before the first update, and what follows from them.

    `updates`: of the first epoch. `previous`: the metrics of the step before. All ranks must call.
    """
    algorithm, kl = config.algorithm, config.algorithm.kl
    in_reward = advantages_M is None
    own_M: torch.Tensor | None = None
    reference_M: torch.Tensor | None = None
    kl_M: torch.Tensor | None = None
    is_compared = algorithm.correction.old == "trainer" and algorithm.num_updates > 1
    if is_compared or in_reward:
        # Packed as in the update: other shapes round otherwise, and a ratio would not be 1.
        with times.of("old_logprobs"):
            own_M = _gather(policy, step, updates, lambda _, packed: _own(policy, packed))
    if kl.coefficient:
        limit = WITHOUT_GRADIENT * config.trainer.micro_batch_tokens
        with times.of("reference_logprobs"):
            reference_M = _gather(
                *(policy, step, updates),
                lambda update, packed: _reference(policy, update, packed, limit),
            )
    coefficient = _coefficient(config, previous)
    if advantages_M is None:
        assert own_M is not None and reference_M is not None
        with times.of("advantages"):
            kl_M = kl_estimate(own_M, reference_M, kl.estimator)
            advantages_M = _finite_advantages(step, config, coefficient * kl_M.cpu().double())
    return StepValues(
        rollout_logprobs_M=rollout_logprobs_M.to(policy.device),
        advantages_M=advantages_M.float().to(policy.device),
        policy_logprobs_M=own_M,
        reference_logprobs_M=reference_M,
        kl_M=kl_M,
        kl_coefficient=coefficient,
    )


def _coefficient(config: RunConfig, previous: Mapping[str, float]) -> float:
    """The metrics of the step before are all the memory that it needs: checkpoints have them."""
    kl = config.algorithm.kl
    coefficient = previous.get(KL_COEFFICIENT, kl.coefficient)
    if kl.adaptive is None or KL not in previous:
        return coefficient if kl.adaptive else kl.coefficient
    num_completions = config.run.groups_per_step * config.rollout.group_size
    return adapt_coefficient(
        coefficient, previous[KL], kl.adaptive.target, kl.adaptive.horizon, num_completions
    )


def _gather(
    policy: Passes,
    step: StepBatch,
    updates: Sequence[Update],
    compute: Callable[[Update, Sequence[PackedBatch]], list[torch.Tensor]],
) -> torch.Tensor:
    """The values of all data-parallel ranks, of which each computes its own: 4 bytes a token travel. In a later
    epoch another rank may have the token."""
    values_M = torch.zeros(step.num_tokens, device=policy.device)
    for update in updates:
        packed = update.pack(policy.device)
        for one, found in zip(packed, compute(update, packed), strict=True):
            values_M[one.places_M] = found
    policy.reduce(values_M, torch.zeros(1, device=policy.device))
    return values_M


def _own(policy: Passes, packed: Sequence[PackedBatch]) -> list[torch.Tensor]:
    return [outputs.logprobs_M for outputs in policy.forward(packed)]


def _reference(
    policy: Passes, update: Update, packed: Sequence[PackedBatch], limit: int
) -> list[torch.Tensor]:
    """The values of each micro-batch, with several in a pass."""
    joined = [*join([len(one.token_ids_N) for one in packed], limit)]
    wide = [
        packed[places[0]]
        if len(places) == 1
        else update.pack_pieces(
            tuple(piece for place in places for piece in update.micro_batches[place]), policy.device
        )
        for places in joined
    ]
    # Also without a micro-batch: others' tokens may pass this rank's experts.
    return [
        part
        for places, found in zip(joined, policy.forward_reference(wide), strict=True)
        for part in found.split([len(packed[place].targets_M) for place in places])
    ]
