"""Training batch -> the completions that count -> tensors of packed micro-batches.

Only sampled tokens train. An episode is one completion, whatever its turns and branches: what was given
between its sampled tokens is read, and has no place among M.
Axes: B completions and M trained tokens of a step's batch, P groups of it; in `PackedBatch`: N packed
tokens, M trained tokens and B completions of one micro-batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, starmap
from typing import Any

import numpy as np
import torch

from services.trainer.grpo.kinds import Rewards
from services.trainer.step.chosen_experts import ChosenExperts, StepExperts, join_experts
from services.trainer.step.packing import GroupLengths
from services.trainer.step.prompt_images import PromptImages, images_of
from services.trainer.step.sequences import alone, num_read, sequences_of, total_read
from services.trainer.step.turns import turns_of
from trimaran.types import Completion, Score, ScoredGroup, sampled_spans


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The scored completions of a step, group by group, and their trained tokens one after the
    other. On the host.

    Example: StepBatch.of(batch.groups, mask_truncated=False).rewards({"gsm8k": 1.0})
    """

    groups: tuple[ScoredGroup, ...]
    completions_B: tuple[Completion, ...]
    scores_B: tuple[Score, ...]
    members: tuple[range, ...]
    """The completions of each group, among B."""
    lengths_B: tuple[int, ...]
    """Trained tokens: all sampled ones of a completion, or none."""
    starts_B: tuple[int, ...]
    """The first of them among M."""

    @classmethod
    def of(cls, groups: Sequence[ScoredGroup], mask_truncated: bool) -> StepBatch:
        """`mask_truncated`: completions that were cut off have no trained tokens."""
        completions: list[Completion] = []
        scores: list[Score] = []
        members: list[range] = []
        for scored in groups:
            first = len(completions)
            pairs = zip(scored.group.completions_G, scored.verdicts_G, strict=True)
            for completion, verdict in pairs:
                if isinstance(verdict, Score):
                    completions.append(completion)
                    scores.append(verdict)
            members.append(range(first, len(completions)))
        lengths = [
            0 if mask_truncated and one.is_cut_off else one.num_sampled for one in completions
        ]
        starts = [0, *accumulate(lengths)]
        return cls(
            groups=tuple(groups),
            completions_B=tuple(completions),
            scores_B=tuple(scores),
            members=tuple(members),
            lengths_B=tuple(lengths),
            starts_B=tuple(starts[: len(lengths)]),
        )

    @property
    def num_tokens(self) -> int:
        """M."""
        return sum(self.lengths_B)

    def tokens(self, completion: int) -> slice:
        """Its trained tokens among M."""
        start = self.starts_B[completion]
        return slice(start, start + self.lengths_B[completion])

    def rollout_logprobs(self) -> torch.Tensor:
        """float32 [M]."""
        parts = [
            _array(sequence.logprobs_S, np.float32)
            for completion, length in zip(self.completions_B, self.lengths_B, strict=True)
            if length
            for sequence in sequences_of(completion)
        ]
        return torch.from_numpy(np.concatenate(parts) if parts else np.zeros(0, np.float32))

    def spread(self, values_B: torch.Tensor) -> torch.Tensor:
        """Each completion's value for each of its trained tokens, [M]."""
        return values_B.repeat_interleave(torch.tensor(self.lengths_B, dtype=torch.int64))

    def rewards(
        self, term_weights: Mapping[str, float], penalties_M: torch.Tensor | None = None
    ) -> Rewards:
        """What advantages are made of. `penalties_M`: float64, taken off the rewards."""
        totals = torch.tensor([score.reward for score in self.scores_B], dtype=torch.float64)
        lengths = torch.tensor(self.lengths_B, dtype=torch.int64)
        sizes = torch.tensor([len(members) for members in self.members], dtype=torch.int64)
        if penalties_M is not None:
            owners = self.spread(torch.arange(len(totals)))
            totals = totals - torch.zeros_like(totals).index_add(0, owners, penalties_M)
        return Rewards(
            totals_B=totals,
            terms={term: self._term(term) for term in term_weights},
            term_weights=term_weights,
            groups_B=torch.arange(len(self.groups)).repeat_interleave(sizes),
            lengths_B=lengths,
            sampled_B=torch.tensor([one.num_sampled for one in self.completions_B]).long(),
            greedy_P=self._greedy(),
            penalties_M=penalties_M,
            turns=turns_of(self.completions_B, self.lengths_B),
        )

    def without(self, places: Collection[int]) -> StepBatch:
        """Without some of its groups."""
        kept = [place for place in range(len(self.groups)) if place not in places]
        indices = [index for place in kept for index in self.members[place]]
        sizes = [len(self.members[place]) for place in kept]
        lengths = tuple(self.lengths_B[index] for index in indices)
        return StepBatch(
            groups=tuple(self.groups[place] for place in kept),
            completions_B=tuple(self.completions_B[index] for index in indices),
            scores_B=tuple(self.scores_B[index] for index in indices),
            members=tuple(starmap(range, pairwise([0, *accumulate(sizes)]))),
            lengths_B=lengths,
            starts_B=tuple([0, *accumulate(lengths)][: len(lengths)]),
        )

    def by_sequence(self) -> StepBatch:
        """With each sequence of an episode as a completion of its own, and the same M: for what looks at each
        token alone, so that an episode need not be in one micro-batch."""
        if not any(one.branches for one in self.completions_B):
            return self
        parted = [sequences_of(completion) for completion in self.completions_B]
        owners = [index for index, own in enumerate(parted) for _ in own]
        completions = tuple(alone(one) for own in parted for one in own)
        lengths = [
            len(one.logprobs_S) if self.lengths_B[index] else 0
            for one, index in zip(completions, owners, strict=True)
        ]
        ends = [0, *accumulate(map(len, parted))]
        return StepBatch(
            groups=self.groups,
            completions_B=completions,
            scores_B=tuple(self.scores_B[index] for index in owners),
            members=tuple(range(ends[own.start], ends[own.stop]) for own in self.members),
            lengths_B=tuple(lengths),
            starts_B=tuple([0, *accumulate(lengths)][: len(lengths)]),
        )

    def tokens_of(self, places: Collection[int]) -> torch.Tensor:
        """bool [M]: the trained tokens of some of its groups."""
        mask_M = torch.zeros(self.num_tokens, dtype=torch.bool)
        for place in places:
            for index in self.members[place]:
                mask_M[self.tokens(index)] = True
        return mask_M

    def groups_where(self, mask_M: torch.Tensor, among: Collection[int] | None = None) -> set[int]:
        """Places of the groups with a token that is set. `among`: looks at these completions only."""
        return {
            place
            for place, members in enumerate(self.members)
            if any(
                mask_M[self.tokens(index)].any()
                for index in members
                if among is None or index in among
            )
        }

    def _greedy(self) -> torch.Tensor | None:
        rewards = [scored.greedy_reward for scored in self.groups]
        known = [reward for reward in rewards if reward is not None]
        return torch.tensor(known, dtype=torch.float64) if len(known) == len(rewards) else None

    def _term(self, term: str) -> torch.Tensor:
        values = [score.terms.get(term, float("nan")) for score in self.scores_B]
        return torch.tensor(values, dtype=torch.float64)


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """The tensors of one micro-batch.

    Example:
        packed = pack(step, [(3, (24, 25))], torch.device("cpu"))  # two completions of group 3
        (outputs,) = policy.forward([packed])
    """

    token_ids_N: torch.Tensor
    """Group by group: the prompt, then the sequences of the completions, each up to before its last trained
    token."""
    groups: tuple[GroupLengths, ...]
    """Here each sequence of an episode counts."""
    sources_M: torch.Tensor
    """The place among N whose output predicts each trained token."""
    targets_M: torch.Tensor
    places_M: torch.Tensor
    """int64: of each trained token among those of the step."""
    completions_M: torch.Tensor
    """int64: which completion of this micro-batch it belongs to, 0..B-1."""
    num_completions: int
    images: tuple[PromptImages, ...] = ()
    """The images of the prompts that have some."""
    experts: ChosenExperts | None = None
    """Those of the engine, for the routers to choose again."""


