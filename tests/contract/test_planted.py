"""Errors that are planted in a copy of our sources are found, each with its place.

All of them stand in one copy, so that it is read once. `unlisted.py` is a file that no list names.
"""

from __future__ import annotations

import pytest

from tests.contract.stack import ROOT, Stack
from tests.contract.test_our_uses import collisions, missing_methods, wrong_overrides

CHANGES = [
    ("rollout/vllm/settings.py", '"gpu_memory_utilization":', '"gpu_memory_share":'),
    ("rollout/vllm/engine.py", "self.llm.resume_generation()", "self.llm.go_on()"),
    ("rollout/vllm/engine.py", 'pause_generation(mode="keep"', 'pause_generation(kind="keep"'),
    ("rollout/vllm/engine.py", "state.detokenizer.num_output_tokens()", "state.detokenizer.size()"),
    ("rollout/vllm/loading/load.py", "    finalize_layerwise_reload,\n", "    end_layerwise_reload,\n"),
    ("rollout/vllm/loading/load.py", "initialize_layerwise_reload(model)", "initialize_layerwise_reload()"),
    ("rollout/vllm/transfer.py", "def receive_weights(", "def take_weights("),
    ("rollout/vllm/transfer.py", "def init_transfer_engine(self, init_info:", "def init_transfer_engine(self, info, again:"),
    ("rollout/vllm/worker.py", "def end_with_parent(", "def shutdown("),
    ("rollout/vllm/workers.py", '"update_weights", update_info=', '"update_weights", update='),
    ("rollout/vllm/workers.py", 'args=(method, args, kwargs)', 'args=(method, args, kwargs, 1)'),
    ("rollout/vllm/workers.py", 'call("finish_weight_update")', 'call("end_weight_update")'),
    ("rollout/vllm/workers.py", 'self._call("go_on_reading_back", SLICE', 'self._call("go_on_reading_back", 1, SLICE'),
    ("rollout/vllm/loading/modules.py", "module.num_kv_head_replicas", "module.num_kv_replicas"),
    ("rollout/vllm/plugin.py", "register_engine(BACKEND, *ENGINE)", "add_engine(BACKEND, *ENGINE)"),
    ("trainer/megatron/model.py", "        use_te_activation_func=", "        use_te_activation="),
    ("trainer/megatron/policy.py", "self._optimizer.prepare_grads()", "self._optimizer.ready_grads()"),
    ("trainer/megatron/policy.py", "grad_reduce_in_fp32=True", "reduce_in_fp32=True"),
    ("weights/transports/collective/process_groups.py", "import ProcessGroupHCCL ", "import ProcessGroupHccl "),
]  # fmt: skip
UNLISTED = """
from megatron.core import parallel_state
from vllm.nowhere import nothing


class Engine:
    def __init__(self):
        from vllm.v1.engine.async_llm import AsyncLLM

        self.engine = AsyncLLM.from_vllm_config(None, log=True)

    async def stop(self):
        await self.engine.shut_down()
        parallel_state.destroy_everything()
"""
# " … " stands for anything.
FOUND = [
    "AsyncEngineArgs( … has no parameter gpu_memory_share",
    "AsyncLLM.go_on: no such attribute",
    "AsyncLLM.pause_generation(kind=, clear_cache=): has no parameter kind",
    "IncrementalDetokenizer.size: no such attribute",
    "from vllm.model_executor.model_loader.reload import end_layerwise_reload: no such name",
    "initialize_layerwise_reload(): needs model",
    "ShadowTransferEngine.receive_weights(…): needs load_weights",  # what is left is the base's
    "WorkerExtension.end_with_parent() by collective_rpc: no such method",
    "WorkerExtension.attempt(…, …, …, …) by collective_rpc: takes 3 positional arguments, gets 4",
    "WorkerExtension.update_weights(update=) by collective_rpc: has no parameter update",
    "WorkerExtension.end_weight_update() by collective_rpc: no such method",
    "WorkerExtension.go_on_reading_back(…, …) by collective_rpc: takes 1 positional arguments, gets 2",
    "QKVParallelLinear.num_kv_replicas: no such attribute",
    "AscendQKVParallelLinear.num_kv_replicas: no such attribute",
    "WeightTransferEngineFactory.add_engine: no such attribute",
    "TransformerConfig( … has no parameter use_te_activation",
    "MegatronOptimizer.ready_grads: no such attribute",
    "DistributedDataParallelConfig( … has no parameter reduce_in_fp32",
    "from torch_npu._C._distributed_c10d import ProcessGroupHccl: no such name",
    "services/trainer/unlisted.py:3: from vllm.nowhere import nothing: no such name",
    "services/trainer/unlisted.py:10: vllm.v1.engine.async_llm.AsyncLLM.from_vllm_config(…, log=): has no parameter log",
    "services/trainer/unlisted.py:13: vllm.v1.engine.async_llm.AsyncLLM.shut_down: no such attribute",
    "services/trainer/unlisted.py:14: megatron.core.parallel_state.destroy_everything: no such name",
]  # fmt: skip


def planted(stack: Stack) -> Stack:
    texts: dict[str, str] = {"services/trainer/unlisted.py": UNLISTED}
    for file, old, new in CHANGES:
        path = file if file.startswith("weights/") else f"services/{file}"
        text = texts.get(path) or (ROOT / path).read_text(encoding="utf-8")
        assert old in text, f"{path} does not hold {old!r} any more: plant the error elsewhere"
        texts[path] = text.replace(old, new)
    return stack.changed(texts)


def is_said(expected: str, said: list[str]) -> bool:
    return any(all(part in line for part in expected.split(" … ")) for line in said)


def test_each_planted_error_is_found_and_nothing_else(installed: Stack) -> None:
    before = {fact.what for fact in installed.facts if not fact.holds}
    changed = planted(installed)
    said = [str(fact) for fact in changed.facts if not fact.holds and fact.what not in before]
    assert [expected for expected in FOUND if not is_said(expected, said)] == []
    assert [line for line in said if not any(is_said(expected, [line]) for expected in FOUND)] == []

    transfer = "services.rollout.vllm.transfer.ShadowTransferEngine"
    base = "vllm.distributed.weight_transfer.base.WeightTransferEngine"
    assert missing_methods(changed) == [f"{transfer} lacks receive_weights of {base}"]
    assert wrong_overrides(changed) == [
        f"{transfer}.init_transfer_engine needs again, as {base} declares it"
    ]
    assert collisions(changed) == ["NPUWorker has shutdown already"]


@pytest.mark.parametrize("is_guarded", [True, False])
def test_what_one_version_lacks_may_be_used_where_our_code_asks_for_it(
    installed: Stack, is_guarded: bool
) -> None:
    path = "services/rollout/vllm/worker.py"
    text = (ROOT / path).read_text(encoding="utf-8")
    guard = 'if not hasattr(topk_topp_sampler, "compiled_random_sample"):'
    assert guard in text
    test = 'not hasattr(topk_topp_sampler, "gone")' if is_guarded else "True"
    changed = installed.changed(
        {path: text.replace(guard, f"topk_topp_sampler.gone()\n        if {test}:")}
    )
    (fact,) = [fact for fact in changed.facts if fact.what.endswith(".gone")]
    assert (fact.holds, fact.objection) == (is_guarded, "no such name")
