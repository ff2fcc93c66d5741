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
from services.rollout.vllm.settings import (
    check_environment,
    engine_arguments,
    is_eager,
    set_environment,
)
from tests.configs import configure
from tests.tiny_vision import write_tiny_vision
from trimaran.errors import InputError
from trimaran.host.device import Device

NPU, CUDA, CPU = Device("npu", "hccl"), Device("cuda", "nccl"), Device("cpu", "gloo")
CONFIG = configure()


@pytest.mark.parametrize(
    ("device", "chosen", "eager"),
    [(NPU, "auto", True), (CUDA, "auto", False), (NPU, False, False), (CUDA, True, True)],
)
def test_graphs_are_captured_on_cuda_and_where_they_are_asked_for(device, chosen, eager):
    config = configure(rollout={"eager": chosen})
    assert is_eager(config, device) is eager
    assert engine_arguments(config, device, None)["enforce_eager"] is eager
    with pytest.raises(InputError, match="rollout.eager: must be auto, true or false"):
        configure(rollout={"eager": "sometimes"})


def test_only_an_npu_is_asked_to_keep_weights_out_of_nz():
    """vLLM-Ascend 0.30 has no variable for it."""
    assert engine_arguments(CONFIG, NPU, None)["additional_config"] == {"weight_nz_mode": 0}
    for device in (CUDA, CPU):
        assert "additional_config" not in engine_arguments(CONFIG, device, None)


def test_prompts_are_shared_to_their_end_on_a_host_alone(tmp_path):
    assert engine_arguments(CONFIG, CPU, None)["kv_transfer_config"].kv_connector == "SharedTails"
    pictured = configure(model={"path": str(write_tiny_vision(tmp_path / "model"))})
    uncached = configure(rollout={"prefix_cache": False})
    for config, device in ((CONFIG, NPU), (CONFIG, CUDA), (pictured, CPU), (uncached, CPU)):
        assert "kv_transfer_config" not in engine_arguments(config, device, None)


@pytest.mark.parametrize("on_host", [True, False])
def test_a_trainer_s_expandable_segments_do_not_keep_a_host_from_starting(monkeypatch, on_host):
    monkeypatch.setattr(os, "environ", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    set_environment(CONFIG, on_host)
    assert ("PYTORCH_CUDA_ALLOC_CONF" in os.environ) is not on_host


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_a_vision_language_model_brings_arguments_for_images(tmp_path, tensor_parallel):
    rollout = {"limit_images": 3, "max_prompt_tokens": 100, "tensor_parallel": tensor_parallel}
    model = {"path": str(write_tiny_vision(tmp_path / "model"))}
    config = configure(model=model, rollout=rollout)
    arguments = engine_arguments(config, CPU, None)
    assert arguments["limit_mm_per_prompt"] == {"image": 3, "video": 0}
    assert arguments["mm_processor_kwargs"]["size"]["longest_edge"] == 100 * 28**2
    assert arguments.get("mm_encoder_tp_mode") == (None if tensor_parallel == 1 else "data")
    assert "limit_mm_per_prompt" not in engine_arguments(CONFIG, CPU, None)


@pytest.mark.e2e
def test_adapters_beside_the_model_ask_for_one_slot_of_their_rank():
    def arguments_of(**lora: Any) -> dict[str, Any]:
        return engine_arguments(configure(trainer={"lora": {"merged": False} | lora}), CPU, None)

    arguments = arguments_of(rank=32, targets=["q_proj"])
    found = {name: value for name, value in arguments.items() if "lora" in name}
    assert found == {
        **{"enable_lora": True, "max_loras": 1, "max_lora_rank": 32},
        "lora_target_modules": ["q_proj"],
    }
    assert not [name for name in engine_arguments(CONFIG, CPU, None) if "lora" in name]
    with pytest.raises(InputError, match=r"trainer.lora.rank: 12 .*1, 8, 16.*leave merged out"):
        arguments_of(rank=12)


@pytest.mark.parametrize("name", ["VLLM_ASCEND_ENABLE_NZ", "VLLM_ASCEND_ENABLE_FUSED_MC2"])
def test_nz_that_the_user_asks_for_is_refused_on_an_npu(name):
    with pytest.raises(InputError, match=f"^{name}=2: .*unset it$"):
        check_environment({name: "2"}, NPU)
    check_environment({name: "0"}, NPU)
    check_environment({name: "2"}, CUDA)


# As in `vllm_ascend.utils` of 0.23 and 0.30.
AscendDeviceType = enum.Enum("AscendDeviceType", ["A2", "A3", "_310P", "A5"], start=0)


def test_only_the_310p_is_refused(monkeypatch):
    utils: Any = ModuleType("vllm_ascend.utils")
    monkeypatch.setitem(sys.modules, "vllm_ascend", ModuleType("vllm_ascend"))
    monkeypatch.setitem(sys.modules, "vllm_ascend.utils", utils)
    for kind in AscendDeviceType:
        utils.get_ascend_device_type = lambda kind=kind: kind
        if kind is AscendDeviceType["_310P"]:
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
