from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from tests.trainer.collectives import refuse_float64
from tests.trainer.models import DEEP, FAMILIES, save_model
from trimaran.config import RunConfig, parse_config

MakeConfig = Callable[..., RunConfig]


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {family: save_model(root / family, family) for family in (*FAMILIES, DEEP)}


@pytest.fixture(scope="session")
def make_config(model_folders: dict[str, Path]) -> MakeConfig:
    """A configuration for the tiny models; keyword arguments replace keys of sections."""

    def make(family: str = "qwen2", **sections: dict[str, Any]) -> RunConfig:
        tree: dict[str, dict[str, Any]] = {
            "run": {"groups_per_step": 4},
            "model": {"path": str(model_folders[family]), "dtype": "float32"},
            "data": {"train": "unused.jsonl"},
            "reward": {"rules": {"unused": 1.0}},
            "rollout": {"max_tokens": 32, "max_prompt_tokens": 32, "temperature": 0.7},
            "trainer": {"learning_rate": 1e-3, "weight_decay": 0.1, "device": "cpu"},
            "validation": {},
            "algorithm": {},
            "endpoints": {},
            "weight_sync": {},
        }
        for name, section in sections.items():
            tree[name] = {**tree.get(name, {}), **section}
        return parse_config(tree)

    return make


@pytest.fixture(scope="session")
def single_rank() -> Iterator[None]:
    """megatron-core in this process, as the only rank."""
    from services.trainer.megatron.cpu import let_megatron_run_on_cpu

    let_megatron_run_on_cpu()
    from megatron.core import parallel_state

    refuse_float64()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    yield
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
    torch.set_num_threads(threads)
