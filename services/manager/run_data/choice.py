"""Which samples of a step are wanted, and in which order: by what they were worth, not by what they say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import Literal

Order = Literal["", "highest", "lowest"]
Kind = Literal["", "greedy", "sampled"]


@dataclass(frozen=True, slots=True)
class Spot:
    """One sample of a step. Its place is its index among the step's spots.

    Example: Spot(unit=0, number=3, greedy=False, reward=None)
    """

    unit: int
    """The place of its prompt in the step."""
    number: int
    """Its place among the answers to its prompt."""
    greedy: bool
    reward: float | None
    """None where it could not be scored."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Example: Choice(order="highest", faulted=False, low=0.5)"""

    kind: Kind = ""
    """Of a validation; empty for both."""
    order: Order = ""
    """Empty for the order of the dataset or the ledger."""
    faulted: bool = False
    """Only those without a reward."""
    low: float | None = None
    high: float | None = None

    def takes(self, spot: Spot) -> bool:
        if self.kind and spot.greedy != (self.kind == "greedy"):
            return False
        if self.faulted or spot.reward is None:
            return spot.reward is None and self.low is None and self.high is None
        above = self.low is None or spot.reward >= self.low
        return above and (self.high is None or spot.reward <= self.high)


ALL = Choice()


def arrange(spots: Sequence[Spot], choice: Choice = ALL) -> list[int]:
    """Places of the chosen ones. Answers to one prompt stay together: prompts go by the mean reward of
    their chosen answers, and answers by their own. Those without a reward come last."""
    chosen = [place for place, spot in enumerate(spots) if choice.takes(spot)]
    if not choice.order:
        return chosen
    sign = -1 if choice.order == "highest" else 1

    def rank(places: Sequence[int]) -> tuple[bool, float]:
        rewards = [reward for place in places if (reward := spots[place].reward) is not None]
        return not rewards, sign * fmean(rewards) if rewards else 0.0

    groups = sorted(_by_prompt(spots, chosen), key=rank)
    return [place for group in groups for place in sorted(group, key=lambda one: rank([one]))]


def _by_prompt(spots: Sequence[Spot], places: Sequence[int]) -> Iterator[list[int]]:
    """The answers to one prompt follow each other."""
    for _, group in groupby(places, key=lambda place: (spots[place].greedy, spots[place].unit)):
        yield list(group)
