"""Samples are chosen and ordered by what they were worth, and answers to one prompt stay together."""

from __future__ import annotations

import pytest

from services.manager.run_data.choice import Choice, Spot, arrange

REWARDS = ((1.0,), (0.0,), (0.25, 0.75, None), (1.0, 0.5), (None, None))
SPOTS = [
    Spot(unit, number, unit < 2, reward)
    for unit, rewards in enumerate(REWARDS)
    for number, reward in enumerate(rewards)
]


@pytest.mark.parametrize(
    ("choice", "places"),
    [
        (Choice(), list(range(9))),
        (Choice(order="highest"), [0, 5, 6, 3, 2, 4, 1, 7, 8]),
        (Choice(order="lowest"), [1, 2, 3, 4, 6, 5, 0, 7, 8]),
        (Choice("greedy"), [0, 1]),
        (Choice("sampled", "lowest", low=0.5), [3, 6, 5]),
        (Choice(low=0.25, high=0.5), [2, 6]),
        (Choice(faulted=True), [4, 7, 8]),
        (Choice(faulted=True, high=1.0), []),
    ],
)
def test_what_is_chosen_and_in_which_order(choice: Choice, places: list[int]) -> None:
    assert arrange(SPOTS, choice) == places
