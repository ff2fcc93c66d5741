"""One step of GRPO on a policy: the algorithm, with the machinery behind `Policy`.

    batch ─▶ pack ─▶ old and reference passes ─▶ advantages ─▶ each update: loss, gradient, step

An optimizer update with a number that is not finite, in what arrived, in a loss or in the gradient,
changes nothing: weights, moments and the optimizer's count of updates stay as they are. All ranks
decide alike, and the step goes on with its next update.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

import torch

from services.trainer.step.batch import PackedBatch, StepBatch
from services.trainer.step.expert_loads import load_metrics
from services.trainer.step.finite import describe, find_input_faults
from services.trainer.step.learning_rate import learning_rate
from services.trainer.step.objective import Objective, sum_names, token_metrics, token_weights
from services.trainer.step.outputs import TokenLoss, TokenOutputs
from services.trainer.step.part_times import PartTimes
from services.trainer.step.sums import TokenSums
from services.trainer.step.updates import Update, plan_updates
from services.trainer.step.values import early_advantages, look_up
from trimaran.config import AlgorithmSection, RunConfig
from trimaran.types import Group, TrainingBatch


class Policy(Protocol):
    """Trainable weights, spread over ranks, with their gradients and their optimizer.

    `MegatronPolicy` is the real one; tests/trainer/plain_policy.py has a small one on transformers.
    One update of the weights, as `train_step` makes it:

        policy.zero_gradients()
        policy.forward_backward(micro_batches, lambda index, outputs: outputs.logprobs_M.sum())
        norm = policy.sum_gradients()
        policy.update(learning_rate=1e-6)
    """

    @property
    def device(self) -> torch.device: ...
    @property
    def data_rank(self) -> int: ...
    @property
    def attention_cost(self) -> float:
        """The cost of attending to one token, in passes of a token through all the rest of a layer."""
        ...

    def image_cost(self, group: Group) -> float:
        """The cost of seeing the images of its prompt, in passes of a token through a rank's layers; 0 without any."""
        ...

    def share_experts(self, updates: Sequence[Update]) -> list[Update]:
        """With the engine's choices of experts that this rank needs for them; they are all updates of a
        step. Where choices are replayed. All ranks must call."""
        ...

    def forward(
        self, micro_batches: Sequence[PackedBatch], entropy: bool = False
    ) -> list[TokenOutputs]:
        """Without gradient. Every rank of a pipeline gets the answer."""
        ...

    def forward_reference(self, micro_batches: Sequence[PackedBatch]) -> list[torch.Tensor]:
        """Log-probabilities, float32 [M], of the frozen initial policy."""
        ...

    def forward_backward(
        self, micro_batches: Sequence[PackedBatch], loss: TokenLoss, entropy: bool = False
    ) -> None:
        """Gradients add up. `loss` is called once a micro-batch, in order, where its tokens' outputs
        are: on the last stage of a pipeline."""
        ...

    def zero_gradients(self) -> None:
        """Before the first micro-batch of an update."""
        ...

    def sum_gradients(self) -> float:
        """Over all ranks that hold the same weights; the norm of the whole. All ranks must call."""
        ...

    def update(self, learning_rate: float) -> None:
        """Clip the summed gradients and step."""
        ...

    def reduce(self, sums: torch.Tensor, largest: torch.Tensor) -> None:
        """In place over the data-parallel ranks: add up one, take the maxima of the other. Of a
        pipeline's last stage; every stage gets the answer."""
        ...

    def take_metrics(self) -> dict[str, float]:
        """What the policy itself has counted since the last call, such as replayed choices of experts. All
        ranks must call."""
        ...

    def take_expert_loads(self) -> torch.Tensor:
        """Tokens that each expert got since the last call, int64 [L, E] on the host: L layers, 0 for a model
        without experts. All ranks must call."""
        ...

    def end_step(self) -> None:
        """Forgets what its passes had in common, such as features of images."""
        ...

    def any_rank(self, flags: torch.Tensor) -> torch.Tensor:
        """bool, like `flags`: which are set on any rank. All ranks must call."""
        ...


@dataclass(frozen=True, slots=True)
class StepResult:
    """The same on every rank."""

    metrics: dict[str, float]
    nonfinite: str = ""
    """Why updates were left out, with the groups; empty where all were made."""


