"""Training batch -> samples with advantages and weights -> tensors of packed micro-batches.

Axes: T tokens of a completion, N packed tokens, M trained tokens among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from services.trainer.grpo.advantages import Advantage
from services.trainer.packing import GroupLengths
from trimaran.choices import ADVANTAGES, AGGREGATIONS
from trimaran.config import AlgorithmSection
from trimaran.errors import InputError
from trimaran.types import Completion, Score, ScoredGroup

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """A scored completion.

    Example:
        TrainingSample(prompt_token_ids, completion, advantage=0.5, weight=1 / 240)
    """

    prompt_token_ids: Sequence[int]
    completion: Completion
    advantage: float
    weight: float
    """Of one token, with the denominator of the whole mini-batch in it."""

    @property
    def num_trained(self) -> int:
        """Tokens of the completion: all of them."""
        return len(self.completion.token_ids_T)

    @property
    def num_inputs(self) -> int:
        """Tokens of the completion that are read: up to the one that predicts the last."""
        return self.num_trained - 1


GroupSamples = tuple[TrainingSample, ...]
"""Samples of one group, which share its prompt."""


def group_lengths(samples: GroupSamples) -> GroupLengths:
    prompt = len(samples[0].prompt_token_ids) if samples else 0
    return GroupLengths(prompt, tuple(sample.num_inputs for sample in samples))


def prepare_mini_batch(
    groups: Sequence[ScoredGroup], algorithm: AlgorithmSection
) -> list[GroupSamples]:
    """The samples of each group that need a forward pass, group by group.

    Faulted completions are in neither the statistics nor the loss. A sample
    whose advantage is 0 keeps its place in the denominator but is left out
    where no KL term gives it a gradient.
    """
    advantage: Advantage = ADVANTAGES.load(algorithm.advantage)
    drafts = [_draft(scored, advantage, algorithm.normalize_std) for scored in groups]
    counts = [len(completion.token_ids_T) for draft in drafts for completion, _ in draft]
    per_token = AGGREGATIONS.load(algorithm.aggregation)(counts)
    if len(per_token) != len(counts):
        raise InputError(
            f"algorithm.aggregation: {algorithm.aggregation} gives {len(per_token)} weights for"
            f" {len(counts)} completions; it must give one for each"
        )
    weights = iter(per_token)
    return [
        tuple(
            TrainingSample(scored.group.prompt_token_ids, completion, advantage, weight)
            for (completion, advantage), weight in zip(draft, weights, strict=False)
            if completion.token_ids_T and (advantage or algorithm.kl_coefficient)
        )
        for scored, draft in zip(groups, drafts, strict=True)
    ]


def count_trained(groups: Sequence[ScoredGroup]) -> int:
    """Tokens in the loss's denominator: those of scored completions."""
    return sum(
        len(completion.token_ids_T)
        for scored in groups
        for completion, verdict in zip(scored.group.completions_G, scored.verdicts_G, strict=True)
        if isinstance(verdict, Score)
    )


def _draft(
    scored: ScoredGroup, advantage: Advantage, normalize_std: bool
) -> list[tuple[Completion, float]]:
    """The scored completions, each with its advantage."""
    verdicts = scored.verdicts_G
    known = [isinstance(verdict, Score) for verdict in verdicts]
    rewards = [verdict.reward if isinstance(verdict, Score) else 0.0 for verdict in verdicts]
    advantages = advantage(rewards, known, normalize_std).tolist()
    return [
        (completion, value)
        for completion, value, is_known in zip(
            scored.group.completions_G, advantages, known, strict=True
        )
        if is_known
    ]


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """The tensors of one micro-batch.

    Example:
        packed = pack(samples, torch.device("cpu"))
        [outputs] = policy.forward([packed])
    """

    token_ids_N: torch.Tensor
    """Group by group: the prompt, then the completions, each up to before its last trained token."""
    groups: tuple[GroupLengths, ...]
    sources_M: torch.Tensor
    """The place among N whose output predicts each trained token."""
    targets_M: torch.Tensor
    rollout_logprobs_M: torch.Tensor
    advantages_M: torch.Tensor
    weights_M: torch.Tensor


def pack(groups: Sequence[GroupSamples], device: torch.device) -> PackedBatch:
    """Of groups with at least one sample each."""
    token_ids: list[int] = []
    sources: list[int] = []
    for group in groups:
        token_ids += group[0].prompt_token_ids
        before_first = len(token_ids) - 1
        for sample in group:
            start = len(token_ids)
            sources += [before_first, *range(start, start + sample.num_inputs)]
            token_ids += sample.completion.token_ids_T[: sample.num_inputs]
    samples = [sample for group in groups for sample in group]
    counts = torch.tensor([sample.num_trained for sample in samples])

    def per_sample(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32).repeat_interleave(counts).to(device)

    def per_token(values: Callable[[Completion], Sequence[T]], dtype: torch.dtype) -> torch.Tensor:
        flat = [value for one in samples for value in values(one.completion)]
        return torch.tensor(flat, dtype=dtype, device=device)

    return PackedBatch(
        token_ids_N=torch.tensor(token_ids, device=device),
        groups=tuple(group_lengths(group) for group in groups),
        sources_M=torch.tensor(sources, device=device),
        targets_M=per_token(lambda completion: completion.token_ids_T, torch.int64),
        rollout_logprobs_M=per_token(lambda completion: completion.logprobs_T, torch.float32),
        advantages_M=per_sample([sample.advantage for sample in samples]),
        weights_M=per_sample([sample.weight for sample in samples]),
    )
