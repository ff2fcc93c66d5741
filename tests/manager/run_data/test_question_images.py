"""The images of held-out prompts, out of the run's dataset."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from PIL import Image

from services.manager.run_data.question_images import question_images
from tests.configs import configure
from trimaran.config import RunConfig
from trimaran.errors import NotFoundError


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """Its dataset's third line is another prompt, without images; the second one is blank."""
    Image.new("RGB", (40, 30), "red").save(tmp_path / "red.jpg")
    rows = [
        {"prompt": text, "answer": "", "seen": seen}
        for text, seen in (("?", ["red.jpg"]), ("!", []))
    ]
    (tmp_path / "held.jsonl").write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    held = {"path": str(tmp_path / "held.jsonl"), "image_key": "seen"}
    return configure(data={"train": "t", "validation": [held], "min_pixels": 1})


def test_they_are_png_files_of_the_rows_own(config: RunConfig) -> None:
    [data] = question_images(config, "held.jsonl:1")
    with Image.open(io.BytesIO(data)) as image:
        assert (image.format, image.size) == ("PNG", (40, 30))


@pytest.mark.parametrize("prompt_id", ["held.jsonl:2", "held.jsonl:99", "other.jsonl:1"])
def test_a_prompt_that_is_not_there_any_more_has_none(config: RunConfig, prompt_id: str) -> None:
    with pytest.raises(NotFoundError, match=prompt_id):
        question_images(config, prompt_id)
