"""Episodes in a batch: exactly the sampled tokens train, each read behind the tokens that stood before it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
import torch

from services.trainer.step.batch import PackedBatch, StepBatch, pack, packed_lengths
from services.trainer.step.finite import find_input_faults
from services.trainer.step.packing import GroupLengths
from services.trainer.step.values import early_advantages
from tests.trainer.batches import completion, scored_group
from tests.trainer.conftest import MakeConfig
from tests.trainer.episodes import Tokens, cut_off, episode, logprob_of, random_sequences
from trimaran.types import Message, Score, Turn

CPU = torch.device("cpu")
GIVEN, MADE = False, True
THREE_TURNS = Tokens(
    (7, 8, 30, 31, 9, 32, 6, 5, 33), (*[MADE] * 2, *[GIVEN] * 2, MADE, GIVEN, *[MADE] * 2, GIVEN)
)
"""Two tokens, two given, one, one given, two, and a last one given."""
BRANCH = Tokens((40, 41, 3), (GIVEN, GIVEN, MADE))


def test_a_three_turn_episode_and_its_branch_pack_as_worked_by_hand() -> None:
    group = scored_group([4, 5], [episode(THREE_TURNS, BRANCH), completion([2, 1])], [1.0, 0.0])
    step = StepBatch.of((group,), mask_truncated=False)
    packed = pack(step, [(0, (0, 1))], CPU)
    assert packed.token_ids_N.tolist() == [4, 5, 7, 8, 30, 31, 9, 32, 6, 40, 41, 2]
    assert packed.groups == (GroupLengths(2, (7, 2, 1)),)
    assert packed.targets_M.tolist() == [7, 8, 9, 6, 5, 3, 2, 1]
    assert packed.sources_M.tolist() == [1, 2, 5, 7, 8, 10, 1, 11]
    assert packed.places_M.tolist() == [*range(8)]
    assert packed.completions_M.tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    assert packed.num_completions == 2
    assert packed_lengths(step, 0, (0, 1)) == GroupLengths(2, (9, 1))
    assert step.lengths_B == (6, 2)


def test_what_trains_is_what_was_sampled_in_ten_thousand_episodes() -> None:
    dice = random.Random(32)
    for _ in range(100):
        check_groups([[random_sequences(dice) for _ in range(10)] for _ in range(10)], dice)


def check_groups(groups: Sequence[Sequence[tuple[Tokens, ...]]], dice: random.Random) -> None:
    prompts = [[dice.randrange(3, 96) for _ in range(dice.randint(1, 5))] for _ in groups]
    scored = tuple(
        scored_group(prompt, [episode(*one) for one in episodes], [1.0] * len(episodes))
        for prompt, episodes in zip(prompts, groups, strict=True)
    )
    step = StepBatch.of(scored, mask_truncated=False)
    order = dice.sample(range(len(groups)), len(groups))
    packed = pack(step, [(place, tuple(step.members[place])) for place in order], CPU)
    sequences = [(prompts[place], one) for place in order for own in groups[place] for one in own]
    logprobs = step.rollout_logprobs()[packed.places_M].tolist()
    found = zip(packed.sources_M.tolist(), packed.targets_M.tolist(), logprobs, strict=True)
    for (prompt, one), read in zip(sequences, in_sequences(packed), strict=True):
        for place, is_sampled in enumerate(one.is_sampled):
            if is_sampled:
                source, target, logprob = next(found)
                assert target == one.ids[place]
                assert logprob == logprob_of(place, target)
                # It is predicted where all that stood before it has been read.
                assert read[source] == (*prompt, *one.ids[:place])
    assert next(found, None) is None


def in_sequences(packed: PackedBatch) -> list[dict[int, tuple[int, ...]]]:
    """Of each sequence: place among N -> all that is read up to it."""
    ids, at, found = packed.token_ids_N.tolist(), 0, []
    for group in packed.groups:
        prompt = range(at, at + group.prompt)
        ends = accumulate(group.completions, initial=at + group.prompt)
        for start, length in zip(ends, group.completions, strict=False):
            places = [*prompt, *range(start, start + length)]
            tokens = [ids[place] for place in places]
            found.append({place: tuple(tokens[: n + 1]) for n, place in enumerate(places)})
        at += group.num_tokens
    return found


def test_an_episode_that_was_cut_off_by_tokens_or_turns_can_be_masked() -> None:
    episodes = [cut_off(episode(THREE_TURNS, BRANCH), one) for one in ("length", "turns", "stop")]
    group = scored_group([4], episodes, [1.0, 0.0, 0.5])
    assert StepBatch.of((group,), mask_truncated=False).lengths_B == (6, 6, 6)
    masked = StepBatch.of((group,), mask_truncated=True)
    assert (masked.lengths_B, masked.num_tokens) == ((0, 0, 6), 6)
    assert masked.rewards({}).sampled_B.tolist() == [6, 6, 6]


def test_each_trained_token_knows_its_turn_also_where_turns_stand_in_branches() -> None:
    said = Message("assistant", "?")
    turns = (
        Turn(said, 2, reward=0.5),
        Turn(said, 1, sequence=1),  # of a sub-agent, in between
        Turn(said, 1, reward=0.0),
        Turn(said, 2, reward=1.0),
    )
    long = replace(episode(THREE_TURNS, BRANCH), turns=turns)
    masked = replace(long, finish_reason="turns")
    group = scored_group([4], [completion([2, 1]), masked, long], [1.0, 0.0, 0.5])
    found = StepBatch.of((group,), mask_truncated=True).rewards({}).turns
    assert found is not None
    nan = float("nan")
    assert found.rewards_R.tolist() == pytest.approx([nan, *[0.5, nan, 0.0, 1.0] * 2], nan_ok=True)
    assert found.completions_R.tolist() == [0, *[1] * 4, *[2] * 4]
    assert found.numbers_R.tolist() == [0, *[0, 1, 2, 3] * 2]
    assert found.turns_M.tolist() == [0, 0, 5, 5, 7, 8, 8, 6]


def test_rewards_of_turns_are_not_looked_for_where_there_are_none() -> None:
    turns = (Turn(Message("assistant", "?"), 6),)
    group = scored_group([4], [replace(episode(THREE_TURNS, BRANCH), turns=turns)], [1.0])
    assert StepBatch.of((group,), mask_truncated=False).rewards({}).turns is None


def test_a_number_that_is_not_finite_is_reported_with_the_replica_that_made_it() -> None:
    one = episode(THREE_TURNS, BRANCH)
    maker = replace(one.branches[0].segments[0], replica="rollout-3")
    branch = replace(one.branches[0], logprobs_S=(float("nan"),), segments=(maker,))
    group = scored_group([4], [replace(one, branches=(branch,))], [1.0], number=7)
    step = StepBatch.of((group,), mask_truncated=False)
    faults = find_input_faults(step, {0}, step.rollout_logprobs(), None)
    reported = "group 7: completion 0: log-probability nan of token 5, from rollout-3"
    assert faults == {0: reported}


def test_the_reward_of_the_environment_is_a_term_that_gdpo_weighs(make_config: MakeConfig) -> None:
    config = make_config(
        environment={"python": True, "weight": 2.0},
        reward={"rules": {"exact": 1.0}},
        algorithm={"advantage": "gdpo"},
    )
    verdicts = (Score(1.0, {"exact": 1.0, "environment": 0.0}), Score(4.0, {"environment": 2.0}))
    group = scored_group([4], [completion([7]), completion([8])], [0.0, 0.0])
    step = StepBatch.of((replace(group, verdicts_G=verdicts),), mask_truncated=False)
    found = early_advantages(step, config)
    assert found is not None
    # The rule applies to one alone; the environment's -0.707 and 0.707, whitened.
    assert found.tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5])
