"""One step of GRPO on a policy: the algorithm, with the machinery behind `Policy`.

An optimizer update with a number that is not finite, in what arrived, in a loss or in the gradient,
changes nothing: weights, moments and the optimizer's count of updates stay as they are. All ranks
decide alike, and the step goes on with its next update.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import Protocol

import torch

from services.trainer.batch import (
    GroupSamples,
    PackedBatch,
    count_trained,
    group_lengths,
    pack,
    prepare_mini_batch,
)
from services.trainer.finite import describe, find_input_faults
from services.trainer.grpo.loss import Loss, TokenValues
from services.trainer.outputs import Loss as TokenLoss
from services.trainer.outputs import TokenOutputs
from services.trainer.packing import MicroBatch, Piece, join, plan_micro_batches
from services.trainer.sums import TokenSums
from trimaran.choices import ADVANTAGES, AGGREGATIONS, LOSSES
from trimaran.config import AlgorithmSection, RunConfig
from trimaran.types import ScoredGroup, TrainingBatch


class Policy(Protocol):
    """Trainable weights, spread over ranks, with their gradients and their optimizer.

    `MegatronPolicy` is the real one; tests/trainer/plain_policy.py has a small one on transformers.
    One update of the weights, as `train_step` makes it:

        policy.zero_gradients()
        policy.forward_backward([packed], lambda index, outputs: outputs.logprobs_M.sum())
        norm = policy.sum_gradients()
        policy.update(learning_rate=1e-6)
    """

    @property
    def device(self) -> torch.device: ...
    @property
    def data_rank(self) -> int: ...
    @property
    def attention_cost(self) -> float:
        """Of attending to one token, in passes of a token through all the rest of a layer."""
        ...

    def forward(
        self, micro_batches: Sequence[PackedBatch], entropy: bool = False
    ) -> list[TokenOutputs]:
        """Without gradient; every rank of a pipeline gets the answer."""
        ...

    def forward_reference(self, micro_batches: Sequence[PackedBatch]) -> list[torch.Tensor]:
        """Log-probabilities of the frozen initial policy, in the same way."""
        ...

    def forward_backward(
        self, micro_batches: Sequence[PackedBatch], loss: TokenLoss, entropy: bool = False
    ) -> None:
        """Gradients add up. `loss` is called once a micro-batch, in order, on the last stage of a
        pipeline only."""
        ...

    def zero_gradients(self) -> None:
        """Before the first micro-batch of an update."""
        ...

    def own_gradient_norm(self) -> float:
        """Of what this rank alone has accumulated."""
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

    def any_rank(self, flags: torch.Tensor) -> torch.Tensor:
        """bool, like `flags`: which are set on any rank. All ranks must call."""
        ...


@dataclass(frozen=True, slots=True)
class StepResult:
    """The same on every rank."""

    metrics: dict[str, float]
    nonfinite: str = ""
    """Why updates were left out, with the groups; empty where all were made."""


@dataclass(frozen=True, slots=True)
class _MiniBatch:
    groups: tuple[ScoredGroup, ...]
    samples: list[GroupSamples]
    """Of each group."""
    micro_batches: tuple[MicroBatch, ...]
    """This rank's; none where an input is not finite."""
    packed: tuple[PackedBatch, ...]
    """The same as tensors."""
    imbalance: float
    """Of the ranks' work, 1 or more."""
    faults: tuple[str, ...]
    """Of the inputs."""
    pieces: tuple[MicroBatch, ...] = ()
    """Of each data-parallel rank, those of all its micro-batches."""

    def pack(self, pieces: MicroBatch, device: torch.device) -> PackedBatch:
        return pack([self._samples_of(piece) for piece in pieces], device)

    def num_trained(self, piece: Piece) -> int:
        return sum(sample.num_trained for sample in self._samples_of(piece))

    def _samples_of(self, piece: Piece) -> GroupSamples:
        return tuple(self.samples[piece.place][index] for index in piece.completions)


@dataclass(frozen=True, slots=True)
class _Fixed:
    """What an update of a micro-batch compares with; of each trained token, float32 [M]."""

    old: torch.Tensor | None
    """None where they are those of the update itself."""
    reference: torch.Tensor | None
    """None without a KL term."""

    def split(self, counts: list[int]) -> list[_Fixed]:
        """By tokens."""
        nothing = [None] * len(counts)
        olds = nothing if self.old is None else self.old.split(counts)
        references = nothing if self.reference is None else self.reference.split(counts)
        return [_Fixed(*pair) for pair in zip(olds, references, strict=True)]


WITHOUT_GRADIENT = 4
"""Times `micro_batch_tokens` in a pass that keeps no activations: those of a layer are there at a
time, and the least of the models has more layers than that."""


