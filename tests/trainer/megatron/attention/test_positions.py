"""How the positions of images are configured; test_vision.py compares the positions with transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.trainer.megatron.architecture import read_architecture
from services.trainer.megatron.attention.rope import Rope, parse_rope
from tests.tiny_vision import write_tiny_vision
from trimaran.errors import InputError

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
