"""A run that no device of its pools can hold is refused where the pools say how much they have."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.manager import device_memory
from services.manager.device_memory import check_memory
from services.manager.pools import Need, Pool
from trimaran.config import RunConfig, parse_config
from trimaran.errors import InputError
from trimaran.memory.models import QWEN25_7B

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


def test_the_largest_device_counts(config: RunConfig) -> None:
    pools = [pool("small", memory="80"), pool("large", memory="192")]
    check_memory(config, CUDA, CUDA, pools)
    with pytest.raises(InputError, match=r"trainer: .* take 127\.66 GiB.*has 80\.00 GiB"):
        check_memory(config, CUDA, CUDA, pools[:1])


@pytest.mark.parametrize("other", [{}, {"memory": "much"}])
def test_pools_that_do_not_say_it_refuse_nothing(config: RunConfig, other: dict[str, str]) -> None:
    check_memory(config, CUDA, CUDA, [pool("small", memory="80"), pool("b", **other)])


def test_a_model_elsewhere_refuses_nothing(config: RunConfig) -> None:
    (config.model.path / "config.json").unlink()
    check_memory(config, CUDA, CUDA, [pool("small", memory="80")])