def check_algorithm(algorithm: AlgorithmSection) -> None:
    """Raises InputError where a function of an installed package cannot be loaded."""
    LOSSES.load(algorithm.loss)
    ADVANTAGES.load(algorithm.advantage)
    AGGREGATIONS.load(algorithm.aggregation)


def train_step(policy: Policy, batch: TrainingBatch, config: RunConfig) -> StepResult:
    """All updates of one batch, on every rank with the same batch.

    Example: train_step(policy, batch, config).metrics["trainer/loss"]
    """
    begin = time.perf_counter()
    updates = config.algorithm.updates_per_batch
    per_update = len(batch.groups) // updates
    mini_batches = [
        _prepare(policy, batch.groups[start : start + per_update], config)
        for start in range(0, updates * per_update, per_update)
    ]
    fixed = [_fix(policy, mini, config) for mini in mini_batches]
    learning_rate = _learning_rate(config, batch.step)
    totals, num_trained = TokenSums(policy.device), 0
    norms: list[float] = []
    faults: list[str] = []
    for mini, compared in zip(mini_batches, fixed, strict=True):
        sums = TokenSums(policy.device)
        found, norm = _compute_gradient(policy, mini, compared, config, sums)
        if found:
            faults += found
            continue
        policy.update(learning_rate)
        totals.merge(sums)
        norms.append(norm)
        num_trained += count_trained(mini.groups)
    metrics = {
        "trainer/learning_rate": learning_rate,
        "trainer/nonfinite_updates": float(updates - len(norms)),
        "trainer/imbalance": fmean(mini.imbalance for mini in mini_batches),
        **_token_metrics(policy, config, totals, norms, num_trained),
    }
    seconds = time.perf_counter() - begin
    metrics["trainer/seconds"] = seconds
    metrics["trainer/tokens_per_second"] = metrics["trainer/packed_tokens"] / seconds
    return StepResult(metrics, describe(faults))


def _prepare(policy: Policy, groups: tuple[ScoredGroup, ...], config: RunConfig) -> _MiniBatch:
    samples = prepare_mini_batch(groups, config.algorithm)
    if faults := find_input_faults(groups, samples):
        return _MiniBatch(groups, samples, (), (), 1.0, faults)
    section = config.trainer
    plan = plan_micro_batches(
        [group_lengths(group) for group in samples],
        section.data_parallel,
        section.micro_batch_tokens,
        policy.attention_cost,
    )
    mine = tuple(filter(None, plan.micro_batches[policy.data_rank]))
    pieces = tuple(tuple(chain.from_iterable(rank)) for rank in plan.micro_batches)
    mini = _MiniBatch(groups, samples, mine, (), plan.imbalance, (), pieces)
    return replace(mini, packed=tuple(mini.pack(pieces, policy.device) for pieces in mine))


@torch.no_grad()
def _fix(policy: Policy, mini: _MiniBatch, config: RunConfig) -> list[_Fixed]:
    """Before the first update, for each micro-batch."""
    num = len(mini.packed)
    olds: list[torch.Tensor | None] = [None] * num
    if config.algorithm.updates_per_batch > 1:
        # Packed as in the update: other shapes round otherwise, and a ratio would not be 1.
        olds = [outputs.logprobs_M for outputs in policy.forward(mini.packed)]
    references: list[torch.Tensor | None] = [None] * num
    if config.algorithm.kl_coefficient:
        references = [*_reference_logprobs(policy, mini, config)]
    return [_Fixed(*pair) for pair in zip(olds, references, strict=True)]


def _reference_logprobs(
    policy: Policy, mini: _MiniBatch, config: RunConfig
) -> Iterator[torch.Tensor]:
    """Of each micro-batch, several in a pass."""
    limit = WITHOUT_GRADIENT * config.trainer.micro_batch_tokens
    parts = [*join([len(packed.token_ids_N) for packed in mini.packed], limit)]
    passes: list[PackedBatch] = []
    for joined in parts:
        pieces = tuple(piece for index in joined for piece in mini.micro_batches[index])
        one = mini.packed[joined[0]] if len(joined) == 1 else mini.pack(pieces, policy.device)
        passes.append(one)
    for joined, logprobs in zip(parts, policy.forward_reference(passes), strict=True):
        yield from logprobs.split([len(mini.packed[index].targets_M) for index in joined])


def _compute_gradient(
    policy: Policy,
    mini: _MiniBatch,
    fixed: Sequence[_Fixed],
    config: RunConfig,
    sums: TokenSums,
) -> tuple[tuple[str, ...], float]:
    """What is not finite, if anything, and the gradient's norm. The same on every rank."""
    if mini.faults:  # each rank looked at all inputs
        return mini.faults, 0.0
    policy.zero_gradients()
    _accumulate(policy, mini.packed, fixed, config, sums)
    norm = policy.sum_gradients()
    is_bad = torch.tensor([not (math.isfinite(norm) and sums.finite)])
    return (_blame(policy, mini, fixed, config) if policy.any_rank(is_bad).item() else ()), norm


