"""One step of GRPO on a policy: the algorithm, with the machinery behind `Policy`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Protocol

import torch

from services.trainer.batch import PackedBatch, group_lengths, pack, prepare_mini_batch
from services.trainer.grpo.advantages import has_signal
from services.trainer.grpo.loss import TokenValues, grpo_loss
from services.trainer.packing import plan_micro_batches
from trimaran.config import RunConfig
from trimaran.types import Score, ScoredGroup, TrainingBatch


class Policy(Protocol):
    """Trainable weights, spread over ranks."""

    @property
    def device(self) -> torch.device: ...
    @property
    def data_rank(self) -> int: ...
    def logprobs(self, packed: PackedBatch) -> torch.Tensor:
        """Of the trained tokens, float32 [M], at the sampling temperature, with gradient."""
        ...

    def reference_logprobs(self, packed: PackedBatch) -> torch.Tensor:
        """The same of the frozen initial policy, without gradient."""
        ...

    def zero_gradients(self) -> None: ...
    def update(self, learning_rate: float) -> float:
        """Sum gradients over the data-parallel ranks, clip, step; the gradient's norm before."""
        ...

    def reduce(self, sums: torch.Tensor, largest: torch.Tensor) -> None:
        """In place over the data-parallel ranks: add up one, take the maxima of the other."""
        ...


class StepSums:
    """What the metrics of a step are made of, summed over micro-batches, updates and ranks."""

    NAMES = ("loss", "tokens", "packed", "clipped", "importance", "divergence", "gap", "logprob")

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(len(self.NAMES), dtype=torch.float32, device=device)
        self._importance_max = torch.zeros(1, dtype=torch.float32, device=device)

    def add(self, **values: torch.Tensor | float) -> None:
        for name, value in values.items():
            self._sums[self.NAMES.index(name)] += value

    def see_importance(self, largest: torch.Tensor) -> None:
        self._importance_max.clamp_(min=largest)

    def finish(self, policy: Policy) -> tuple[dict[str, float], float]:
        policy.reduce(self._sums, self._importance_max)
        return dict(zip(self.NAMES, self._sums.tolist(), strict=True)), self._importance_max.item()


def train_step(policy: Policy, batch: TrainingBatch, config: RunConfig) -> dict[str, float]:
    """All updates of one batch. Returns the step's metrics, the same on every rank."""
    begin = time.perf_counter()
    algorithm, updates = config.algorithm, config.algorithm.updates_per_batch
    per_update = len(batch.groups) // updates
    mini_batches = [
        _pack_share(policy, batch.groups[start : start + per_update], config)
        for start in range(0, updates * per_update, per_update)
    ]
    old_logprobs: list[list[torch.Tensor | None]] = [[None] * len(mini) for mini in mini_batches]
    if updates > 1:
        with torch.no_grad():
            old_logprobs = [[policy.logprobs(one) for one in mini] for mini in mini_batches]
    learning_rate = _learning_rate(config, batch.step)
    sums = StepSums(policy.device)
    norms = []
    for mini, olds in zip(mini_batches, old_logprobs, strict=True):
        policy.zero_gradients()
        for packed, old in zip(mini, olds, strict=True):
            _accumulate(policy, packed, old, config, sums)
        norms.append(policy.update(learning_rate))
    totals, importance_max = sums.finish(policy)
    seconds = time.perf_counter() - begin
    tokens = max(totals["tokens"], 1.0)
    metrics = {
        "trainer/loss": totals["loss"] / updates,
        "trainer/grad_norm": fmean(norms),
        "trainer/learning_rate": learning_rate,
        "trainer/clip_fraction": totals["clipped"] / tokens,
        "trainer/importance_weight/mean": totals["importance"] / tokens,
        "trainer/importance_weight/max": importance_max,
        "trainer/logprob_diff/mean": totals["gap"] / tokens,
        # The mean of -log p over sampled tokens estimates the entropy without another pass.
        "trainer/entropy": -totals["logprob"] / tokens,
        "trainer/tokens": totals["packed"],
        "trainer/trained_tokens": totals["tokens"],
        "trainer/seconds": seconds,
        "trainer/tokens_per_second": totals["packed"] / seconds,
        **_reward_metrics(batch.groups),
    }
    if algorithm.kl_coefficient:
        metrics["trainer/kl"] = totals["divergence"] / tokens
    return metrics


def _pack_share(
    policy: Policy, groups: Sequence[ScoredGroup], config: RunConfig
) -> list[PackedBatch]:
    """This rank's micro-batches of one mini-batch."""
    samples = prepare_mini_batch(groups, config.algorithm)
    group_tokens = [group_lengths(group).num_tokens for group in samples]
    plan = plan_micro_batches(
        group_tokens, config.trainer.data_parallel, config.trainer.micro_batch_tokens
    )
    return [
        pack([samples[place] for place in places], policy.device)
        for places in plan[policy.data_rank]
    ]


def _accumulate(
    policy: Policy,
    packed: PackedBatch,
    old_logprobs: torch.Tensor | None,
    config: RunConfig,
    sums: StepSums,
) -> None:
    """Forward and backward of one micro-batch; gradients add up in the policy."""
    reference = policy.reference_logprobs(packed) if config.algorithm.kl_coefficient else None
    logprobs = policy.logprobs(packed)
    current = logprobs.detach()
    old = current if old_logprobs is None else old_logprobs
    values = TokenValues(
        old_logprobs=old,
        rollout_logprobs=packed.rollout_logprobs_M,
        advantages=packed.advantages_M,
        weights=packed.weights_M,
        reference_logprobs=reference,
    )
    parts = grpo_loss(logprobs, values, config.algorithm)
    parts.loss.backward()
    sums.add(
        loss=parts.loss.detach(),
        tokens=len(packed.targets_M),
        packed=len(packed.token_ids_N),
        clipped=parts.clipped,
        importance=parts.importance,
        divergence=parts.divergence,
        gap=(old - packed.rollout_logprobs_M).abs().sum(),
        logprob=current.sum(),
    )
    sums.see_importance(parts.importance_max)


def _learning_rate(config: RunConfig, step: int) -> float:
    """Linear warm-up over the first `warmup_steps` steps, then constant."""
    section = config.trainer
    return section.learning_rate * min(1.0, step / max(section.warmup_steps, 1))


def _reward_metrics(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    rewards = [
        [verdict.reward for verdict in scored.verdicts_G if isinstance(verdict, Score)]
        for scored in groups
    ]
    equal = [not has_signal(group, [True] * len(group)) for group in rewards]
    spreads = [pstdev(group) for group in rewards if group]
    return {
        "trainer/reward/std": fmean(spreads) if spreads else 0.0,
        "trainer/equal_reward_groups/share": fmean(equal),
    }
