"""Everything that our sources use of the NPU packages is there and is called as it wants."""

from __future__ import annotations

import ast

from tests.contract.calls import Arguments, Def, declared, parameters
from tests.contract.sources import string_of
from tests.contract.stack import EXTENSION, WORKER, Stack, counterparts
from tests.contract.uses import Fact, asked_of_workers, bound, used_of_instance

ENGINE = ("services.rollout.vllm.transfer", "ShadowTransferEngine")
VLLM, MEGATRON = "services.rollout.vllm", "services.trainer.megatron"
LAYERS = "vllm.model_executor.layers"
OPTIMIZER = "megatron.core.optimizer.optimizer"
OUTPUTS = "vllm.v1.engine.output_processor"
CORE = "megatron.core.transformer"
OF_INSTANCES: dict[str, dict[str, str]] = {
    f"{VLLM}.engine": {
        "vllm.engine.arg_utils.AsyncEngineArgs": "create_engine_config",
        "vllm.logprobs.FlatLogprobs": "logprobs",
        "vllm.outputs.CompletionOutput": "finish_reason index logprobs token_ids",
        "vllm.outputs.RequestOutput": "num_cached_tokens outputs",
        "vllm.renderers.base.BaseRenderer": "clear_mm_cache_async",
        "vllm.v1.engine.async_llm.AsyncLLM": "abort add_request engine_core errored output_processor"
        " pause_generation resume_generation sleep wake_up",
        "vllm.v1.engine.core_client.AsyncMPClient": "outputs_queue pause_scheduler_async",
        "vllm.v1.engine.detokenizer.IncrementalDetokenizer": "num_output_tokens",
        f"{OUTPUTS}.OutputProcessor": "get_num_unfinished_requests request_states tokenizer",
        f"{OUTPUTS}.RequestOutputCollector": "get get_nowait put",
        f"{OUTPUTS}.RequestState": "detokenizer",
    },
    f"{VLLM}.workers": {"vllm.v1.engine.async_llm.AsyncLLM": "collective_rpc"},
    f"{VLLM}.worker": {
        "vllm.config.model.ModelConfig": "hf_config",
        "vllm_ascend.worker.model_runner_v1.NPUModelRunner": "device get_model kv_caches sampler",
    },
    f"{VLLM}.reported_experts": {
        "vllm.outputs.CompletionOutput": "stop_reason",
        "vllm.outputs.RequestOutput": "add",
    },
    f"{VLLM}.loading.load": {
        "vllm.model_executor.model_loader.reload.types.LayerReloadingInfo": "can_load load_numel"
        " load_numel_total",
    },
    f"{VLLM}.loading.in_place": {
        f"{LAYERS}.quantization.base_config.QuantizeMethodBase": "process_weights_after_loading",
        f"{LAYERS}.vocab_parallel_embedding.ParallelLMHead": "quant_method",
        f"{LAYERS}.vocab_parallel_embedding.VocabParallelEmbedding": "embedding_dim shard_indices",
    },
    f"{VLLM}.loading.modules": {
        f"{LAYERS}.linear.ColumnParallelLinear": "output_size_per_partition",
        f"{LAYERS}.linear.MergedColumnParallelLinear": "output_sizes tp_size",
        f"{LAYERS}.linear.QKVParallelLinear": "head_size num_heads num_kv_head_replicas num_kv_heads"
        " tp_size v_head_size",
        f"{LAYERS}.linear.RowParallelLinear": "input_size_per_partition",
        f"{LAYERS}.vocab_parallel_embedding.VocabParallelEmbedding": "shard_indices",
    },
    f"{MEGATRON}.layer_spec": {
        f"{CORE}.spec_utils.ModuleSpec": "submodules",
        f"{CORE}.transformer_config.TransformerConfig": "num_moe_experts params_dtype qk_layernorm",
    },
    f"{MEGATRON}.model": {
        f"{CORE}.transformer_block.TransformerBlock": "layers",
        f"{CORE}.transformer_config.TransformerConfig": "params_dtype recompute_granularity"
        " sequence_parallel",
        f"{MEGATRON}.model.PackedGPT": "decoder embedding output_layer post_process pre_process"
        " share_embeddings_and_output_weights shared_embedding_or_output_weight",
    },
    f"{MEGATRON}.parameters.lora": {
        f"{CORE}.transformer_config.TransformerConfig": "kv_channels num_query_groups"
        " sequence_parallel tensor_model_parallel_size",
    },
    f"{MEGATRON}.policy": {
        "megatron.core.distributed.distributed_data_parallel.DistributedDataParallel": "start_param_sync"
        " offload_grad_buffers restore_grad_buffers zero_grad_buffer",
        f"{OPTIMIZER}.MegatronOptimizer": "get_grad_norm param_groups prepare_grads"
        " step_with_ready_grads zero_grad",
        f"{MEGATRON}.model.PackedGPT": "config",
    },
}
"""Modules of ours -> classes -> what they use of the instances. A call must fit; add here what a new call asks of one."""


