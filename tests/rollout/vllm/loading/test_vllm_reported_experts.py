"""What is asked of vLLM where the experts that it chose are replayed, and what is made of its answer."""

from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from services.rollout.vllm import reported_experts as module
from services.rollout.vllm.reported_experts import keep_experts_of_merged_outputs, reported_experts
from services.rollout.vllm.settings import engine_arguments
from tests.configs import configure
from trimaran.errors import InputError
from trimaran.host.device import Device

CPU = Device("cpu", "gloo")


def config_of(replay):
    return configure(trainer={"router": {"replay": replay}})


def test_they_are_asked_for_only_where_they_are_replayed(monkeypatch):
    assert "enable_return_routed_experts" not in engine_arguments(config_of(False), CPU, None)
    vllm, utils = ModuleType("vllm"), ModuleType("vllm.engine.arg_utils")
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.engine.arg_utils", utils)
    older: Any = type("EngineArgs", (), {})
    vllm.__dict__["__version__"], utils.__dict__["EngineArgs"] = "0.20", older
    with pytest.raises(InputError, match=r"^trainer.router.replay: vllm 0.20 has no enable_return"):
        engine_arguments(config_of(True), CPU, None)
    older.enable_return_routed_experts = False
    assert engine_arguments(config_of(True), CPU, None)["enable_return_routed_experts"]


def test_of_prompt_and_completion():
    chosen = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    completion = SimpleNamespace(routed_experts=chosen, stop_reason=None)
    assert reported_experts(config_of(False), completion, 2, 2) == (b"", b"")
    assert reported_experts(config_of(True), completion, 2, 2) == (
        bytes(range(8, 12)),
        bytes(range(8)),
    )
    with pytest.raises(InputError, match="does not report which experts"):
        reported_experts(
            config_of(True), SimpleNamespace(routed_experts=None, stop_reason=None), 2, 2
        )


def test_of_more_or_fewer_tokens_than_were_read_nothing_is_sent(monkeypatch, caplog):
    monkeypatch.setattr(module, "_has_warned", threading.Event())
    completion = SimpleNamespace(routed_experts=np.zeros((3, 2, 2), np.uint8), stop_reason=None)
    for num_tokens in (1, 3):
        assert reported_experts(config_of(True), completion, 2, num_tokens) == (b"", b"")
    [record] = caplog.records
    assert "the experts of 3 tokens where it had read 2" in record.getMessage()


def test_outputs_that_are_merged_keep_them(monkeypatch):
    """As vLLM's own class merges them: tokens yes, experts no."""

    class RequestOutput:
        def __init__(self, *outputs):
            self.outputs = list(outputs)

        def add(self, next_output, aggregate):
            known = {one.index: one for one in self.outputs}
            for one in next_output.outputs:
                if one.index in known:
                    known[one.index].token_ids += one.token_ids
                else:
                    self.outputs.append(one)

    def output(index, token_ids, experts=None):
        return SimpleNamespace(index=index, token_ids=token_ids, routed_experts=experts)

    outputs = ModuleType("vllm.outputs")
    outputs.__dict__["RequestOutput"] = RequestOutput
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.outputs", outputs)
    for _ in range(2):
        keep_experts_of_merged_outputs()
    merged = RequestOutput(output(0, [1]), output(1, [2]))
    merged.add(RequestOutput(output(1, [3], "of 1")), aggregate=True)
    merged.add(RequestOutput(output(0, [4]), output(2, [5], "of 2")), aggregate=True)
    found = [(one.token_ids, one.routed_experts) for one in merged.outputs]
    assert found == [([1, 4], None), ([2, 3], "of 1"), ([5], "of 2")]
