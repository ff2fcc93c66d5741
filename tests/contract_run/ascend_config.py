"""The real vllm-ascend on the stub torch_npu: what an engine of ours is configured to on an NPU.

    python -m pytest tests/contract_run/ascend_config.py

`CONTRACT_VLLM_ASCEND` names the folder that holds the package and its entry points.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract_run import torch_npu_stub
from tests.tiny_model import write_tiny_model
from trimaran.config import parse_config
from trimaran.host.device import Device

Record = Callable[[str, Any], None]
NPU = Device("npu", "hccl")


@pytest.fixture(scope="module")
def engine_config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """vLLM's configuration, by the steps of `VllmEngine.start`."""
    sys.path.insert(0, os.environ["CONTRACT_VLLM_ASCEND"])
    torch_npu_stub.install()
    folder = write_tiny_model(tmp_path_factory.mktemp("model"), "qwen2", dtype="bfloat16")
    config = parse_config(
        {
            "model": {"path": str(folder), "dtype": "bfloat16"},
            "data": {"train": "unused.jsonl"},
            "reward": {"rules": {"last_integer": 1.0}},
            "rollout": {"engine": "vllm", "max_tokens": 64, "max_prompt_tokens": 16},
        }
    )
    from services.rollout.vllm.plugin import BACKEND, register
    from services.rollout.vllm.settings import engine_arguments, set_environment

    set_environment(config, on_host=False)
    from vllm.engine.arg_utils import AsyncEngineArgs

    transfer = BACKEND if register() else None
    return AsyncEngineArgs(**engine_arguments(config, NPU, transfer)).create_engine_config()


def test_the_platform_and_the_worker_are_vllm_ascends(
    engine_config: Any, record_property: Record
) -> None:
    from vllm.platforms import current_platform

    worker = engine_config.parallel_config.worker_cls
    record_property("platform", type(current_platform).__name__)
    record_property("worker", worker)
    assert type(current_platform).__name__ == "NPUPlatform"
    assert current_platform.device_type == "npu"
    assert worker == "vllm_ascend.worker.worker.NPUWorker"


def test_our_transfer_engine_is_registered_beside_vllm_ascends(
    engine_config: Any, record_property: Record
) -> None:
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    engines = set(WeightTransferEngineFactory._registry)
    record_property("transfer engines", " ".join(sorted(engines)))
    assert engines >= {"trimaran", "hccl", "npu_ipc"}
    assert engine_config.weight_transfer_config.backend == "trimaran"


def test_vllm_finds_our_plugin_by_its_entry_point(engine_config: Any) -> None:
    from vllm.plugins import DEFAULT_PLUGINS_GROUP, load_plugins_by_group

    plugins = load_plugins_by_group(DEFAULT_PLUGINS_GROUP)
    assert plugins.keys() >= {"trimaran", "ascend_model", "ascend_kv_connector"}


def test_weights_are_not_in_vllm_ascends_own_format(
    engine_config: Any, record_property: Record
) -> None:
    """NPUWorker refuses to start an update otherwise."""
    from vllm_ascend.ascend_config import get_ascend_config  # type: ignore[import-not-found]

    mode = get_ascend_config().weight_nz_mode
    record_property("weight_nz_mode", mode)
    assert mode == 0


def test_vllm_has_these_defaults_there(engine_config: Any, record_property: Record) -> None:
    """Recorded, because other machines have others: none of our tests on the CPU runs with them."""
    record_property("graphs", engine_config.compilation_config.cudagraph_mode.name)
    record_property("eager", engine_config.model_config.enforce_eager)
    assert engine_config.model_config.enforce_eager
    record_property("async scheduling", engine_config.scheduler_config.async_scheduling)
    record_property("block size", engine_config.cache_config.block_size)
    record_property("logprobs_mode", engine_config.model_config.logprobs_mode)
    assert engine_config.model_config.logprobs_mode == "processed_logprobs"


def test_the_sources_are_those_of_the_archive(engine_config: Any) -> None:
    import vllm_ascend  # type: ignore[import-not-found]

    assert vllm_ascend.__file__
    assert Path(vllm_ascend.__file__).is_relative_to(os.environ["CONTRACT_VLLM_ASCEND"])