def _blame(
    policy: Policy, mini: _MiniBatch, fixed: Sequence[_Fixed], config: RunConfig
) -> tuple[str, ...]:
    """Which groups it is, each piece computed once more by itself."""
    flags = torch.zeros(len(mini.groups), dtype=torch.bool)
    own = iter(
        part
        for pieces, compared in zip(mini.micro_batches, fixed, strict=True)
        for part in compared.split([mini.num_trained(piece) for piece in pieces])
    )
    for rank, pieces in enumerate(mini.pieces):
        for piece in pieces:
            # Without a piece a rank takes part all the same: others' tokens may pass its experts.
            is_mine = rank == policy.data_rank
            packed = [mini.pack((piece,), policy.device)] if is_mine else []
            sums = TokenSums(policy.device)
            policy.zero_gradients()
            _accumulate(policy, packed, [next(own)] if is_mine else [], config, sums)
            is_finite = sums.finite and math.isfinite(policy.own_gradient_norm())
            flags[piece.place] |= not is_finite
    flags = policy.any_rank(flags)
    faults = [
        f"group {scored.group.number}: its loss or gradient is not finite"
        for scored, flag in zip(mini.groups, flags.tolist(), strict=True)
        if flag
    ]
    first, last = (mini.groups[end].group.number for end in (0, -1))
    return tuple(faults) or (
        f"groups {first} to {last}: the sum of their gradients is not finite, each one's is",
    )


def _accumulate(
    policy: Policy,
    micro_batches: Sequence[PackedBatch],
    fixed: Sequence[_Fixed],
    config: RunConfig,
    sums: TokenSums,
) -> None:
    """Forward and backward; gradients add up in the policy."""
    policy.forward_backward(
        micro_batches,
        lambda index, outputs: _loss_of(
            outputs.logprobs_M, micro_batches[index], fixed[index], config, sums
        ),
    )


def _loss_of(
    logprobs: torch.Tensor,
    packed: PackedBatch,
    fixed: _Fixed,
    config: RunConfig,
    sums: TokenSums,
) -> torch.Tensor:
    """Of one micro-batch; what metrics need is added to `sums`."""
    current = logprobs.detach()
    old = current if fixed.old is None else fixed.old
    values = TokenValues(
        old_logprobs=old,
        rollout_logprobs=packed.rollout_logprobs_M,
        advantages=packed.advantages_M,
        weights=packed.weights_M,
        reference_logprobs=fixed.reference,
    )
    loss: Loss = LOSSES.load(config.algorithm.loss)
    parts = loss(logprobs, values, config.algorithm)
    # The loss alone would not do: limits make a finite number of an infinite one.
    sums.require_finite(current, old, *([] if fixed.reference is None else [fixed.reference]))
    sums.add(
        parts.importance_max,
        loss=parts.loss.detach(),
        tokens=len(packed.targets_M),
        packed=len(packed.token_ids_N),
        clipped=parts.clipped,
        importance=parts.importance,
        divergence=parts.divergence,
        gap=(old - packed.rollout_logprobs_M).abs().sum(),
        logprob=current.sum(),
    )
    return parts.loss


def _learning_rate(config: RunConfig, step: int) -> float:
    """Linear warm-up over the first `warmup_steps` steps, then constant."""
    section = config.trainer
    return section.learning_rate * min(1.0, step / max(section.warmup_steps, 1))


def _token_metrics(
    policy: Policy,
    config: RunConfig,
    sums: TokenSums,
    norms: Sequence[float],
    num_trained: int,
) -> dict[str, float]:
    """Of the updates that were made; `computed/` stands before what only computed tokens have."""
    totals, importance_max = sums.reduced(policy)
    metrics = {
        "trainer/packed_tokens": totals["packed"],
        "trainer/trained_tokens": float(num_trained),
        "trainer/computed/tokens": totals["tokens"],
    }
    if not norms:
        return metrics
    computed = max(totals["tokens"], 1.0)
    metrics |= {
        "trainer/loss": totals["loss"] / len(norms),
        "trainer/grad_norm": fmean(norms),
        # Tokens that are not computed have no advantage, and are never clipped.
        "trainer/clipped/share": totals["clipped"] / max(num_trained, 1),
        "trainer/computed/importance_weight/mean": totals["importance"] / computed,
        "trainer/computed/importance_weight/max": importance_max,
        "trainer/computed/logprob_diff/mean": totals["gap"] / computed,
        # The mean of -log p over sampled tokens estimates the entropy without another pass.
        "trainer/computed/entropy": -totals["logprob"] / computed,
    }
    if config.algorithm.kl_coefficient:  # every trained token is then computed
        metrics["trainer/kl"] = totals["divergence"] / computed
    return metrics
