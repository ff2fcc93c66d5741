"""vLLM's sleep mode as the engine uses it. vLLM itself is a fake here: tests/contract checks that the calls exist."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import torch

from services.rollout.vllm.settings import engine_arguments
from services.rollout.vllm.worker import WorkerExtension
from tests.configs import configure
from tests.rollout.test_vllm_deadlines import LOAD, NEW, OLD, REQUEST, SHADOW, engine, given_up, llm
from trimaran.errors import BehindError, TransferError
from trimaran.host.device import Device

__all__ = ["engine", "llm"]

HOST, NPU = Device("cpu", "gloo"), Device("npu", "hccl")
SLEEP = {NPU: ["keep_parameters", "sleep 2"], HOST: ["pause", "drop_cache"]}
WOKEN = ["wake weights", "put_parameters_back", "wake kv_cache"]


@pytest.fixture(params=[NPU, HOST], ids=["npu", "cpu"])
def device(request, engine, llm, monkeypatch):
    """Of the engine, whose vLLM records the calls of its sleep mode."""

    async def sleep(level):
        await llm.call(f"sleep {level}")

    async def wake_up(tags):
        for tag in tags:
            await llm.call(f"wake {tag}")

    monkeypatch.setattr(llm, "sleep", sleep, raising=False)
    monkeypatch.setattr(llm, "wake_up", wake_up, raising=False)
    monkeypatch.setattr(engine, "_device", request.param)
    return request.param


async def test_weights_are_dropped_and_a_version_wakes_first_them_and_then_the_cache(
    engine, llm, device
):
    await engine.sleep()
    assert llm.events[0] is BehindError  # a request under way
    assert llm.events[1:] == SLEEP[device]
    with pytest.raises(BehindError, match="no version"):
        await engine._submit(REQUEST, {0: ()})
    llm.events.clear()
    await engine.load_weights(SHADOW, NEW)
    await engine.load_weights(SHADOW, OLD)  # awake
    before, after = (WOKEN[:2], WOKEN[2:]) if device is NPU else ([], ["restore_cache"])
    first = [LOAD[0], *before, *LOAD[1:5], *after, *LOAD[5:]]
    assert llm.events == [*first, *LOAD]


async def test_one_that_woke_by_half_is_woken_whole_before_it_sleeps_again(engine, llm, device):
    """vLLM takes it for asleep, and would leave the weights where they are."""

    await engine.sleep()
    llm.fails = {"update_weights"}
    with pytest.raises(TransferError):
        await engine.load_weights(SHADOW, NEW)
    llm.fails = set()
    llm.events.clear()
    await engine.sleep()
    woken = WOKEN if device is NPU else ["restore_cache"]
    assert llm.events == [BehindError, *woken, *SLEEP[device]]


async def test_a_load_waits_until_it_sleeps(engine, llm, device):
    llm.hangs = {SLEEP[device][-1]}
    sleeping = asyncio.create_task(engine.sleep())
    await asyncio.sleep(0.02)
    await given_up(engine.load_weights(SHADOW, NEW))
    assert "update_weights" not in llm.events
    sleeping.cancel()


def test_experts_that_were_turned_as_it_woke_are_what_they_were():
    """What vLLM-Ascend 0.23 does in `NPUWorker.wake_up`."""
    experts = torch.nn.Module()
    experts.w2_weight = torch.nn.Parameter(torch.arange(24.0).reshape(2, 3, 4), requires_grad=False)
    model = torch.nn.ModuleDict({"experts": experts, "norm": torch.nn.LayerNorm(4)})
    before = dict(model.named_parameters())
    worker = WorkerExtension()
    worker.model_runner = SimpleNamespace(get_model=lambda: model)
    worker.keep_parameters()
    turned = experts.w2_weight.transpose(1, 2)
    experts.w2_weight = torch.nn.Parameter(turned, requires_grad=False)
    worker.put_parameters_back()
    after = dict(model.named_parameters())
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)


def test_sleep_mode_is_asked_for_where_devices_are_shared():
    def asked(pools: str, device: Device) -> bool:
        config = configure(run={"pools": pools}, rollout={"eager": True})
        return engine_arguments(config, device, None).get("enable_sleep_mode", False)

    assert asked("colocated", NPU)
    assert not asked("separate", NPU)
    assert not asked("colocated", HOST), "vLLM refuses it there"
