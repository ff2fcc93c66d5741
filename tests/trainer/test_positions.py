"""Positions of images in a prompt, by hand; test_vision.py compares them with transformers."""

from __future__ import annotations

import torch

from services.trainer.megatron.positions import (
    axis_of_channels,
    packed_positions,
    prompt_positions,
)
from services.trainer.packing import GroupLengths


def is_image(pattern: str) -> torch.Tensor:
    return torch.tensor([one == "i" for one in pattern])


def test_a_text_token_has_one_position_and_an_image_counts_rows_and_columns() -> None:
    positions, behind = prompt_positions(is_image("..iiiiii.ii"), [(1, 2, 3), (1, 1, 2)])
    assert positions.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7],
    ]
    assert behind == 8


def test_completions_go_on_behind_their_prompt_and_other_groups_count_as_ever() -> None:
    groups = (GroupLengths(2, (2, 1)), GroupLengths(5, (2, 0, 1)), GroupLengths(1, (1,)))
    prompts = {1: prompt_positions(is_image("iiii."), [(1, 2, 2)])}
    found = packed_positions(groups, prompts)
    text = [0, 1, 2, 3, 2]
    assert found[0].tolist() == [*text, 0, 0, 0, 0, 2, 3, 4, 3, 0, 1]
    assert found[1].tolist() == [*text, 0, 0, 1, 1, 2, 3, 4, 3, 0, 1]
    assert found[2].tolist() == [*text, 0, 1, 0, 1, 2, 3, 4, 3, 0, 1]


def test_pairs_of_channels_turn_in_runs_or_take_turns() -> None:
    assert axis_of_channels((2, 3, 1), interleaved=False).tolist() == [0, 0, 1, 1, 1, 2]
    assert axis_of_channels((4, 2, 2), interleaved=True).tolist() == [0, 1, 2, 0, 1, 2, 0, 0]