def packed_lengths(step: StepBatch, group: int, completions: Sequence[int]) -> GroupLengths:
    """What `pack` makes of some of a group's completions. The sequences of one are counted together: they
    stay in one micro-batch."""
    prompt = len(step.groups[group].group.prompt_token_ids)
    return GroupLengths(
        prompt, tuple(total_read(step.completions_B[index]) for index in completions)
    )


def pack(
    step: StepBatch,
    pieces: Sequence[tuple[int, Sequence[int]]],
    device: torch.device,
    experts: StepExperts | None = None,
) -> PackedBatch:
    """Packs pieces: of each its group and which completions of the step, each with trained tokens. `experts`: of
    all of them, where the engine's choices are replayed."""
    token_ids: list[Any] = []
    sources: list[Any] = []
    targets: list[Any] = []
    places: list[Any] = []
    owners: list[Any] = []
    groups: list[GroupLengths] = []
    images: list[PromptImages | None] = []
    experts = experts or StepExperts(len(step.groups), {})
    chosen: list[tuple[Any, int]] = []
    num_packed = num_completions = 0
    for number, (group, completions) in enumerate(pieces):
        images.append(images_of(step.groups[group].group, number, num_packed))
        prompt = _array(step.groups[group].group.prompt_token_ids, np.int32)
        token_ids.append(prompt)
        chosen.append((experts.of_prompt(group), len(prompt)))
        num_packed += len(prompt)
        before_first = num_packed - 1
        lengths: list[int] = []
        for index in completions:
            first = len(lengths)
            for sequence in sequences_of(step.completions_B[index]):
                ids = _array(sequence.token_ids_T, np.int32)
                for start, end in sampled_spans(sequence.segments):
                    source = np.arange(num_packed + start - 1, num_packed + end - 1)
                    if not start:
                        source[0] = before_first
                    sources.append(source)
                    targets.append(ids[start:end])
                lengths.append(num_read(sequence))
                token_ids.append(ids[: lengths[-1]])
                num_packed += lengths[-1]
            own = step.tokens(index)
            places.append(np.arange(own.start, own.stop))
            owners.append(np.full(own.stop - own.start, num_completions))
            chosen.append((experts.of_completion(index), sum(lengths[first:])))
            num_completions += 1
        groups.append(GroupLengths(len(prompt), tuple(lengths)))

    def joined(parts: Sequence[Any]) -> torch.Tensor:
        whole = np.concatenate(parts) if parts else np.zeros(0)
        return torch.from_numpy(whole.astype(np.int64)).to(device)

    return PackedBatch(
        token_ids_N=joined(token_ids),
        groups=tuple(groups),
        sources_M=joined(sources),
        targets_M=joined(targets),
        places_M=joined(places),
        completions_M=joined(owners),
        num_completions=num_completions,
        images=tuple(one for one in images if one),
        experts=join_experts(chosen),
    )


def _array(values: Sequence[Any], dtype: Any) -> Any:
    return np.asarray(values, dtype=dtype)
