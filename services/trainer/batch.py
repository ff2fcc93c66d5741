"""Training batch -> samples with advantages and weights -> tensors of packed micro-batches.

Axes: T tokens of a completion, N packed tokens, M trained tokens among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from services.trainer.grpo.advantages import group_advantages
from services.trainer.grpo.loss import token_weights
from trimaran.config import AlgorithmSection
from trimaran.types import Completion, Origin, Score, ScoredGroup


@dataclass(frozen=True, slots=True)
class Sample:
    """A scored completion."""

    prompt_token_ids: tuple[int, ...]
    completion: Completion
    trained: tuple[int, ...]
    """Places in the completion of the tokens that the policy generated."""
    advantage: float
    weight: float
    """Of one trained token, with the denominator of the whole mini-batch in it."""

    @property
    def num_packed_tokens(self) -> int:
        """Prompt and completion up to the token that predicts the last trained one."""
        return len(self.prompt_token_ids) + self.trained[-1]


GroupSamples = tuple[Sample, ...]


def prepare_mini_batch(
    groups: Sequence[ScoredGroup], algorithm: AlgorithmSection
) -> list[GroupSamples]:
    """The samples of each group that need a forward pass, group by group.

    Unscored completions are in neither the statistics nor the loss. A sample
    whose advantage is 0 keeps its place in the denominator but is left out
    where no KL term gives it a gradient.
    """
    drafts = [_draft(scored, algorithm.normalize_std) for scored in groups]
    counts = [len(trained) for draft in drafts for _, trained, _ in draft]
    weights = iter(token_weights(counts, algorithm.aggregation))
    return [
        tuple(
            Sample(scored.group.prompt_token_ids, completion, trained, advantage, weight)
            for (completion, trained, advantage), weight in zip(draft, weights, strict=False)
            if trained and (advantage or algorithm.kl_coefficient)
        )
        for scored, draft in zip(groups, drafts, strict=True)
    ]


def _draft(
    scored: ScoredGroup, normalize_std: bool
) -> list[tuple[Completion, tuple[int, ...], float]]:
    verdicts = scored.verdicts_G
    known = [isinstance(verdict, Score) for verdict in verdicts]
    rewards = [verdict.reward if isinstance(verdict, Score) else 0.0 for verdict in verdicts]
    advantages = group_advantages(rewards, known, normalize_std).tolist()
    return [
        (completion, _trained_places(completion), advantage)
        for completion, advantage, is_known in zip(
            scored.group.completions_G, advantages, known, strict=True
        )
        if is_known
    ]


def _trained_places(completion: Completion) -> tuple[int, ...]:
    return tuple(
        place
        for segment in completion.segments
        if segment.origin is Origin.GENERATED
        for place in range(segment.start, segment.end)
    )


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """The tensors of one micro-batch."""

    token_ids_N: torch.Tensor
    """The sequences one after the other; each ends before its last trained token."""
    lengths: tuple[int, ...]
    sources_M: torch.Tensor
    """The place among N whose output predicts each trained token."""
    targets_M: torch.Tensor
    rollout_logprobs_M: torch.Tensor
    advantages_M: torch.Tensor
    weights_M: torch.Tensor


def pack(samples: Sequence[Sample], device: torch.device) -> PackedBatch:
    lengths = tuple(sample.num_packed_tokens for sample in samples)
    token_ids: list[int] = []
    sources: list[int] = []
    targets: list[int] = []
    rollout_logprobs: list[float] = []
    for sample, start in zip(samples, accumulate(lengths, initial=0), strict=False):
        completion = sample.completion
        token_ids += sample.prompt_token_ids + completion.token_ids_T[: sample.trained[-1]]
        before_first = start + len(sample.prompt_token_ids) - 1
        sources += [before_first + place for place in sample.trained]
        targets += [completion.token_ids_T[place] for place in sample.trained]
        rollout_logprobs += [completion.logprobs_T[place] for place in sample.trained]

    def per_token(values: Sequence[float]) -> torch.Tensor:
        counts = torch.tensor([len(sample.trained) for sample in samples])
        return torch.tensor(values, dtype=torch.float32).repeat_interleave(counts).to(device)

    return PackedBatch(
        token_ids_N=torch.tensor(token_ids, device=device),
        lengths=lengths,
        sources_M=torch.tensor(sources, device=device),
        targets_M=torch.tensor(targets, device=device),
        rollout_logprobs_M=torch.tensor(rollout_logprobs, dtype=torch.float32, device=device),
        advantages_M=per_token([sample.advantage for sample in samples]),
        weights_M=per_token([sample.weight for sample in samples]),
    )
