"""Random episodes, with the mask that says which of their tokens were sampled."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tests.trainer.batches import scored_group
from trimaran.types import Branch, Completion, Segment, TrainingBatch, VersionId


@dataclass(frozen=True)
class Tokens:
    """A sequence behind the prompt. Example: Tokens((7, 8, 9), (True, False, True))"""

    ids: tuple[int, ...]
    is_sampled: tuple[bool, ...]

    @property
    def branch(self) -> Branch:
        """Each sampled token has its own log-probability, and another maker than its neighbours."""
        places = [place for place, sampled in enumerate(self.is_sampled) if sampled]
        segments = tuple(Segment(at, at + 1, VersionId(0, 0), "rs"[at % 2]) for at in places)
        logprobs = tuple(logprob_of(at, self.ids[at]) for at in places)
        return Branch(self.ids, logprobs, segments)


def logprob_of(place: int, token: int) -> float:
    return -4.0 - (place + token) / 1024


def episode(own: Tokens, *branches: Tokens) -> Completion:
    whole = own.branch
    return Completion(
        whole.token_ids_T,
        whole.logprobs_S,
        "",
        "stop",
        whole.segments,
        branches=tuple(one.branch for one in branches),
    )


def random_tokens(dice: random.Random) -> Tokens:
    """Of up to four turns; some begin with given tokens, and some end with them."""
    is_sampled: list[bool] = [False] * dice.choice((0, 0, 2))
    for _ in range(dice.randint(1, 4)):
        is_sampled += [True] * dice.randint(1, 4) + [False] * dice.randint(0, 3)
    ids = tuple(dice.randrange(3, 96) for _ in is_sampled)
    return Tokens(ids, tuple(is_sampled))


def random_sequences(dice: random.Random) -> tuple[Tokens, ...]:
    """Those of an episode: one in three has branches."""
    return tuple(random_tokens(dice) for _ in range(dice.choice((1, 1, 1, 1, 2, 3))))


def random_episodes(step: int, num_groups: int = 4, group_size: int = 3) -> TrainingBatch:
    """The first of each group is an answer of one turn."""
    dice = random.Random(step)
    groups = []
    for number in range(num_groups):
        prompt = [dice.randrange(3, 96) for _ in range(dice.randrange(3, 9))]
        episodes = [episode(*random_sequences(dice)) for _ in range(group_size)]
        episodes[0] = one_turn(dice)
        rewards = [float(place % 2) for place in range(group_size)]
        groups.append(scored_group(prompt, episodes, rewards, number))
    return TrainingBatch(step, tuple(groups))


def one_turn(dice: random.Random) -> Completion:
    ids = tuple(dice.randrange(3, 96) for _ in range(dice.randrange(2, 8)))
    return episode(Tokens(ids, (True,) * len(ids)))


def cut_off(completion: Completion, finish_reason: str) -> Completion:
    return replace(completion, finish_reason=finish_reason)
