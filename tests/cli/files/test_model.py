"""`trimaran model push`: what it prints is what a run needs."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.cli.conftest import Ran
from tests.tiny_model import write_tiny_model
from trimaran.config import ModelSection
from trimaran.model.fetch import find_model


def test_what_is_pushed_is_fetched_by_what_it_prints(tmp_path: Path, ran: Ran) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    section = yaml.safe_load(ran(["model", "push", str(model), str(tmp_path / "shared")]).out)[
        "model"
    ]
    found = find_model(ModelSection(**section), 1, tmp_path / "cache")
    assert found.name == "tiny"
    assert {path.name for path in found.iterdir()} == {path.name for path in model.iterdir()}


def test_what_is_no_model_is_refused(tmp_path: Path, ran: Ran) -> None:
    assert (
        "cannot be read" in ran(["model", "push", str(tmp_path), str(tmp_path / "shared")], 2).err
    )
    assert not (tmp_path / "shared").exists()
