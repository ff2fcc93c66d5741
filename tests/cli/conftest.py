"""A run that passes every check, made wrong in one place by each test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands.cli.main import main
from tests.trimaran.model.test_model_folder import SMOLLM2, make_folder

WriteRun = Callable[..., Path]
Ran = Callable[..., Any]


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str]) -> Ran:
    """ran(words, code) -> what a command that ends with this code has written, as `out` and `err`."""

    def run(words: list[str], code: int = 0) -> Any:
        capsys.readouterr()  # what others wrote
        assert main(words) == code
        return capsys.readouterr()

    return run


@pytest.fixture
def write_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteRun:
    """write_run(section={key: value}) -> path of run.yaml; runs go to <tmp_path>/runs."""
    monkeypatch.chdir(tmp_path)
    make_folder(tmp_path / "model", SMOLLM2)
    rows = [{"prompt": f"What is {a} + 1?", "answer": str(a + 1)} for a in range(4)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def write(**sections: Any) -> Path:
        tree: dict[str, Any] = {
            "model": {"path": "model"},
            "data": {"train": "train.jsonl"},
            "reward": {"rules": {"last_integer": 1.0}},
        }
        for name, values in sections.items():
            tree[name] = tree.get(name, {}) | values
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(tree))
        return path

    return write
