"""A run that no device of its pools can hold is refused where the pools say how much they have."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.manager.scheduling import device_memory
from services.manager.scheduling.device_memory import check_memory
from services.manager.scheduling.pools import Need, Pool
from tests.trimaran.model.memory.models import QWEN25_7B
from trimaran.config import RunConfig, parse_config

CUDA = Need("cuda", 1)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(device_memory, "read_model_folder", lambda path: QWEN25_7B.facts)
    return parse_config(
        {
            "model": {"path": str(tmp_path)},
            "data": {"train": "train.jsonl"},
            "reward": {"rules": {"gsm8k": 1.0}},
        }
    )


def pool(name: str, **labels: str) -> Pool:
    return Pool(name, "cuda", ("0", "1"), labels)


def test_a_model_elsewhere_refuses_nothing(config: RunConfig) -> None:
    (config.model.path / "config.json").unlink()
    check_memory(config, CUDA, CUDA, [pool("small", memory="80")])
