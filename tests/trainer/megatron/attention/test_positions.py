"""Positions of images in a prompt, by hand; test_vision.py compares them with transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from services.trainer.megatron.architecture import read_architecture
from services.trainer.megatron.attention.positions import (
    axis_of_channels,
    packed_positions,
    prompt_positions,
)
from services.trainer.megatron.attention.rope import Rope, parse_rope
from services.trainer.step.packing import GroupLengths
from tests.tiny_vision import write_tiny_vision
from trimaran.errors import InputError


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


QWEN25 = {"rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}
QWEN3 = {
    "rope_theta": 5e6,
    "rope_scaling": {
        "rope_type": "default",
        "mrope_section": [24, 20, 20],
        "mrope_interleaved": True,
    },
}
WRITTEN = {"rope_parameters": {"rope_theta": 5e6, **QWEN3["rope_scaling"]}}
"""As transformers 5 writes the same."""


def test_sections_are_read_as_the_makers_and_transformers_write_them() -> None:
    assert parse_rope(QWEN25, "here") == Rope(1e6, sections=(16, 24, 24))
    wanted = Rope(5e6, sections=(24, 20, 20), interleaved=True)
    assert parse_rope(QWEN3, "here") == parse_rope(WRITTEN, "here") == wanted


def test_sections_are_of_half_a_head(tmp_path: Path) -> None:
    folder = write_tiny_vision(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["rope_parameters"]["mrope_section"] = [4, 6, 5]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"mrope_section \[4, 6, 5\] .* 32 channels"):
        read_architecture(folder)