def facts_of_instances(stack: Stack) -> list[Fact]:
    """Also of the class that vLLM-Ascend puts in a layer's place."""
    theirs = counterparts(stack.types)
    found: list[Fact] = []
    for module, used in OF_INSTANCES.items():
        for path, names in used.items():
            cls = stack.types.class_of(*path.rsplit(".", 1))
            for one in filter(None, (cls, theirs.get(cls))):
                found += used_of_instance(stack.types, module, one, names)
    workers = stack.types.class_of(*EXTENSION)
    return [*found, *asked_of_workers(stack.types, f"{VLLM}.workers", workers)]


def wrong_overrides(stack: Stack) -> list[str]:
    """Methods of ours that do not accept the calls for which a package's base declares them."""
    found = []
    for cls, _ in stack.our_subclasses():
        for name, members in stack.types.members(cls).items():
            methods = [(m.owner, m.node) for m in members if isinstance(m.node, Def)]
            if methods and methods[0][0] == cls and not name.startswith("__"):
                for base, node in methods[1:]:
                    objection = bound(methods[0][1]).objection(_declared(node))
                    if objection:
                        found.append(f"{cls}.{name} {objection}, as {base} declares it")
    return found


def missing_methods(stack: Stack) -> list[str]:
    return [
        f"{cls} lacks {name} of {base}"
        for cls, base in stack.our_subclasses()
        for name in stack.types.abstract_methods(cls)
    ]


def collisions(stack: Stack) -> list[str]:
    """vLLM refuses a worker extension that has a name of its worker's class."""
    worker = stack.types.class_of(*WORKER)
    extension = stack.types.class_of(*EXTENSION)
    ours = {node.name for node in extension.node.body if isinstance(node, Def)}
    theirs = stack.types.members(worker)
    return sorted(f"NPUWorker has {name} already" for name in ours & set(theirs))


def _declared(node: Def) -> Arguments:
    is_static = any(ast.unparse(d) == "staticmethod" for d in node.decorator_list)
    return declared(node, is_bound=not is_static)


def test_every_import_and_every_call_of_what_is_imported_holds(stack: Stack) -> None:
    assert [str(fact) for fact in stack.facts if fact.objection] == []
    assert len(stack.facts) > 150


def test_what_we_use_of_instances_is_there_and_is_called_as_it_wants(stack: Stack) -> None:
    facts = facts_of_instances(stack)
    assert [str(fact) for fact in facts if fact.objection] == []
    assert len([fact for fact in facts if "by collective_rpc" in fact.what]) > 15


def test_the_engines_arguments_are_vllms(stack: Stack) -> None:
    ours = stack.sources.find(f"{VLLM}.settings", "engine_arguments")
    assert ours and ours.node
    dicts = [node for node in ast.walk(ours.node) if isinstance(node, ast.Dict)]
    keys = {string_of(key) for node in dicts for key in node.keys}
    assert {"gpu_memory_utilization", "node_rank"} <= keys
    wanted = stack.types.constructor(
        stack.types.class_of("vllm.engine.arg_utils", "AsyncEngineArgs")
    )
    given_here = Arguments(0, tuple(keys - {""}), open=True)
    assert wanted and wanted.objection(given_here) == ""


def test_our_classes_implement_what_is_abstract(stack: Stack) -> None:
    assert missing_methods(stack) == []


def test_our_methods_take_what_their_base_declares(stack: Stack) -> None:
    assert wrong_overrides(stack) == []


def test_the_worker_extension_has_no_name_of_the_worker(stack: Stack) -> None:
    assert collisions(stack) == []


def test_the_worker_calls_our_engine_as_it_can_be_called(stack: Stack) -> None:
    """Derived from NPUWorker: every call on its weight-transfer engine."""
    worker, engine = stack.types.class_of(*WORKER), stack.types.class_of(*ENGINE)
    asked = set()
    for node in ast.walk(worker.node):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr=name), args=args, keywords=keywords):
                if ast.unparse(owner).removeprefix("self.") != "weight_transfer_engine":
                    continue
                asked.add(name)
                given = Arguments(len(args), tuple(k.arg for k in keywords if k.arg))
                member = stack.types.member(engine, name)
                assert member and isinstance(member.node, Def), name
                assert bound(member.node).objection(given) == "", name
    assert {"parse_init_info", "init_transfer_engine", "shutdown"} < asked


def test_the_factory_makes_our_engine(stack: Stack) -> None:
    """Its call of the class must fit the `__init__` that ours inherits."""
    factory = ("vllm.distributed.weight_transfer.factory", "WeightTransferEngineFactory")
    making = stack.method(*factory, "create_engine")
    (call,) = [
        node
        for node in ast.walk(making)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "engine_cls"
    ]
    constructor = stack.types.constructor(stack.types.class_of(*ENGINE))
    assert constructor and constructor.objection(Arguments(len(call.args))) == ""
    asked = [
        node
        for node in ast.walk(stack.types.class_of(*WORKER).node)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".create_engine")
    ]
    given = [Arguments(len(c.args), tuple(k.arg for k in c.keywords if k.arg)) for c in asked]
    assert given and {parameters(making, True).objection(g) for g in given} == {""}
