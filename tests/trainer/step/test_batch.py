from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from services.trainer.step.batch import StepBatch, pack
from services.trainer.step.packing import GroupLengths
from tests.trainer.batches import completion, scored_group
from trimaran.types import Score, ScoredGroup
from trimaran.wire.packed import Logprobs, TokenIds

CPU = torch.device("cpu")


def step_of(*groups: ScoredGroup, mask_truncated: bool = False) -> StepBatch:
    return StepBatch.of(groups, mask_truncated)


def test_a_group_packs_its_prompt_once_and_each_completion_without_its_last_token() -> None:
    answers = [completion([7, 8, 9], [-0.1, -0.2, -0.3]), completion([6], [-0.4])]
    group = scored_group([4, 5], answers, [1.0, 0.0])
    step = step_of(group, group)
    packed = pack(step, [(0, (0, 1)), (1, (2, 3))], CPU)
    assert packed.token_ids_N.tolist() == [4, 5, 7, 8] * 2
    assert packed.groups == (GroupLengths(2, (2, 0)),) * 2
    assert packed.sources_M.tolist() == [1, 2, 3, 1, 5, 6, 7, 5]
    assert packed.targets_M.tolist() == [7, 8, 9, 6] * 2
    assert packed.places_M.tolist() == [*range(8)]
    assert packed.completions_M.tolist() == [0, 0, 0, 1, 2, 2, 2, 3]
    assert packed.num_completions == 4
    assert torch.equal(step.rollout_logprobs(), torch.tensor([-0.1, -0.2, -0.3, -0.4] * 2))


def test_what_travelled_as_bytes_packs_as_numbers_do() -> None:
    numbers = completion([7, 8, 9], [-0.1, -0.2, -0.3])
    as_bytes = replace(
        numbers,
        token_ids_T=TokenIds(np.array([7, 8, 9], "<i4").tobytes()),
        logprobs_S=Logprobs(np.array([-0.1, -0.2, -0.3], "<f4").tobytes()),
    )
    pairs: list[Any] = [
        (pack(step, [(0, (0,))], CPU), step.rollout_logprobs())
        for step in (step_of(scored_group([4], [one], [1.0])) for one in (numbers, as_bytes))
    ]
    (ours, logprobs), (bytewise, same) = pairs
    assert torch.equal(ours.token_ids_N, bytewise.token_ids_N)
    assert torch.equal(ours.targets_M, bytewise.targets_M)
    assert torch.equal(logprobs, same)


def test_an_empty_completion_counts_in_the_group_and_trains_nothing() -> None:
    step = step_of(scored_group([4, 5], [completion([7, 8]), completion([])], [1.0, 0.0]))
    assert step.members == (range(2),)
    assert step.lengths_B == (2, 0)
    assert step.rewards({}).totals_B.tolist() == [1.0, 0.0]


def test_rewards_know_groups_terms_and_the_penalty_of_each_token() -> None:
    answers = [completion([7, 8]), completion([9])]
    one, two = scored_group([4], answers, [1.0, 0.0]), scored_group([4], answers, [0.5, 0.25])
    two = replace(two, verdicts_G=(Score(0.5, {"exact": 0.5}), Score(0.25)))
    penalties = torch.tensor([0.1, 0.2, 0.4, 0.0, 0.0, 0.25], dtype=torch.float64)
    rewards = step_of(one, two).rewards({"exact": 1.0}, penalties)
    assert rewards.groups_B.tolist() == [0, 0, 1, 1]
    assert rewards.lengths_B.tolist() == [2, 1, 2, 1]
    assert rewards.totals_B.tolist() == pytest.approx([0.7, -0.4, 0.5, 0.0])
    assert rewards.terms["exact"].isnan().tolist() == [True, True, False, True]
    assert rewards.terms["exact"][2] == 0.5