def train_step(
    policy: Policy, batch: TrainingBatch, config: RunConfig, previous: Mapping[str, float] = {}
) -> StepResult:
    """All updates of one batch, on every rank with the same batch.

    `previous`: the metrics of the step before, where there was one.
    Example: train_step(policy, batch, config).metrics["trainer/loss"]
    """
    begin, times = time.perf_counter(), PartTimes(policy.device)
    algorithm = config.algorithm
    step = StepBatch.of(batch.groups, algorithm.truncated == "mask")
    rollout_M = step.rollout_logprobs()
    with times.of("advantages"):
        advantages_M = early_advantages(step, config)
    with times.of("planning"):
        computed = _computed(step, advantages_M, algorithm)
        faulty = find_input_faults(step, computed, rollout_M, advantages_M)
        parts = step if algorithm.needs_whole_completions else step.by_sequence()
        if parts is not step:
            computed = _computed(parts, advantages_M, algorithm)
        updates = plan_updates(
            parts,
            computed,
            faulty,
            config,
            batch.step,
            policy.data_rank,
            policy.attention_cost,
            policy.image_cost,
        )
        if config.trainer.router.replay:
            updates = policy.share_experts(updates)
    first_epoch = updates[: algorithm.updates_per_batch]
    values = look_up(policy, step, rollout_M, advantages_M, first_epoch, config, previous, times)
    rate = learning_rate(config.trainer, batch.step, batch.num_steps)
    names = sum_names(algorithm)
    totals = TokenSums(names, policy.device)
    made: list[Update] = []
    norms: list[float] = []
    faults: list[str] = []
    for number, update in enumerate(updates):
        sums = TokenSums(names, policy.device)
        seed = random.Random(f"{config.run.seed}/{batch.step}/{number}").getrandbits(62)
        with times.of("gradient"):
            weights_M = token_weights(step, update, algorithm, policy.device)
            objective = Objective(algorithm, values, weights_M, seed)
            found, norm = _compute_gradient(policy, update, objective, sums)
        if found:
            faults += found
            continue
        with times.of("optimizer"):
            policy.update(rate)
        totals.merge(sums)
        norms.append(norm)
        made.append(update)
    metrics = {
        "trainer/learning_rate": rate,
        "trainer/nonfinite_updates": float(len(updates) - len(made)),
        "trainer/imbalance": fmean(update.imbalance for update in updates),
        **token_metrics(policy, algorithm, totals, norms, values.kl_coefficient, made),
        **load_metrics(policy.take_expert_loads()),
        **policy.take_metrics(),
        **times.take(),
    }
    policy.end_step()
    seconds = time.perf_counter() - begin
    metrics["trainer/seconds"] = seconds
    metrics["trainer/tokens_per_second"] = metrics["trainer/packed_tokens"] / seconds
    return StepResult(metrics, describe(faults))


def _computed(
    step: StepBatch, advantages_M: torch.Tensor | None, algorithm: AlgorithmSection
) -> frozenset[int]:
    """Completions that have a gradient. To know it early spares the passes of the others."""
    trained = (index for index, length in enumerate(step.lengths_B) if length)
    if advantages_M is None or algorithm.needs_all:
        return frozenset(trained)
    return frozenset(index for index in trained if advantages_M[step.tokens(index)].any())


def _compute_gradient(
    policy: Policy,
    update: Update,
    objective: Objective,
    sums: TokenSums,
) -> tuple[tuple[str, ...], float]:
    """What is not finite, if anything, and the gradient's norm. The same on every rank."""
    if update.faults:  # each rank looked at all inputs
        return update.faults, 0.0
    policy.zero_gradients()
    _accumulate(policy, update.pack(policy.device), objective, sums)
    norm = policy.sum_gradients()
    is_bad = torch.tensor([not (math.isfinite(norm) and sums.finite)])
    if not policy.any_rank(is_bad).item():
        return (), norm
    numbers = [update.step.groups[place].group.number for place in update.groups]
    return (f"groups {min(numbers)} to {max(numbers)}: their loss or gradient is not finite",), norm


def _accumulate(
    policy: Policy, packed: Sequence[PackedBatch], objective: Objective, sums: TokenSums
) -> None:
    policy.forward_backward(
        packed,
        lambda index, outputs: objective(packed[index], outputs, sums),
        entropy=objective.algorithm.entropy.is_computed,
    )
