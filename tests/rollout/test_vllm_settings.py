"""What vLLM is started with, and what keeps it from being started."""

from __future__ import annotations

import enum
import json
import os
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from services.rollout.vllm.ascend import check_processor
from services.rollout.vllm.settings import check_environment, engine_arguments
from tests.tiny_vision import write_tiny_vision
from trimaran.config import RunConfig, parse_config
from trimaran.errors import InputError
from trimaran.host.device import Device

NPU, CUDA, CPU = Device("npu", "hccl"), Device("cuda", "nccl"), Device("cpu", "gloo")
CONFIG = parse_config(
    {
        "model": {"path": "unused"},
        "data": {"train": "unused.jsonl"},
        "reward": {"rules": {"last_integer": 1.0}},
    }
)


def test_only_an_npu_is_asked_to_keep_weights_out_of_nz():
    """vLLM-Ascend 0.30 has no variable for it."""
    assert engine_arguments(CONFIG, NPU, None)["additional_config"] == {"weight_nz_mode": 0}
    for device in (CUDA, CPU):
        assert "additional_config" not in engine_arguments(CONFIG, device, None)


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_a_vision_language_model_brings_arguments_for_images(tmp_path, tensor_parallel):
    config = parse_config(
        {
            "model": {"path": str(write_tiny_vision(tmp_path / "model"))},
            "data": {"train": "unused.jsonl"},
            "reward": {"rules": {"last_integer": 1.0}},
            "rollout": {"limit_images": 3, "max_prompt_tokens": 100}
            | {"tensor_parallel": tensor_parallel},
        }
    )
    arguments = engine_arguments(config, CPU, None)
    assert arguments["limit_mm_per_prompt"] == {"image": 3, "video": 0}
    assert arguments["mm_processor_kwargs"]["size"]["longest_edge"] == 100 * 28**2
    assert arguments.get("mm_encoder_tp_mode") == (None if tensor_parallel == 1 else "data")
    assert "limit_mm_per_prompt" not in engine_arguments(CONFIG, CPU, None)


def with_adapters(**lora: Any) -> RunConfig:
    trainer = {"trainer": {"lora": {"merged": False} | lora}}
    return parse_config(CONFIG.model_dump(mode="json", exclude_unset=True) | trainer)


@pytest.mark.e2e
def test_adapters_beside_the_model_ask_for_one_slot_of_their_rank():
    arguments = engine_arguments(with_adapters(rank=32, targets=["q_proj"]), CPU, None)
    found = {name: value for name, value in arguments.items() if "lora" in name}
    assert found == {
        **{"enable_lora": True, "max_loras": 1, "max_lora_rank": 32},
        "lora_target_modules": ["q_proj"],
    }
    assert not [name for name in engine_arguments(CONFIG, CPU, None) if "lora" in name]
    with pytest.raises(InputError, match=r"trainer.lora.rank: 12 .*1, 8, 16.*leave merged out"):
        engine_arguments(with_adapters(rank=12), CPU, None)


@pytest.mark.parametrize("name", ["VLLM_ASCEND_ENABLE_NZ", "VLLM_ASCEND_ENABLE_FUSED_MC2"])
@pytest.mark.parametrize("value", ["1", "2"])
def test_nz_that_the_user_asks_for_is_refused_on_an_npu(name, value):
    with pytest.raises(InputError, match=f"^{name}={value}: .*unset it$"):
        check_environment({name: value}, NPU)
    check_environment({name: "0"}, NPU)
    check_environment({name: value}, CUDA)


class AscendDeviceType(enum.Enum):
    """As in `vllm_ascend.utils` of 0.23 and 0.30."""

    A2 = 0
    A3 = 1
    _310P = 2
    A5 = 3


@pytest.mark.parametrize("kind", AscendDeviceType)
def test_only_the_310p_is_refused(monkeypatch, kind):
    utils: Any = ModuleType("vllm_ascend.utils")
    utils.get_ascend_device_type = lambda: kind
    monkeypatch.setitem(sys.modules, "vllm_ascend", ModuleType("vllm_ascend"))
    monkeypatch.setitem(sys.modules, "vllm_ascend.utils", utils)
    if kind is AscendDeviceType._310P:
        with pytest.raises(InputError, match="310P .* use Atlas A2 or A3$"):
            check_processor()
    else:
        check_processor()


PLUGINS = [None, "trimaran", "lora,trimaran", "", "ascend", "ascend, trimaran"]
LOAD = """
import json, os, sys
import vllm.plugins
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
found = []
for given in json.loads(sys.argv[1]):
    os.environ.pop("VLLM_PLUGINS", None)
    if given is not None:
        os.environ["VLLM_PLUGINS"] = given
    vllm.plugins.plugins_loaded = False
    WeightTransferEngineFactory._registry.pop("trimaran", None)
    vllm.plugins.load_general_plugins()
    found.append("trimaran" in WeightTransferEngineFactory._registry)
print(json.dumps(found))
"""


@pytest.mark.e2e
def test_vllm_plugins_is_refused_exactly_where_vllm_would_not_load_ours():
    process = subprocess.run(
        [sys.executable, "-c", LOAD, json.dumps(PLUGINS)],
        capture_output=True,
        text=True,
        env=os.environ | {"VLLM_LOGGING_LEVEL": "ERROR"},
    )
    assert process.returncode == 0, process.stderr[-2000:]
    loads = json.loads(process.stdout.splitlines()[-1])
    assert loads == [True, True, True, False, False, False]
    assert [is_taken(given, CUDA) for given in PLUGINS] == loads


def is_taken(given: str | None, device: Device) -> bool:
    try:
        check_environment({} if given is None else {"VLLM_PLUGINS": given}, device)
    except InputError:
        return False
    return True


def test_vllm_plugins_needs_the_ones_of_the_npu_too():
    needed = "ascend,ascend_kv_connector,ascend_model"
    assert is_taken(None, NPU)
    assert is_taken(f"{needed},trimaran", NPU)
    with pytest.raises(InputError, match="not load trimaran; unset it"):
        check_environment({"VLLM_PLUGINS": needed}, NPU)
    with pytest.raises(InputError, match="not load ascend, ascend_kv_connector, ascend_model;"):
        check_environment({"VLLM_PLUGINS": "trimaran"}, NPU)
